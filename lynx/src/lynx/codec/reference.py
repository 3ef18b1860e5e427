"""The codecs in numpy, one page at a time, written to read like their formulas.

This is what the payload formats mean: the fast path must agree with it bit for bit. All arithmetic is float32
in the order that is written here. Where decoding adds a product the product is exact (but for ``lynx``), so
that a fused multiply-add (a GPU, another compiler) gives the same bits. Nothing here is fast.

Sources: ``lynx`` is the companding of arXiv 2607.01831 with the two corrections that make it work (scale 120,
sign of the *centred* value); ``kivi4`` follows KIVI (arXiv 2402.02750), K per channel and V per token.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lynx.codec import formats
from lynx.codec.formats import CodecName
from lynx.codec.interface import Early, Pages, Payload, Plane
from lynx.codec.pages import (
    F32,
    LIMIT,
    NUMPY_DTYPE,
    U16,
    ceil_bf16,
    check_counts,
    check_pages,
    floor_bf16,
    from_float32,
    refuse_early,
    refuse_values,
    round_bf16,
    to_float32,
    widen_bf16,
)
from lynx.errors import PageCorrupt
from lynx.layout import CHUNK_TOKENS, KvDtype, PageRef

U8 = NDArray[np.uint8]

SMALLEST_STEP = np.float32(2.0**-100)
"""Steps below this are stored as 0: a channel that flat is a constant, and its inverse would overflow."""


def stored_step(span: F32, steps: int) -> U16:
    """Bfloat16 bits of a step, rounded up so that ``steps`` of them cover ``span``."""
    step = span / np.float32(steps)
    return ceil_bf16(np.where(step < SMALLEST_STEP, np.float32(0), step))


def inverse(step: F32) -> F32:
    """``1 / step``, and 0 for a constant's step of 0."""
    return np.divide(np.float32(1), step, out=np.zeros_like(step), where=step > 0)


def per_chunk(page: F32, function: Callable[..., Any]) -> F32:
    """``function`` over the tokens of each chunk: ``[chunks, channels]``."""
    starts = range(0, len(page), CHUNK_TOKENS)
    return np.stack([function(page[start : start + CHUNK_TOKENS], axis=0) for start in starts])


def spread(per_chunk: F32, tokens: int) -> F32:
    """A chunk's values repeated for each of its tokens: ``[tokens, channels]``."""
    return np.repeat(per_chunk, CHUNK_TOKENS, axis=0)[:tokens]


def pack_nibbles(codes: U8) -> bytes:
    """4-bit codes ``[tokens, channels]``: channels 2i and 2i+1 are the low and high half of a row's byte i."""
    padded: U8 = np.pad(codes, ((0, 0), (0, codes.shape[1] % 2)))
    rows: U8 = padded[:, 0::2] | padded[:, 1::2] << np.uint8(4)
    return rows.tobytes()


