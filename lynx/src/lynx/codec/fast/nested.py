"""Kernels of ``nested``: `lynx.codec.reference.encode_nested` and its inverse, fused into one pass."""

import numpy as np

from lynx.codec import formats
from lynx.codec.fast.bits import (
    BLOCK,
    F32,
    HALF,
    I32,
    U8,
    Array,
    bytes_at,
    extremes,
    floor_bf16,
    get_u16,
    inverse,
    is_scale,
    jit,
    key_value,
    load_pair,
    part,
    part_pairs,
    put_bitmap,
    put_u16,
    read_early,
    split_rows,
    store_pair,
    stored_step,
    widen,
)
from lynx.layout import CHUNK_TOKENS

CELLS = formats.RULER_CELLS
INTERVAL_COUNT = len(formats.INTERVALS)
FIRST = formats.INTERVALS[:, 0].astype(np.float32)
WIDTH = (formats.INTERVALS[:, 1] - formats.INTERVALS[:, 0]).astype(np.float32)


@part
def _rule(
    low: Array, high: Array, chunks: int, channels: int, c0: int, c1: int, anchor: Array, scales: Array
) -> None:
    """Lay the ruler on each channel c0..c1: write base, cell and intervals, and leave start and 1/step."""
    base, cell, per_cell = np.empty(c1 - c0, F32), np.empty(c1 - c0, F32), np.empty(c1 - c0, F32)
    for c in range(c1 - c0):
        least, most = low[0, c], high[0, c]
        for n in range(1, chunks):
            least, most = min(least, low[n, c]), max(most, high[n, c])
        base_bits = floor_bf16(key_value(least))
        base[c] = widen(base_bits)
        cell_bits = stored_step(F32(key_value(most) - base[c]), F32(CELLS))
        cell[c] = widen(cell_bits)
        per_cell[c] = inverse(cell[c])
        put_u16(anchor, c0 + c, base_bits)
        put_u16(anchor, channels + c0 + c, cell_bits)
    for n in range(chunks):
        intervals = anchor[4 * channels + n * channels + c0 :]
        for c in range(c1 - c0):
            first = min(max(I32((key_value(low[n, c]) - base[c]) * per_cell[c]), I32(0)), I32(CELLS - 1))
            reach = I32(np.ceil(F32((key_value(high[n, c]) - base[c]) * per_cell[c])))
            end = I32(min(max(reach, I32(first + I32(1))), I32(CELLS)))
            width = I32(end - first)
            skipped = I32(I32(first * I32(I32(2 * CELLS + 1) - first)) >> I32(1))
            intervals[c] = U8(I32(skipped + I32(width - I32(1))))
            step = F32(F32(width) * cell[c]) * F32(1 / 256)
            scales[n, 0, c] = F32(base[c] + F32(first) * cell[c])
            scales[n, 1, c] = inverse(step)


@part
def _code_row(row: Array, scale: Array, high: Array, low: Array) -> None:
    """Codes of one token: top nibbles to ``high``, low nibbles to ``low``."""
    start_even, per_even, start_odd, per_odd = scale[0], scale[2], scale[1], scale[3]
    for k in range(len(high)):
        x, y = load_pair(row, k)
        even = min(max(I32((x - start_even[k]) * per_even[k]), I32(0)), I32(255))
        odd = min(max(I32((y - start_odd[k]) * per_odd[k]), I32(0)), I32(255))
        high[k] = U8(I32(I32(even >> I32(4)) | I32(odd & I32(0xF0))))
        low[k] = U8(I32(I32(even & I32(15)) | I32(odd << I32(4))))


