"""The fast codecs against the numpy reference: bit for bit, on every shape, type, value and damaged payload."""

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lynx import codec
from lynx.codec.formats import CODEC_NAMES, exact_tokens
from lynx.codec.pages import NUMPY_DTYPE, from_float32, to_float32
from lynx.codec.reference import ReferenceCodec
from lynx.errors import BadInput, PageCorrupt
from lynx.layout import PageRef

CHANNELS = [1, 2, 63, 64, 65, 128, 192, 256, 576]
"""One, odd ones, head sizes 64 to 256, several heads in one, MLA's 512 + 64."""

EXTREMES = np.array(
    [0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45, 1e-38, 3.4e4, -3.4e4, 2.0**-101, 2.0**-99, 1.0009765], np.float32
)


@st.composite
def batches(draw, dtypes=tuple(NUMPY_DTYPE)):
    """Pages of one batch, and for each its early tokens and its place."""
    dtype = draw(st.sampled_from(dtypes))
    count, tokens = draw(st.integers(1, 3)), draw(st.sampled_from([1, 2, 31, 32, 33, 63, 64]))
    channels = draw(st.sampled_from(CHANNELS))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    values = random.normal(size=(count, tokens, channels)) * np.exp(random.normal(size=channels) * 3)
    values = (values + random.normal(size=channels) * 10).astype(np.float32)
    match draw(st.sampled_from(["plain", "constant", "extremes", "huge"])):
        case "constant":
            values[..., ::2] = values[:, :1, ::2]
        case "extremes":
            values[...] = random.choice(EXTREMES, values.shape)
        case "huge" if dtype != "float16":
            values *= np.float32(2.0**100)
    values = np.clip(values, -6e4, 6e4) if dtype == "float16" else values
    early = [
        np.flatnonzero(random.random(tokens) < draw(st.sampled_from([0, 0.1, 1]))).astype(np.uint16)
        for _ in range(count)
    ]
    first = draw(st.sampled_from([0, 256]))
    refs = [PageRef(layer, draw(st.integers(0, 1)), first, tokens) for layer in range(count)]
    return from_float32(values, dtype), dtype, early, refs


def both(name):
    return codec.by_name(name), ReferenceCodec(name)


@pytest.mark.parametrize("name", CODEC_NAMES)
@settings(deadline=None, max_examples=40)
@given(batch=batches())
def test_payloads_and_values_are_the_references(name, batch):
    fast, reference = both(name)
    pages, dtype, early, refs = batch
    ours, theirs = fast.encode(pages, dtype, early, refs), reference.encode(pages, dtype, early, refs)
    assert [tuple(map(bytes, page)) for page in ours] == [tuple(map(bytes, page)) for page in theirs]
    for page, ref, some in zip(ours, refs, early, strict=True):
        anchor, *residual = fast.payload_bytes(pages.shape[1], pages.shape[2], len(some), ref.part)
        exact = exact_tokens(name, ref) * pages.shape[2] * pages.itemsize
        assert [len(payload) for payload in page] == [anchor + exact, *residual]
    for planes in range(1, len(fast.planes) + 1):
        cut = [page[:planes] for page in ours]
        mine, his = np.empty_like(pages), np.empty_like(pages)
        fast.decode(cut, dtype, mine)
        reference.decode(cut, dtype, his)
        assert mine.tobytes() == his.tobytes()


@settings(deadline=None, max_examples=40)
@given(batch=batches(dtypes=("float32",)))
def test_nested_is_within_a_bin_and_early_tokens_need_no_residual(batch):
    fast = codec.by_name("nested")
    pages, dtype, early, refs = batch
    payloads = fast.encode(pages, dtype, early, refs)
    full, anchor = np.empty_like(pages), np.empty_like(pages)
    fast.decode(payloads, dtype, full)
    fast.decode([page[:1] for page in payloads], dtype, anchor)
    values = to_float32(pages, dtype)
    # The ruler of a channel is at most its range rounded outwards; a chunk takes whole cells of it.
    span = (values.max(axis=1) - values.min(axis=1))[:, None] * np.float32(1.2) + np.abs(
        values
    ).max() * np.float32(0.02)
    assert (np.abs(full - values) <= span / 256 + np.abs(values) * 1e-6 + 2.0**-99).all()
    assert (np.abs(anchor - values) <= span / 16 + np.abs(values) * 1e-6 + 2.0**-99).all()
    for page, some in enumerate(early):
        assert (anchor[page, some] == full[page, some]).all()


@settings(deadline=None, max_examples=40)
@given(batch=batches())
def test_the_first_tokens_of_a_sequence_arrive_as_they_are(batch):
    fast = codec.by_name("nested")
    pages, dtype, early, refs = batch
    payloads = fast.encode(pages, dtype, early, refs)
    for planes in (1, 2):
        out = np.empty_like(pages)
        fast.decode([page[:planes] for page in payloads], dtype, out)
        for page, ref in enumerate(refs):
            exact = exact_tokens("nested", ref)
            assert exact == (0 if ref.first_token else min(4, ref.tokens))
            assert out[page, :exact].tobytes() == pages[page, :exact].tobytes()