class Cursor:
    """Takes arrays off the front of a payload, and nothing that is not there."""

    def __init__(self, payload: Payload) -> None:
        self.bytes = np.frombuffer(payload, np.uint8)

    def take(self, dtype: type[np.generic], *shape: int) -> NDArray[Any]:
        """The next array of this type and shape."""
        count = int(np.prod(shape)) * np.dtype(dtype).itemsize
        if count > len(self.bytes):
            raise PageCorrupt(f"payload is {count - len(self.bytes)} bytes too short; fetch the page again")
        taken, self.bytes = self.bytes[:count], self.bytes[count:]
        return taken.copy().view(dtype).reshape(shape)

    def take_scale(self, *shape: int) -> F32:
        """The next bfloat16 array, as float32."""
        scale = widen_bf16(self.take(np.uint16, *shape))
        if not np.isfinite(scale).all():
            raise PageCorrupt("payload holds a scale that is not finite; fetch the page again")
        return scale

    def take_nibbles(self, tokens: int, channels: int) -> U8:
        """The next 4-bit codes ``[tokens, channels]``, as `pack_nibbles` laid them out."""
        rows = self.take(np.uint8, tokens, -(-channels // 2))
        return np.stack([rows & 15, rows >> 4], axis=-1).reshape(tokens, 2 * rows.shape[1])[:, :channels]

    def end(self) -> None:
        """Raise PageCorrupt when bytes are left."""
        if len(self.bytes):
            raise PageCorrupt(f"payload is {len(self.bytes)} bytes too long; fetch the page again")


def pack_early(residual: U8, early: U16) -> tuple[bytes, bytes]:
    """The two ways a page's residual nibbles travel: early tokens' behind their bitmap, and all others'."""
    chosen = np.zeros(len(residual), bool)
    chosen[early] = True
    bitmap = np.packbits(chosen, bitorder="little").tobytes()
    return bitmap + pack_nibbles(residual[chosen]), pack_nibbles(residual[~chosen])


def unpack_early(
    anchor: Cursor, residual: Sequence[Payload], tokens: int, channels: int
) -> tuple[U8, NDArray[np.bool_]]:
    """Residual nibbles ``[tokens, channels]``, and for which tokens they have arrived."""
    bits = np.unpackbits(anchor.take(np.uint8, formats.bitmap_bytes(tokens)), bitorder="little")
    if bits[tokens:].any():
        raise PageCorrupt("bitmap of early tokens marks tokens beyond the page; fetch the page again")
    known = bits[:tokens].astype(bool)
    nibbles = np.zeros((tokens, channels), np.uint8)

    def fill(cursor: Cursor, where: NDArray[np.bool_]) -> None:
        nibbles[where] = cursor.take_nibbles(int(where.sum()), channels)
        cursor.end()

    fill(anchor, known)
    for payload in residual:
        fill(Cursor(payload), ~known)
        known = np.ones(tokens, bool)
    return nibbles, known


def encode_nested(page: F32, early: U16, part: int) -> tuple[bytes, ...]:
    """Asymmetric 8 bits per channel and chunk; the chunk's range is an interval on the channel's ruler."""
    del part
    low, high = per_chunk(page, np.min), per_chunk(page, np.max)
    base_bits = floor_bf16(low.min(axis=0))
    base = widen_bf16(base_bits)
    cell_bits = stored_step(high.max(axis=0) - base, formats.RULER_CELLS)
    cell = widen_bf16(cell_bits)
    first = np.clip(np.floor((low - base) * inverse(cell)), 0, formats.RULER_CELLS - 1)
    end = np.clip(np.ceil((high - base) * inverse(cell)), first + 1, formats.RULER_CELLS)
    interval = first * (2 * formats.RULER_CELLS + 1 - first) / 2 + (end - first - 1)
    start, step = base + first * cell, (end - first) * cell / np.float32(256)
    code = (page - spread(start, len(page))) * spread(inverse(step), len(page))
    code = np.clip(np.trunc(code), 0, 255).astype(np.uint8)
    early_bytes, residual = pack_early(code & 15, early)
    scales = base_bits.tobytes() + cell_bits.tobytes() + interval.astype(np.uint8).tobytes()
    return scales + pack_nibbles(code >> 4) + early_bytes, residual


def decode_nested(payloads: Sequence[Payload], tokens: int, channels: int) -> F32:
    """Full codes stand for the middle of their 256th of the range, anchor codes for that of their 16th."""
    anchor = Cursor(payloads[0])
    base, cell = anchor.take_scale(channels), anchor.take_scale(channels)
    interval = anchor.take(np.uint8, formats.chunks(tokens), channels)
    if (cell < 0).any() or (interval >= len(formats.INTERVALS)).any():
        raise PageCorrupt("payload holds a range that does not exist; fetch the page again")
    high = anchor.take_nibbles(tokens, channels)
    low, known = unpack_early(anchor, payloads[1:], tokens, channels)
    first, end = np.moveaxis(formats.INTERVALS[interval].astype(np.float32), -1, 0)
    start, step = base + first * cell, (end - first) * cell / np.float32(256)
    start, step = spread(start, tokens), spread(step, tokens)
    full = (start + step * np.float32(0.5)) + (high * 16 + low) * step
    coarse = (start + step * np.float32(8)) + high * (step * np.float32(16))
    values: F32 = np.where(known[:, None], full, coarse)
    return values


def expand(magnitude: NDArray[Any]) -> F32:
    """The inverse of the companding law ``y = 120 ln(1 + a x) / ln(1 + a)``."""
    a = formats.COMPANDING_A
    x: F32 = (np.expm1(magnitude / formats.COMPANDING_SCALE * np.log1p(a)) / a).astype(np.float32)
    return x


def companding_curve() -> F32:
    """``[121]``: the share of a chunk's peak that a companded magnitude stands for."""
    return expand(np.arange(formats.COMPANDING_SCALE + 1))


def companding_thresholds() -> F32:
    """``[120]``: the shares of the peak at which the companded magnitude, rounded, goes up by one."""
    return expand(np.arange(formats.COMPANDING_SCALE) + 0.5)


def encode_lynx(page: F32, early: U16, part: int) -> tuple[bytes, ...]:
    """Centre each chunk by its mean, divide by its peak, compand the magnitude to 0..120, keep the sign."""
    del part
    low, high = page.min(axis=0), page.max(axis=0)
    base_bits = floor_bf16(low)
    base = widen_bf16(base_bits)
    cell_bits = stored_step(high - base, formats.SHIFT_CELLS)
    cell = widen_bf16(cell_bits)
    middle = per_chunk(page - base, mean_in_order) * inverse(cell)
    mean_code = np.clip(np.trunc(middle + np.float32(0.5)), 0, 255)
    centred = page - spread(base + mean_code * cell, len(page))
    peak = per_chunk(np.abs(centred), np.max)
    peak_code = np.clip(np.ceil(peak * inverse(cell)), 0, 255)
    share = np.abs(centred) * spread(inverse(peak_code * cell), len(page))
    magnitude = np.searchsorted(companding_thresholds(), share, side="right").astype(np.uint8)
    top = (magnitude + 7) >> 4
    sign = (centred < 0).astype(np.uint8)
    early_bytes, residual = pack_early(magnitude + 7 - 16 * top, early)
    shifts = mean_code.astype(np.uint8).tobytes() + peak_code.astype(np.uint8).tobytes()
    scales = base_bits.tobytes() + cell_bits.tobytes() + shifts
    return scales + pack_nibbles(sign << 3 | top) + early_bytes, residual


def mean_in_order(values: F32, axis: int) -> F32:
    """The mean over ``axis``, summed from the first to the last: float32 sums depend on their order."""
    del axis
    total: F32 = values[0].copy()
    for row in values[1:]:
        total += row
    mean: F32 = total * np.float32(1 / len(values))
    return mean


def decode_lynx(payloads: Sequence[Payload], tokens: int, channels: int) -> F32:
    """The anchor's magnitude is 16 times its low 3 bits; the residual corrects it by -7 to 8."""
    anchor = Cursor(payloads[0])
    base, cell = anchor.take_scale(channels), anchor.take_scale(channels)
    if (cell < 0).any():
        raise PageCorrupt("payload holds a range that does not exist; fetch the page again")
    mean_code, peak_code = (anchor.take(np.uint8, formats.chunks(tokens), channels) for _ in range(2))
    high = anchor.take_nibbles(tokens, channels)
    low, known = unpack_early(anchor, payloads[1:], tokens, channels)
    correction = np.where(known[:, None], low.astype(np.int16) - 7, 0)
    magnitude = 16 * (high & 7).astype(np.int16) + correction
    if (magnitude < 0).any():
        raise PageCorrupt("payload holds a magnitude below zero; fetch the page again")
    share = companding_curve()[magnitude]
    signed: F32 = np.where(high >= 8, -share, share)
    mean: F32 = base + mean_code.astype(np.float32) * cell
    peak: F32 = peak_code.astype(np.float32) * cell
    values: F32 = spread(mean, tokens) + signed * spread(peak, tokens)
    return values


def encode_bf16(page: F32, early: U16, part: int) -> tuple[bytes, ...]:
    """The values rounded to bfloat16."""
    del early, part
    return (round_bf16(page).tobytes(),)


def decode_bf16(payloads: Sequence[Payload], tokens: int, channels: int) -> F32:
    """Inverse of `encode_bf16`."""
    cursor = Cursor(payloads[0])
    page = cursor.take_scale(tokens, channels)
    cursor.end()
    return page


def affine(groups: F32, steps: int) -> tuple[U16, U16, U8]:
    """Base and step (bfloat16 bits, over the last axis) and codes 0..steps, rounded half up."""
    base_bits = floor_bf16(groups.min(axis=-1))
    base = widen_bf16(base_bits)
    step_bits = stored_step(groups.max(axis=-1) - base, steps)
    scaled = (groups - base[..., None]) * inverse(widen_bf16(step_bits))[..., None]
    codes = np.clip(np.trunc(scaled + np.float32(0.5)), 0, steps).astype(np.uint8)
    return base_bits, step_bits, codes


def grouped(page: NDArray[Any], group: int) -> NDArray[Any]:
    """``[rows, groups, group]``; a short last group is filled with its own last channel."""
    missing = -page.shape[1] % group
    return np.pad(page, ((0, 0), (0, missing)), mode="edge").reshape(len(page), -1, group)


def per_token(page: F32, group: int, steps: int) -> tuple[bytes, U8]:
    """Scales and codes of an affine code over ``group`` channels of each token."""
    base, step, codes = affine(grouped(page, group), steps)
    return base.tobytes() + step.tobytes(), codes.reshape(len(page), -1)[:, : page.shape[1]]


def per_token_values(cursor: Cursor, group: int, codes: Callable[[], U8], tokens: int, channels: int) -> F32:
    """Inverse of `per_token`; ``codes`` takes the codes off the cursor behind the scales."""
    base, step = (cursor.take_scale(tokens, formats.groups(channels, group)) for _ in range(2))
    base, step = (np.repeat(scale, group, axis=1)[:, :channels] for scale in (base, step))
    return base + codes() * step


def encode_int8(page: F32, early: U16, part: int) -> tuple[bytes, ...]:
    """Asymmetric 8 bits per token and group of 64 channels."""
    del early, part
    scales, codes = per_token(page, formats.INT_GROUP, 255)
    return (scales + codes.tobytes(),)


def decode_int8(payloads: Sequence[Payload], tokens: int, channels: int) -> F32:
    """Inverse of `encode_int8`."""
    cursor = Cursor(payloads[0])
    page = per_token_values(
        cursor, formats.INT_GROUP, lambda: cursor.take(np.uint8, tokens, channels), tokens, channels
    )
    cursor.end()
    return page


def encode_int4(page: F32, early: U16, part: int) -> tuple[bytes, ...]:
    """Asymmetric 4 bits per token and group of 64 channels."""
    del early, part
    scales, codes = per_token(page, formats.INT_GROUP, 15)
    return (scales + pack_nibbles(codes),)


def decode_int4(payloads: Sequence[Payload], tokens: int, channels: int) -> F32:
    """Inverse of `encode_int4`."""
    cursor = Cursor(payloads[0])
    page = per_token_values(
        cursor, formats.INT_GROUP, lambda: cursor.take_nibbles(tokens, channels), tokens, channels
    )
    cursor.end()
    return page


def encode_kivi4(page: F32, early: U16, part: int) -> tuple[bytes, ...]:
    """Asymmetric 4 bits in groups of 32: along tokens for K and a latent, along channels for V."""
    del early
    if part == 1:
        scales, codes = per_token(page, formats.KIVI_GROUP, 15)
        return (scales + pack_nibbles(codes) + b"\1",)
    starts = range(0, len(page), CHUNK_TOKENS)
    chunks = [affine(page[start : start + CHUNK_TOKENS].T, 15) for start in starts]
    base, step = (b"".join(chunk[which].tobytes() for chunk in chunks) for which in (0, 1))
    return (base + step + pack_nibbles(np.concatenate([codes.T for _, _, codes in chunks])) + b"\0",)


def decode_kivi4(payloads: Sequence[Payload], tokens: int, channels: int) -> F32:
    """Inverse of `encode_kivi4`; the last byte says along which axis."""
    cursor = Cursor(payloads[0])
    axis = bytes(payloads[0])[-1:]
    if axis == b"\1":
        page = per_token_values(
            cursor, formats.KIVI_GROUP, lambda: cursor.take_nibbles(tokens, channels), tokens, channels
        )
    elif axis == b"\0":
        base, step = (spread(cursor.take_scale(formats.chunks(tokens), channels), tokens) for _ in range(2))
        page = base + cursor.take_nibbles(tokens, channels) * step
    else:
        raise PageCorrupt("payload names no axis of its scales; fetch the page again")
    cursor.take(np.uint8, 1)
    cursor.end()
    return page


def take_exact(name: CodecName, anchor: Payload, tokens: int, channels: int, dtype: KvDtype) -> Pages:
    """The exact tokens at the end of an anchor payload: all that lies behind what the page itself must have."""
    behind = 0
    shortest = formats.payload_bytes(name, tokens, channels)[0]
    if name == "nested" and len(anchor) > shortest:
        bitmap = np.frombuffer(anchor, np.uint8)[shortest - formats.bitmap_bytes(tokens) : shortest]
        early = int(np.unpackbits(bitmap, bitorder="little")[:tokens].sum())
        # If something is lacking, the page's own reader says it.
        behind = max(0, len(anchor) - formats.payload_bytes(name, tokens, channels, early)[0])
    return exact_rows(anchor, behind, tokens, channels, dtype)


def exact_rows(anchor: Payload, behind: int, tokens: int, channels: int, dtype: KvDtype) -> Pages:
    """The last ``behind`` bytes of an anchor payload as exact tokens, ``[rows, channels]``."""
    rows, rest = divmod(behind, channels * np.dtype(NUMPY_DTYPE[dtype]).itemsize)
    if rest or rows > tokens:
        raise PageCorrupt(f"payload is {behind} bytes too long; fetch the page again")
    exact: Pages = np.frombuffer(bytes(anchor[len(anchor) - behind :]), NUMPY_DTYPE[dtype]).reshape(
        rows, channels
    )
    if not (np.abs(to_float32(exact, dtype)) < LIMIT).all():
        raise PageCorrupt("payload holds an exact value that no cache holds; fetch the page again")
    return exact


EncodePage = Callable[[F32, U16, int], tuple[bytes, ...]]
DecodePage = Callable[[Sequence[Payload], int, int], F32]

PAGE_CODES: dict[CodecName, tuple[EncodePage, DecodePage]] = {
    "nested": (encode_nested, decode_nested),
    "lynx": (encode_lynx, decode_lynx),
    "bf16": (encode_bf16, decode_bf16),
    "int8": (encode_int8, decode_int8),
    "int4": (encode_int4, decode_int4),
    "kivi4": (encode_kivi4, decode_kivi4),
}


@dataclass(frozen=True, slots=True)
class ReferenceCodec:
    """A codec of this module behind the interface of all codecs."""

    name: CodecName

    @property
    def planes(self) -> tuple[Plane, ...]:
        """See `Codec.planes`."""
        return (Plane.ANCHOR, Plane.RESIDUAL) if formats.is_split(self.name) else (Plane.ANCHOR,)

    def payload_bytes(self, tokens: int, channels: int, early: int = 0, part: int = 0) -> tuple[int, ...]:
        """See `Codec.payload_bytes`."""
        return formats.payload_bytes(self.name, tokens, channels, early, part)

    def encode(
        self, pages: Pages, dtype: KvDtype, early: Early, refs: Sequence[PageRef]
    ) -> list[tuple[Payload, ...]]:
        """See `Codec.encode`."""
        count, tokens, _ = check_pages(pages, dtype)
        check_counts(count, early, refs)
        encode_page, _ = PAGE_CODES[self.name]
        planes: list[tuple[Payload, ...]] = []
        for page, indices, ref in zip(to_float32(pages, dtype), early, refs, strict=True):
            if not (np.abs(page) < LIMIT).all():
                refuse_values(page, ref)
            wide = np.asarray(indices, np.int64)
            if formats.is_split(self.name) and ((np.diff(wide) <= 0).any() or (wide >= tokens).any()):
                refuse_early(wide, tokens)
            anchor, *residual = encode_page(page, indices, ref.part)
            exact = pages[len(planes), : formats.exact_tokens(self.name, ref)].tobytes()
            planes.append((anchor + exact, *residual))
        return planes

    def decode(self, payloads: Sequence[tuple[Payload, ...]], dtype: KvDtype, out: Pages) -> None:
        """See `Codec.decode`."""
        count, tokens, channels = check_pages(out, dtype)
        check_counts(count, [np.zeros(0, np.uint16)] * len(payloads), [PageRef(0, 0, 0, 0)] * len(payloads))
        _, decode_page = PAGE_CODES[self.name]
        for index, planes in enumerate(payloads):
            if not 1 <= len(planes) <= len(self.planes):
                raise PageCorrupt(
                    f"page {index} has {len(planes)} planes where {self.name} has {len(self.planes)}"
                )
            exact = take_exact(self.name, planes[0], tokens, channels, dtype)
            cut = (planes[0][: len(planes[0]) - exact.nbytes], *planes[1:])
            out[index] = from_float32(decode_page(cut, tokens, channels), dtype)
            out[index, : len(exact)] = exact
