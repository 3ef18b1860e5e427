"""What every codec does to pages before and after its own arithmetic: check them, widen them, narrow them.

Shared by the reference and the fast path, so that both refuse the same input in the same words. May not know
any payload format.
"""

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from lynx.codec.interface import Early, Pages
from lynx.errors import BadInput
from lynx.layout import PAGE_TOKENS, KvDtype, PageRef

NUMPY_DTYPE: dict[KvDtype, type[np.generic]] = {
    "bfloat16": np.uint16,
    "float16": np.float16,
    "float32": np.float32,
}

LIMIT = np.float32(2.0**126)
"""Magnitudes from here on are refused like Inf, so that the range of a channel stays finite."""

FLOAT16_MAX = np.float32(65504)

F32 = NDArray[np.float32]
U16 = NDArray[np.uint16]


def check_pages(pages: Pages, dtype: KvDtype) -> tuple[int, int, int]:
    """Pages, tokens and channels of a batch.

    Raises:
        BadInput: the array is not what `Pages` promises.
    """
    if dtype not in NUMPY_DTYPE:
        raise BadInput(f"dtype is {dtype!r}; use one of {', '.join(NUMPY_DTYPE)}")
    if pages.ndim != 3 or not 1 <= pages.shape[1] <= PAGE_TOKENS or pages.shape[2] < 1:
        raise BadInput(
            f"pages have shape {pages.shape}; they must be [pages, 1 to {PAGE_TOKENS} tokens, channels]"
        )
    if pages.dtype != NUMPY_DTYPE[dtype]:
        raise BadInput(
            f"pages hold {pages.dtype} where {dtype} is declared; pass {np.dtype(NUMPY_DTYPE[dtype])}"
        )
    if not pages.flags.c_contiguous:
        raise BadInput("pages are not C-contiguous; pass numpy.ascontiguousarray of them")
    count, tokens, channels = pages.shape
    return count, tokens, channels


def check_counts(pages: int, early: Early, refs: Sequence[PageRef]) -> None:
    """Raise BadInput unless ``early`` and ``refs`` have one entry for each page."""
    for field, count in (("early", len(early)), ("refs", len(refs))):
        if count != pages:
            raise BadInput(f"{field} has {count} entries for {pages} pages; pass one for each page")


def refuse_early(indices: NDArray[Any], tokens: int) -> NoReturn:
    """Raise BadInput for a list of early tokens that is not strictly increasing within the page."""
    raise BadInput(
        f"early tokens {indices[:8].tolist()}... of a page of {tokens} tokens are not strictly increasing "
        f"indices below {tokens}; sort them and drop doubles"
    )


def refuse_values(page: F32, ref: PageRef) -> NoReturn:
    """Raise BadInput that names the first unusable value of ``page``, float32 ``[tokens, channels]``."""
    token, channel = np.argwhere(~(np.abs(page) < LIMIT))[0]
    part = "K" if ref.part == 0 else "V"
    raise BadInput(
        f"layer {ref.layer} part {part} token {ref.first_token + int(token)} channel {int(channel)} holds "
        f"{page[token, channel]}; a KV cache must be finite and below 2**126, so look for the fault upstream"
    )


def widen_bf16(bits: U16) -> F32:
    """The float32 values that bfloat16 bits stand for."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def round_bf16(values: F32) -> U16:
    """Bfloat16 bits nearest to finite float32 values, ties to even."""
    bits = values.view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return ((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)).astype(np.uint16)


def floor_bf16(values: F32) -> U16:
    """Bits of the greatest bfloat16 that is not above the value; zero has no sign."""
    bits = (values + np.float32(0)).view(np.uint32)
    low = (bits & np.uint32(0xFFFF)) != 0
    down = (bits >> np.uint32(31)).astype(bool) & low
    floored: U16 = ((bits >> np.uint32(16)) + down).astype(np.uint16)
    return floored


def ceil_bf16(values: F32) -> U16:
    """Bits of the least bfloat16 that is not below the value, for values that are not negative."""
    bits = values.view(np.uint32)
    return ((bits + np.uint32(0xFFFF)) >> np.uint32(16)).astype(np.uint16)


def to_float32(pages: Pages, dtype: KvDtype) -> F32:
    """The values of ``pages`` as float32; no value changes."""
    if dtype == "bfloat16":
        return widen_bf16(pages)
    values: F32 = pages.astype(np.float32)
    return values


def from_float32(values: F32, dtype: KvDtype) -> Pages:
    """``values`` rounded to the nearest of ``dtype``; float16 saturates.

    A bfloat16 tie goes away from zero: half the instructions of ties to even, and a decoded value is the middle
    of a code's bin, to which a tie means nothing.
    """
    match dtype:
        case "bfloat16":
            return ((values.view(np.uint32) + np.uint32(0x8000)) >> np.uint32(16)).astype(np.uint16)
        case "float16":
            return np.clip(values, -FLOAT16_MAX, FLOAT16_MAX).astype(np.float16)
        case "float32":
            return values
