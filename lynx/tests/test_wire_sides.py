"""Both ends of a connection: whole, byte by byte, with trailing bytes, under attack."""

from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lynx.codec.interface import Plane
from lynx.errors import ProtocolError
from lynx.layout import KvLayout
from lynx.wire import (
    Again,
    Cancel,
    Chunks,
    Code,
    ConsumerSide,
    Credit,
    Damaged,
    Done,
    End,
    Failure,
    Hello,
    Manifest,
    Pages,
    ProducerSide,
    Resume,
    WrongVersionError,
    page_header,
)
from lynx.wire.frames import FRAME, MAX_BODY, PREFACE, Kind, encode
from lynx.wire.intake import Intake
from lynx.wire.sides import CONSUMER, PRODUCER, fresh

LAYOUT = KvLayout(2, 2, 2, 64, "bfloat16")
MANIFEST = Manifest("nested", LAYOUT, 700, (0, 0))
HELLO = Hello(b"f" * 16, b"i" * 16, Plane.ANCHOR, tuple(Plane), b"key", 1000, 1 << 20)
NOTHING = Resume(0, b"")


def feed(side: ConsumerSide | ProducerSide, data: bytes, piece: int = 1 << 30) -> list[object]:
    events: list[object] = []
    rest = memoryview(data)
    while rest:
        space = side.space()
        count = min(len(space), len(rest), piece)
        space[:count] = rest[:count]
        events.extend(side.filled(count))
        rest = rest[count:]
    return events


def page(index: int, size: int = 200, plane: Plane = Plane.ANCHOR) -> bytes:
    payload = bytes([index]) * size
    return page_header(plane, index, payload) + payload


def asked(resume: Resume = NOTHING, hello: Hello = HELLO) -> tuple[ConsumerSide, ProducerSide]:
    consumer, producer = ConsumerSide(hello, resume), ProducerSide()
    assert feed(producer, consumer.opening()) == [hello, resume]
    return consumer, producer


def whole() -> bytes:
    _, producer = asked()
    stream = producer.send(MANIFEST)
    for index in range(MANIFEST.pages):
        producer.page_sent(len(page(index)))
        stream += page(index)
    return stream + producer.send(End(Plane.ANCHOR, MANIFEST.pages, MANIFEST.pages * 200, 9))


def pages_of(events: list[object]) -> dict[int, bytes]:
    return {i: bytes(view) for event in events if isinstance(event, Pages) for i, view in event.pages}


@pytest.mark.parametrize("piece", [1, 2, 7, 64, 1 << 30])
def test_a_transfer_reads_the_same_in_pieces_of_any_size(piece: int) -> None:
    consumer, _ = asked()
    events = feed(consumer, whole(), piece)
    assert events[0] == MANIFEST and isinstance(events[-1], End)
    assert pages_of(events) == {index: bytes([index]) * 200 for index in range(MANIFEST.pages)}
    assert list(consumer.missing()) == []


@settings(max_examples=50)
@given(st.lists(st.integers(0, 4000)))
def test_a_transfer_reads_the_same_cut_anywhere(cuts: list[int]) -> None:
    consumer, _ = asked()
    stream, events = whole(), []
    bounds = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    for start, end in pairwise(bounds):
        events += feed(consumer, stream[start:end])
    assert len(pages_of(events)) == MANIFEST.pages and isinstance(events[-1], End)


def test_trailing_bytes_after_an_error_are_refused() -> None:
    consumer, producer = asked()
    stream = producer.send(Failure(Code.FULL, "no room"))
    assert feed(consumer, stream) == [Failure(Code.FULL, "no room")]
    with pytest.raises(ProtocolError, match="closed"):
        feed(consumer, encode(MANIFEST))


def test_views_stay_as_they_were_while_more_arrives() -> None:
    chunks = Chunks(1 << 30)
    hello = Hello(b"f" * 16, b"i" * 16, Plane.ANCHOR, (Plane.ANCHOR,), b"k", 0, 1 << 40)
    big = Manifest("x", KvLayout(8, 2, 8, 64, "float32"), 1000, (0,))
    consumer = ConsumerSide(hello, NOTHING, chunks.lease)
    consumer.opening()
    feed(consumer, PREFACE + encode(big))
    kept = pages_of_views(feed(consumer, b"".join(page(i, 300_000) for i in range(20)), 65_536))
    assert chunks.free_bytes == 0
    assert all(bytes(view) == bytes([index]) * 300_000 for index, view in kept.items())
    kept.clear()
    assert chunks.free_bytes >= 4 << 20, "chunks did not come back when nobody looked at them"


def pages_of_views(events: list[object]) -> dict[int, memoryview]:
    return {i: view for event in events if isinstance(event, Pages) for i, view in event.pages}


def test_views_are_read_only() -> None:
    consumer, _ = asked()
    for view in pages_of_views(feed(consumer, whole())).values():
        assert view.readonly


def test_pool_keeps_no_more_than_it_was_told() -> None:
    chunks = Chunks(1 << 20)
    leases = [chunks.lease(100) for _ in range(5)]
    leases.append(chunks.lease(2 << 20))
    leases.clear()
    assert chunks.free_bytes == 1 << 20


