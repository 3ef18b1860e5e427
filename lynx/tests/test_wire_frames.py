"""Messages and their bytes: golden vectors, round trips, and total validation."""

import json
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lynx.codec.interface import Plane
from lynx.errors import BadInput, LayoutMismatch, PageCorrupt, ProtocolError, TransferLost
from lynx.layout import KvLayout
from lynx.wire import Again, Cancel, Code, Credit, Done, End, Failure, Hello, Manifest, Resume
from lynx.wire.frames import (
    FRAME,
    MAX_BODY,
    PREFACE,
    Kind,
    checksum,
    decode,
    encode,
    kind_of,
    page_header,
)
from lynx.wire.messages import Message

GOLDEN = json.loads((Path(__file__).parent / "golden/wire/v1.json").read_text())
LAYOUT = KvLayout(30, 2, 3, 64, "bfloat16")
MESSAGES: dict[str, Message] = {
    "hello": Hello(
        bytes(range(16)), bytes(range(16, 32)), Plane.RESIDUAL, tuple(Plane), b"request-7", 30_000, 1 << 24
    ),
    "hello-anchor-only": Hello(b"f" * 16, b"i" * 16, Plane.ANCHOR, (Plane.ANCHOR,), b"k", 0, 1),
    "resume-nothing": Resume(0, b""),
    "resume-some": Resume(11, b"\x05\x04"),
    "credit": Credit(0x1122334455667788),
    "again": Again(7),
    "done": Done(),
    "cancel": Cancel(),
    "manifest": Manifest("nested", LAYOUT, 1000, (123_456, 0), 42, (("prefill_ns", 5_000_000),)),
    "manifest-one-plane": Manifest("bf16", KvLayout(2, 1, 1, 512, "float32"), 1, (99,)),
    "end": End(Plane.RESIDUAL, 240, 6_480_000, 1_500_000),
    "error": Failure(Code.FINGERPRINT, "model differs: ≠"),
}


def parse(frame: bytes) -> Message:
    number, plane, zero, length = FRAME.unpack_from(frame)
    assert zero == 0 and length == len(frame) - FRAME.size
    return decode(Kind(number), Plane(plane), frame[FRAME.size :])


def test_golden_file_names_every_vector() -> None:
    assert GOLDEN["version"] == 1
    assert set(GOLDEN["frames"]) == {*MESSAGES, "page", "preface"}


@pytest.mark.parametrize("name", MESSAGES)
def test_golden_vectors(name: str) -> None:
    assert encode(MESSAGES[name]).hex() == GOLDEN["frames"][name]
    assert parse(bytes.fromhex(GOLDEN["frames"][name])) == MESSAGES[name]


def test_golden_page_and_preface() -> None:
    payload = bytes(range(256)) * 2
    assert (page_header(Plane.RESIDUAL, 5, payload) + payload).hex() == GOLDEN["frames"]["page"]
    assert PREFACE.hex() == GOLDEN["frames"]["preface"]


def test_checksum_is_xxh3_with_the_place_as_seed() -> None:
    # Reference values of XXH3-64 (xxHash 0.8): the empty input with seed 0.
    assert checksum(0, 0, b"") == 0x2D06800538D394C2
    places = {(plane, page): checksum(plane, page, b"payload") for plane in (0, 1) for page in range(100)}
    assert len(set(places.values())) == 200


names = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=32)
u64 = st.integers(0, 2**64 - 1)
layouts = st.builds(
    KvLayout,
    st.integers(1, 100),
    st.integers(1, 2),
    st.integers(1, 128),
    st.integers(1, 1024),
    st.sampled_from(["bfloat16", "float16", "float32"]),
)
manifests = st.builds(
    Manifest,
    names,
    layouts,
    st.integers(1, 300_000),
    st.lists(u64, min_size=1, max_size=2).map(tuple),
    st.none() | st.integers(0, 2**32 - 1),
    st.lists(st.tuples(names, u64), max_size=16).map(tuple),
)
hellos = st.builds(
    lambda f, i, plane, both, key, wait, credit: Hello(
        f, i, plane, tuple(Plane) if both else (plane,), key, wait, credit
    ),
    st.binary(min_size=16, max_size=16),
    st.binary(min_size=16, max_size=16),
    st.sampled_from(Plane),
    st.booleans(),
    st.binary(min_size=1, max_size=256),
    st.integers(0, 2**32 - 1),
    u64,
)
messages = st.one_of(
    hellos,
    st.sets(st.integers(0, 499)).map(
        lambda held: Resume(500, sum(1 << page for page in held).to_bytes(63, "little"))
    ),
    st.builds(Credit, u64),
    st.builds(Again, st.integers(0, 2**32 - 1)),
    st.sampled_from([Done(), Cancel()]),
    manifests,
    st.builds(End, st.sampled_from(Plane), st.integers(0, 2**32 - 1), u64, u64),
    st.builds(Failure, st.sampled_from(Code), st.text(max_size=120)),
)


