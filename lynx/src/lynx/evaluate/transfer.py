"""One prompt's KV through a codec, without a network: payloads made, counted, and decoded at each level."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lynx.codec import Codec, Payload
from lynx.layout import PAGE_TOKENS, KvLayout, PageRef
from lynx.wire.frames import PAGE


@dataclass(frozen=True, slots=True)
class Level:
    """The KV that a decode instance holds at one level.

    Args:
        kv: ``[layers, parts, tokens, channels]`` float32.
        bits: bits per element received so far, page headers and scales included.
    """

    kv: NDArray[np.float32]
    bits: float


def transfer(
    codec: Codec, layout: KvLayout, kv: NDArray[np.uint16], early: Sequence[NDArray[np.int64]]
) -> list[Level]:
    """Encode and decode all pages.

    Args:
        codec: any.
        layout: shape of the cache; its dtype is bfloat16.
        kv: ``[layers, parts, tokens, channels]``, bfloat16 bits.
        early: for each layer the tokens whose residual travels in the anchor.

    Returns:
        The anchor level, then for split codecs the full level.
    """
    tokens = kv.shape[2]
    outs = [np.empty(kv.shape, np.uint16) for _ in codec.planes]
    sizes = np.zeros(len(codec.planes))
    for refs in _batches(layout, tokens):
        pages = np.stack([_page(kv, ref) for ref in refs])
        payloads = codec.encode(pages, layout.dtype, [_within(early[ref.layer], ref) for ref in refs], refs)
        for plane, out in enumerate(outs):
            sizes[plane] += sum(len(page[plane]) + PAGE.size for page in payloads)
            _decode(codec, layout, [page[: plane + 1] for page in payloads], refs, out)
    bits = np.cumsum(sizes) * 8 / kv.size
    return [Level(_widened(out), float(sum_)) for out, sum_ in zip(outs, bits, strict=True)]


def _batches(layout: KvLayout, tokens: int) -> Iterator[list[PageRef]]:
    """Pages that share first token and count: what a codec takes at once."""
    for _, refs in groupby(layout.pages(tokens), key=lambda ref: ref.first_token):
        yield list(refs)


def _page(kv: NDArray[Any], ref: PageRef) -> NDArray[Any]:
    page: NDArray[Any] = kv[ref.layer, ref.part, ref.first_token : ref.first_token + ref.tokens]
    return page


def _within(early: NDArray[np.int64], ref: PageRef) -> NDArray[np.uint16]:
    mine = early[early // PAGE_TOKENS == ref.first_token // PAGE_TOKENS] - ref.first_token
    return np.asarray(mine, np.uint16)


def _decode(
    codec: Codec,
    layout: KvLayout,
    payloads: Sequence[tuple[Payload, ...]],
    refs: Sequence[PageRef],
    out: NDArray[np.uint16],
) -> None:
    pages = np.empty((len(refs), refs[0].tokens, out.shape[3]), np.uint16)
    codec.decode(payloads, layout.dtype, pages)
    for page, ref in zip(pages, refs, strict=True):
        _page(out, ref)[:] = page


def _widened(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