@jit
def encode(
    words: Array, keys: Array, early: Array, early_at: Array, out: Array, anchor_at: Array, rest_at: Array
) -> int:
    """Encode pages into ``out``: anchors at ``anchor_at``, residuals at ``rest_at``.

    ``early[early_at[p]:early_at[p + 1]]`` are page p's early tokens.

    Returns:
        The first page that cannot be encoded, or -1.
    """
    pages, tokens, channels = keys.shape
    pairs, chunks = channels // 2, -(-tokens // CHUNK_TOKENS)
    per_pair = words.shape[2] // pairs
    low, high = np.empty((chunks, BLOCK), keys.dtype), np.empty((chunks, BLOCK), keys.dtype)
    scales, parted = np.empty((chunks, 2, BLOCK), F32), np.empty((4, BLOCK // 2), F32)
    rows = np.empty(tokens, np.int64)
    nibbles_at = 4 * channels + chunks * channels
    bitmap_at = nibbles_at + tokens * pairs
    for p in range(pages):
        anchor = out[anchor_at[p] :]
        chosen = early[early_at[p] : early_at[p + 1]]
        early_start = anchor_at[p] + bitmap_at + (tokens + 7) // 8
        if not split_rows(chosen, tokens, pairs, early_start, rest_at[p], rows):
            return p
        put_bitmap(anchor[bitmap_at:], chosen, tokens)
        for c0 in range(0, channels, BLOCK):
            c1 = min(c0 + BLOCK, channels)
            k0, k1 = c0 // 2, c1 // 2
            for n in range(chunks):
                end = min((n + 1) * CHUNK_TOKENS, tokens)
                if not extremes(keys[p], n * CHUNK_TOKENS, end, c0, c1, low[n], high[n]):
                    return p
            _rule(low, high, chunks, channels, c0, c1, anchor, scales)
            for n in range(chunks):
                part_pairs(scales[n], parted, k1 - k0)
                for t in range(n * CHUNK_TOKENS, min((n + 1) * CHUNK_TOKENS, tokens)):
                    at = nibbles_at + t * pairs
                    row = words[p, t, k0 * per_pair : k1 * per_pair]
                    _code_row(row, parted, anchor[at + k0 : at + k1], out[rows[t] + k0 : rows[t] + k1])
    return -1


@part
def _values_row(high: Array, scale: Array, row: Array) -> None:
    """Values of one token from its anchor codes."""
    middle_even, wide_even, middle_odd, wide_odd = scale[0], scale[2], scale[1], scale[3]
    for k in range(len(high)):
        code = I32(high[k])
        even = F32(middle_even[k] + F32(I32(code & I32(15))) * wide_even[k])
        odd = F32(middle_odd[k] + F32(I32(code >> I32(4))) * wide_odd[k])
        store_pair(row, k, even, odd)


@part
def _full_row(high: Array, low: Array, scale: Array, row: Array) -> None:
    """Values of one token from its full codes."""
    start_even, step_even, start_odd, step_odd = scale[0], scale[2], scale[1], scale[3]
    for k in range(len(high)):
        top, rest = I32(high[k]), I32(low[k])
        even = I32(I32(I32(top & I32(15)) << I32(4)) | I32(rest & I32(15)))
        odd = I32(I32(top & I32(0xF0)) | I32(rest >> I32(4)))
        store_pair(
            row,
            k,
            F32(start_even[k] + F32(even) * step_even[k]),
            F32(start_odd[k] + F32(odd) * step_odd[k]),
        )


@part
def _scales(
    anchor: Array, n: int, channels: int, c0: int, c1: int, base: Array, cell: Array, scales: Array
) -> bool:
    """Middle and step of anchor codes, then of full codes, for chunk n; False for an unknown interval."""
    intervals = anchor[4 * channels + n * channels :]
    good = True
    first, width = scales[4], scales[5]
    for c in range(c1 - c0):
        code = intervals[c0 + c]
        if code >= INTERVAL_COUNT:
            good = False
            code = U8(0)
        first[c] = FIRST[code]
        width[c] = WIDTH[code]
    for c in range(c1 - c0):
        start = F32(base[c] + first[c] * cell[c])
        step = F32(F32(width[c] * cell[c]) * F32(1 / 256))
        scales[0, c] = F32(start + step * F32(8))
        scales[1, c] = F32(step * F32(16))
        scales[2, c] = F32(start + step * HALF)
        scales[3, c] = step
    return good


@jit
def decode(
    anchors: Array, anchor_bytes: Array, rests: Array, rest_bytes: Array, words: Array, channels: int
) -> int:
    """Decode pages whose payloads lie at these addresses into ``words``; a rest of -1 bytes has not arrived.

    Returns:
        The first page whose payloads are impossible, or -1.
    """
    pages, tokens, row_words = words.shape
    pairs, chunks = channels // 2, -(-tokens // CHUNK_TOKENS)
    per_pair = row_words // pairs
    rows = np.empty(tokens, np.int64)
    base, cell = np.empty(BLOCK, F32), np.empty(BLOCK, F32)
    scales = np.empty((6, BLOCK), F32)
    coarse, fine = np.empty((4, BLOCK // 2), F32), np.empty((4, BLOCK // 2), F32)
    nibbles_at = 4 * channels + chunks * channels
    bitmap_at = nibbles_at + tokens * pairs
    early_start = bitmap_at + (tokens + 7) // 8
    for p in range(pages):
        if anchor_bytes[p] < early_start:
            return p
        anchor, rest = bytes_at(anchors[p], anchor_bytes[p]), bytes_at(rests[p], max(0, rest_bytes[p]))
        has_rest = rest_bytes[p] >= 0
        taken = read_early(anchor[bitmap_at:], tokens, pairs, early_start, rows)
        beyond = tokens & 7 and anchor[early_start - 1] >> (tokens & 7)
        wrong_rest = has_rest and rest_bytes[p] != (tokens - taken) * pairs
        if beyond or wrong_rest or anchor_bytes[p] != early_start + taken * pairs:
            return p
        for c0 in range(0, channels, BLOCK):
            c1 = min(c0 + BLOCK, channels)
            k0, k1 = c0 // 2, c1 // 2
            for c in range(c1 - c0):
                base_bits, cell_bits = get_u16(anchor, c0 + c), get_u16(anchor, channels + c0 + c)
                base[c], cell[c] = widen(base_bits), widen(cell_bits)
                if not (is_scale(base_bits) and is_scale(cell_bits) and cell[c] >= 0):
                    return p
            for n in range(chunks):
                if not _scales(anchor, n, channels, c0, c1, base, cell, scales):
                    return p
                part_pairs(scales[0:2], coarse, k1 - k0)
                part_pairs(scales[2:4], fine, k1 - k0)
                for t in range(n * CHUNK_TOKENS, min((n + 1) * CHUNK_TOKENS, tokens)):
                    at = nibbles_at + t * pairs
                    high = anchor[at + k0 : at + k1]
                    row = words[p, t, k0 * per_pair : k1 * per_pair]
                    if rows[t] >= 0:
                        _full_row(high, anchor[rows[t] + k0 : rows[t] + k1], fine, row)
                    elif has_rest:
                        at = (-1 - rows[t]) * pairs
                        _full_row(high, rest[at + k0 : at + k1], fine, row)
                    else:
                        _values_row(high, coarse, row)
    return -1