def test_exact_values_that_no_cache_holds_are_refused():
    for coder in both("nested"):
        (planes,) = coder.encode(
            np.ones((1, 64, 64), np.float32), "float32", [np.zeros(0, np.uint16)], [PageRef(0, 0, 0, 64)]
        )
        anchor = bytearray(planes[0])
        anchor[-4:] = np.float32(np.nan).tobytes()
        with pytest.raises(PageCorrupt, match="exact value"):
            coder.decode([(bytes(anchor), *planes[1:])], "float32", np.zeros((1, 64, 64), np.float32))


@pytest.mark.parametrize("name", CODEC_NAMES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 2.0**126])
def test_what_no_cache_holds_is_refused_with_its_place(name, value):
    pages = np.zeros((2, 5, 64), np.float32)
    pages[1, 3, 7] = value
    refs = [PageRef(4, 0, 64, 5), PageRef(9, 1, 128, 5)]
    for coder in both(name):
        with pytest.raises(BadInput, match=r"layer 9 part V token 131 channel 7 holds"):
            coder.encode(pages, "float32", [np.zeros(0, np.uint16)] * 2, refs)


@pytest.mark.parametrize("name", CODEC_NAMES)
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_damaged_payloads_are_refused_or_decoded_as_the_reference_does(name, data):
    """Whatever a peer sends: never a crash, never another value than the reference's."""
    fast, reference = both(name)
    pages, dtype, early, refs = data.draw(batches(dtypes=("float32", "bfloat16")))
    payloads = [list(map(bytearray, page)) for page in fast.encode(pages, dtype, early, refs)]
    victim = data.draw(st.sampled_from(data.draw(st.sampled_from(payloads))))
    match data.draw(st.sampled_from(["cut", "grow", "flip", "fill"])):
        case "cut" if victim:
            del victim[data.draw(st.integers(0, len(victim) - 1)) :]
        case "flip" if victim:
            for _ in range(3):
                victim[data.draw(st.integers(0, len(victim) - 1))] ^= data.draw(st.integers(1, 255))
        case "fill":
            victim[:] = b"\xff" * len(victim)
        case _:
            victim += b"\0"
    given_ = [tuple(map(bytes, page)) for page in payloads]
    mine, his = np.zeros_like(pages), np.zeros_like(pages)
    try:
        with np.errstate(all="ignore"):
            reference.decode(given_, dtype, his)
    except PageCorrupt:
        with pytest.raises(PageCorrupt):
            fast.decode(given_, dtype, mine)
    else:
        fast.decode(given_, dtype, mine)
        assert mine.tobytes() == his.tobytes()


@pytest.mark.parametrize("bad", [[3, 3], [2, 1], [64], [70000]])
def test_early_tokens_out_of_order_are_refused(bad):
    pages = np.zeros((1, 64, 64), np.float32)
    for coder in both("nested"):
        with pytest.raises(BadInput, match="early tokens"):
            coder.encode(pages, "float32", [np.array(bad, np.int64)], [PageRef(0, 0, 0, 64)])


def test_threads_change_nothing():
    random = np.random.default_rng(5)
    pages = random.normal(size=(40, 64, 192)).astype(np.float32)
    early, refs = [np.array([0, 9], np.uint16)] * 40, [PageRef(0, 0, 0, 64)] * 40
    one, four = codec.by_name("nested"), codec.by_name("nested", 4)
    assert one.encode(pages, "float32", early, refs) == four.encode(pages, "float32", early, refs)


GOLDEN = {
    "nested": "bbbad0a85d6964c9",
    "lynx": "881083e62684487e",
    "bf16": "4922f305fe9ddc14",
    "int8": "ef0a7cf96c7a51a5",
    "int4": "bedc8f7ffdddf562",
    "kivi4": "d032bb018830918a",
}
"""Digest of the payloads of one fixed batch: a change here is a change of the wire, and needs a new version of it."""


@pytest.mark.parametrize("name", CODEC_NAMES)
def test_formats_do_not_change_unnoticed(name):
    at = np.arange(2 * 33 * 64, dtype=np.int64).reshape(2, 33, 64)
    pages = ((at * 7919 % 1009).astype(np.float32) - 500) / 64
    early, refs = [np.array([0, 32], np.uint16)] * 2, [PageRef(0, part, 0, 33) for part in range(2)]
    payloads = codec.by_name(name).encode(pages, "float32", early, refs)
    digest = hashlib.blake2b(b"".join(bytes(p) for page in payloads for p in page), digest_size=8)
    assert digest.hexdigest() == GOLDEN[name]


def test_an_unknown_codec_is_refused_with_the_names_that_would_do():
    with pytest.raises(BadInput, match="codec is 'zip'; use one of nested"):
        codec.by_name("zip")