def test_damaged_page_is_named_and_may_be_asked_again() -> None:
    consumer, producer = asked()
    bad = bytearray(page(3))
    bad[-1] ^= 1
    events = feed(consumer, producer.send(MANIFEST) + page(2) + bytes(bad) + page(4))
    assert events[2] == Damaged(3) and sorted(pages_of(events)) == [2, 4]
    assert 3 in set(consumer.missing())
    assert feed(producer, consumer.send(Again(3))) == [Again(3)]
    assert pages_of(feed(consumer, page(3))) == {3: bytes([3]) * 200}
    assert feed(consumer, page(3)) == [], "the second copy of a page asked again is dropped"


def test_page_without_payload_is_a_page() -> None:
    consumer, producer = asked()
    assert pages_of(feed(consumer, producer.send(MANIFEST) + page(0, size=0) + page(1))) == {
        0: b"",
        1: bytes([1]) * 200,
    }


def test_page_under_another_number_is_damaged() -> None:
    consumer, producer = asked()
    moved = bytearray(page(3))
    moved[8] = 5
    assert feed(consumer, producer.send(MANIFEST) + bytes(moved))[1] == Damaged(5)


def test_resumed_pages_must_not_come_again() -> None:
    first, producer = asked()
    feed(first, producer.send(MANIFEST) + page(0) + page(7))
    resume = first.resume_point()
    assert [index for index in range(20) if resume.holds(index)] == [0, 7]
    second, producer = asked(resume)
    assert pages_of(feed(second, producer.send(MANIFEST) + page(1))) == {1: bytes([1]) * 200}
    with pytest.raises(ProtocolError, match="came twice"):
        feed(second, page(7))


def test_class_that_the_codec_lacks_misses_nothing() -> None:
    hello = Hello(b"f" * 16, b"i" * 16, Plane.RESIDUAL, tuple(Plane), b"key", 1000, 1 << 20)
    consumer, producer = asked(hello=hello)
    one = Manifest("bf16", LAYOUT, 700, (0,))
    feed(consumer, producer.send(one) + producer.send(End(Plane.RESIDUAL, 0, 0, 0)))
    assert list(consumer.missing()) == []


def test_credit_is_kept_by_the_producer_and_checked_by_the_consumer() -> None:
    hello = Hello(b"f" * 16, b"i" * 16, Plane.ANCHOR, (Plane.ANCHOR,), b"key", 1000, 300)
    consumer, producer = asked(hello=hello)
    feed(consumer, producer.send(MANIFEST) + page(0) + page(1))
    producer.page_sent(224)
    assert producer.may_send and producer.credit_left == 76
    producer.page_sent(224)
    assert producer.credit_left == -148
    with pytest.raises(ProtocolError, match="credit"):
        feed(consumer, page(2))
    feed(producer, encode(Credit(449)))
    assert producer.may_send
    with pytest.raises(ProtocolError, match="falls"):
        feed(producer, encode(Credit(448)))


def header(kind: int, plane: int = 0, zero: int = 0, length: int = 0) -> bytes:
    return FRAME.pack(kind, plane, zero, length)


SENDING = PREFACE + encode(MANIFEST)
CONSUMER_ATTACKS: dict[str, bytes] = {
    "http": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "newline-mangled": b"\x89LYNX\r\n\x01\x00",
    "no manifest": PREFACE + page(0),
    "end before manifest": PREFACE + encode(End(Plane.ANCHOR, 0, 0, 0)),
    "two manifests": SENDING + encode(MANIFEST),
    "unknown kind": SENDING + header(99),
    "consumer's kind": SENDING + encode(Done()),
    "zero not zero": SENDING + header(Kind.PAGE, zero=1, length=100),
    "plane 2": SENDING + header(Kind.PAGE, plane=2, length=100),
    "plane on control": PREFACE + header(Kind.MANIFEST, plane=1, length=10),
    "other plane": SENDING + page(0, plane=Plane.RESIDUAL),
    "4 GiB page": SENDING + header(Kind.PAGE, length=2**32 - 1),
    "page above the layout's": SENDING + header(Kind.PAGE, length=MANIFEST.max_payload_bytes + 17),
    "page shorter than its header": SENDING + header(Kind.PAGE, length=15) + bytes(15),
    "page number out of range": SENDING + page(MANIFEST.pages),
    "page twice": SENDING + page(0) + page(0),
    "payload length lies": SENDING + page(0)[:12] + b"\x01" + page(0)[13:],
    "end lies": SENDING + page(0) + encode(End(Plane.ANCHOR, 2, 400, 0)),
    "page after end": SENDING + encode(End(Plane.ANCHOR, 0, 0, 0)) + page(0),
    "two ends": SENDING + encode(End(Plane.ANCHOR, 0, 0, 0)) * 2,
    "manifest of zeros": PREFACE + header(Kind.MANIFEST, length=40) + bytes(40),
    "error without code": PREFACE + header(Kind.ERROR, length=1) + b"\x01",
    "error of unknown code": PREFACE + header(Kind.ERROR, length=2) + b"\xff\xff",
}
OPENED = PREFACE + encode(HELLO) + encode(NOTHING)
PRODUCER_ATTACKS: dict[str, bytes] = {
    "http": b"GET / HTTP/1.1\r\n\r\n",
    "resume first": PREFACE + encode(NOTHING),
    "hello twice": PREFACE + encode(HELLO) * 2,
    "resume twice": OPENED + encode(NOTHING),
    "credit before resume": PREFACE + encode(HELLO) + encode(Credit(1 << 30)),
    "producer's kind": OPENED + encode(MANIFEST),
    "page to a producer": OPENED + page(0),
    "again before manifest": OPENED + encode(Again(0)),
    "falling credit": OPENED + encode(Credit(1)),
    "after done": OPENED + encode(Done()) + encode(Credit(1 << 30)),
    "after cancel": OPENED + encode(Cancel()) + encode(Cancel()),
    "long key": PREFACE + header(Kind.HELLO, length=MAX_BODY[Kind.HELLO] + 1),
    "key length lies": PREFACE + header(Kind.HELLO, length=52) + encode(HELLO)[8:] + b"!",
    "huge resume": PREFACE + encode(HELLO) + header(Kind.RESUME, length=MAX_BODY[Kind.RESUME] + 1),
    "resume of 2^32 pages": PREFACE + encode(HELLO) + header(Kind.RESUME, length=4) + b"\xff" * 4,
    "resume with spare bits": PREFACE + encode(HELLO) + header(Kind.RESUME, length=5) + b"\3\0\0\0\x08",
    "class 7": PREFACE + encode(HELLO)[:40] + b"\x07" + encode(HELLO)[41:],
    "wants nothing": PREFACE + encode(HELLO)[:41] + b"\x00" + encode(HELLO)[42:],
}