@given(messages)
def test_every_message_survives_the_wire(message: Message) -> None:
    frame = encode(message)
    assert parse(frame) == message
    assert len(frame) - FRAME.size <= MAX_BODY[kind_of(message)]


@given(messages, st.data())
def test_a_shortened_or_lengthened_body_is_never_something_else(
    message: Message, data: st.DataObject
) -> None:
    body = encode(message)[FRAME.size :]
    if kind_of(message) is Kind.ERROR:  # the sentence has no length of its own: the frame's is it
        return
    for changed in (body[: data.draw(st.integers(0, max(0, len(body) - 1)))], body + b"\0"):
        if changed == body:
            continue
        with pytest.raises(ProtocolError):
            decode(kind_of(message), Plane.ANCHOR, changed)


@given(st.sampled_from([kind for kind in Kind if kind is not Kind.PAGE]), st.binary(max_size=400))
def test_any_body_is_a_message_or_a_protocol_error(kind: Kind, body: bytes) -> None:
    try:
        message = decode(kind, Plane.ANCHOR, body)
    except ProtocolError as error:
        assert "\n" not in str(error)
        return
    if kind is not Kind.ERROR:  # a sentence that is not UTF-8 is shown with replacement characters
        assert encode(message)[FRAME.size :] == body


@given(messages, st.data())
def test_one_changed_byte_is_a_message_or_a_protocol_error(message: Message, data: st.DataObject) -> None:
    body = bytearray(encode(message)[FRAME.size :])
    if body:
        body[data.draw(st.integers(0, len(body) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        decode(kind_of(message), Plane.ANCHOR, bytes(body))
    except ProtocolError:
        return


def test_sentences_are_cut_at_a_character() -> None:
    long = parse(encode(Failure(Code.MALFORMED, "≠" * 1000)))
    assert isinstance(long, Failure) and long.sentence == "≠" * 170


@pytest.mark.parametrize(
    "message",
    [
        lambda: encode(Hello(b"short", b"i" * 16, Plane.ANCHOR, (Plane.ANCHOR,), b"k", 0, 1)),
        lambda: encode(Hello(b"f" * 16, b"i" * 16, Plane.ANCHOR, (Plane.RESIDUAL,), b"k", 0, 1)),
        lambda: encode(Hello(b"f" * 16, b"i" * 16, Plane.ANCHOR, (Plane.ANCHOR,), b"", 0, 1)),
        lambda: Manifest("", LAYOUT, 1, (0,)),
        lambda: Manifest("é", LAYOUT, 1, (0,)),
        lambda: Manifest("x", LAYOUT, 0, (0,)),
        lambda: Manifest("x", LAYOUT, 1, ()),
        lambda: Manifest("x", LAYOUT, 1, (-1,)),
        lambda: Manifest("x", LAYOUT, 1, (0,), 2**32),
        lambda: Manifest("x", LAYOUT, 1, (0,), None, (("s", 1),) * 17),
        lambda: Manifest("x", KvLayout(1024, 2, 1, 64, "float16"), 1 << 18, (0,)),
        lambda: page_header(Plane.ANCHOR, 0, bytes((1 << 24) + 1)),
    ],
)
def test_own_bad_input_is_refused_before_it_is_sent(message: object) -> None:
    assert callable(message)
    with pytest.raises(BadInput):
        message()


def test_lying_page_count_is_refused() -> None:
    body = bytearray(encode(MESSAGES["manifest"])[FRAME.size :])
    at = body.index(struct.pack("<II", 1000, 240)) + 4
    body[at : at + 4] = struct.pack("<I", 241)
    with pytest.raises(ProtocolError, match="241 pages do not fit"):
        decode(Kind.MANIFEST, Plane.ANCHOR, bytes(body))


def test_codes_become_the_errors_of_the_tree() -> None:
    kinds = {code: type(Failure(code, "why").error()) for code in Code}
    assert kinds[Code.VERSION] is kinds[Code.MALFORMED] is ProtocolError
    assert kinds[Code.FINGERPRINT] is kinds[Code.RESUME] is LayoutMismatch
    assert kinds[Code.CORRUPT] is PageCorrupt
    assert kinds[Code.UNKNOWN_KEY] is kinds[Code.FULL] is kinds[Code.CLOSING] is TransferLost