@pytest.mark.parametrize("name", CONSUMER_ATTACKS)
@pytest.mark.parametrize("piece", [1, 1 << 30])
def test_attacks_on_a_consumer(name: str, piece: int) -> None:
    consumer, _ = asked()
    with pytest.raises(ProtocolError) as caught:
        feed(consumer, CONSUMER_ATTACKS[name], piece)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", PRODUCER_ATTACKS)
@pytest.mark.parametrize("piece", [1, 1 << 30])
def test_attacks_on_a_producer(name: str, piece: int) -> None:
    producer = ProducerSide()
    with pytest.raises(ProtocolError) as caught:
        feed(producer, PRODUCER_ATTACKS[name], piece)
    assert "\n" not in str(caught.value)


def test_again_out_of_range() -> None:
    _, producer = asked()
    producer.send(MANIFEST)
    with pytest.raises(ProtocolError, match="never offered"):
        feed(producer, encode(Again(MANIFEST.pages)))


@pytest.mark.parametrize("side", [lambda: asked()[0], ProducerSide])
def test_other_version_is_named(side: Callable[[], ConsumerSide | ProducerSide]) -> None:
    with pytest.raises(WrongVersionError, match="version is 2 there, 1 here"):
        feed(side(), PREFACE[:6] + b"\x02\x00")


@settings(max_examples=200)
@given(st.binary(max_size=300), st.sampled_from([b"", PREFACE, SENDING, OPENED]), st.integers(1, 400))
def test_garbage_costs_a_bounded_buffer(garbage: bytes, start: bytes, piece: int) -> None:
    for side in (asked()[0], ProducerSide()):
        with suppress(ProtocolError):
            feed(side, start + garbage, piece)
        assert side.buffered_bytes <= (1 << 20) + MAX_BODY[Kind.PAGE] + FRAME.size


def test_a_liar_makes_a_producer_hold_one_frame_at_most() -> None:
    producer = ProducerSide()
    feed(producer, PREFACE + encode(HELLO) + header(Kind.RESUME, length=MAX_BODY[Kind.RESUME]) + bytes(1000))
    assert producer.buffered_bytes <= MAX_BODY[Kind.RESUME] + FRAME.size


def test_tables_name_every_kind_and_leave_closed_for_good() -> None:
    for table in (CONSUMER, PRODUCER):
        assert "closed" not in {state for state, _ in table}
        reached = set(table.values())
        assert {state for state, _ in table} - reached <= {"opening", "silent"}
    assert {kind for _, kind in {**CONSUMER, **PRODUCER}} == set(Kind)


@pytest.mark.parametrize("state", ["silent", "opening"])
def test_own_order_is_checked_too(state: str) -> None:
    if state == "silent":
        with pytest.raises(ProtocolError, match="asked nothing"):
            ProducerSide().send(MANIFEST)
    else:
        with pytest.raises(ProtocolError, match="opening"):
            ConsumerSide(HELLO, NOTHING).send(Done())


def test_intake_hands_out_space_that_is_never_empty() -> None:
    intake = Intake({Kind.DONE}, 16, fresh)
    for byte in PREFACE + encode(Done()) * 50:
        space = intake.space()
        assert len(space) > 0
        space[0] = byte
        list(intake.filled(1))
    assert intake.pending_bytes == 0 and intake.capacity_bytes == 16
