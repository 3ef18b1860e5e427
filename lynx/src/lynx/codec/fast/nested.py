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
    key_values,
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
PACKED = (
    formats.INTERVALS[:, 0].astype(np.int32)
    | (formats.INTERVALS[:, 1] - formats.INTERVALS[:, 0]).astype(np.int32) << 5
)
"""First cell of each interval in bits 0 to 4, its width above: one look instead of two."""


@part
def _rule(low: Array, high: Array, channels: int, c0: int, anchor: Array, ruler: Array) -> None:
    """Lay the ruler on channels c0..: write base and cell, and leave them and 1/cell in ``ruler``.

    ``low`` and ``high`` are float32 ``[chunks, channels of this block]``. Loops are short so that each becomes
    vector code.
    """
    base, cell, per_cell = ruler[0], ruler[1], ruler[2]
    width = low.shape[1]
    for c in range(width):
        base[c] = low[0, c]
        cell[c] = high[0, c]
    for n in range(1, len(low)):
        for c in range(width):
            base[c] = min(base[c], low[n, c])
            cell[c] = max(cell[c], high[n, c])
    for c in range(width):
        base_bits = floor_bf16(base[c])
        put_u16(anchor, c0 + c, base_bits)
        base[c] = widen(base_bits)
    for c in range(width):
        cell_bits = stored_step(F32(cell[c] - base[c]), F32(CELLS))
        put_u16(anchor, channels + c0 + c, cell_bits)
        cell[c] = widen(cell_bits)
        per_cell[c] = inverse(cell[c])


@part
def _choose(low: Array, high: Array, ruler: Array, intervals: Array, scale: Array) -> None:
    """The interval of each channel's chunk, its start and 1/step."""
    base, cell, per_cell, start, per_step = ruler[0], ruler[1], ruler[2], scale[0], scale[1]
    for c in range(len(low)):
        first = min(max(I32((low[c] - base[c]) * per_cell[c]), I32(0)), I32(CELLS - 1))
        reach = I32(np.ceil(F32((high[c] - base[c]) * per_cell[c])))
        end = min(max(reach, I32(first + I32(1))), I32(CELLS))
        span = I32(end - first)
        skipped = I32(I32(first * I32(I32(2 * CELLS + 1) - first)) >> I32(1))
        intervals[c] = U8(I32(skipped + I32(span - I32(1))))
        start[c] = F32(base[c] + F32(F32(first) * cell[c]))
        per_step[c] = inverse(F32(F32(F32(span) * cell[c]) * F32(1 / 256)))


@part
def _code_row(row: Array, scale: Array, even: Array, odd: Array) -> None:
    """Full codes of one token's even and odd channels."""
    start_even, per_even, start_odd, per_odd = scale[0], scale[2], scale[1], scale[3]
    for k in range(len(even)):
        x, y = load_pair(row, k)
        even[k] = U8(min(max(I32((x - start_even[k]) * per_even[k]), I32(0)), I32(255)))
        odd[k] = U8(min(max(I32((y - start_odd[k]) * per_odd[k]), I32(0)), I32(255)))


@part
def _split_codes(even: Array, odd: Array, high: Array, low: Array) -> None:
    """Top nibbles to ``high``, low nibbles to ``low``; on bytes alone, so that every lane is at work."""
    for k in range(len(high)):
        high[k] = U8(U8(even[k] >> U8(4)) | U8(odd[k] & U8(0xF0)))
        low[k] = U8(U8(even[k] & U8(15)) | U8(odd[k] << U8(4)))


@part
def _run(rows: Array, t: int, end: int, pairs: int) -> int:
    """How many tokens from ``t`` have their residual rows one behind the other: long loops are fast ones."""
    run = 1
    while t + run < end and rows[t + run] == rows[t] + run * pairs:
        run += 1
    return run


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
    least, most = np.empty(BLOCK, keys.dtype), np.empty(BLOCK, keys.dtype)
    ruler, scale = np.empty((3, BLOCK), F32), np.empty((2, BLOCK), F32)
    parted = np.empty((4, BLOCK // 2), F32)
    even, odd = np.empty(CHUNK_TOKENS * BLOCK // 2, U8), np.empty(CHUNK_TOKENS * BLOCK // 2, U8)
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
            low, high = np.empty((chunks, c1 - c0), F32), np.empty((chunks, c1 - c0), F32)
            for n in range(chunks):
                end = min((n + 1) * CHUNK_TOKENS, tokens)
                if not extremes(keys[p], n * CHUNK_TOKENS, end, c0, c1, least, most):
                    return p
                key_values(least, low[n])
                key_values(most, high[n])
            _rule(low, high, channels, c0, anchor, ruler)
            width = k1 - k0
            for n in range(chunks):
                at = 4 * channels + n * channels
                _choose(low[n], high[n], ruler, anchor[at + c0 : at + c1], scale)
                part_pairs(scale, parted, width)
                t, end = n * CHUNK_TOKENS, min((n + 1) * CHUNK_TOKENS, tokens)
                while t < end:
                    run = _run(rows, t, end, pairs) if width == pairs else 1
                    for i in range(run):
                        row = words[p, t + i][k0 * per_pair : k1 * per_pair]
                        _code_row(row, parted, even[i * width : (i + 1) * width], odd[i * width :])
                    high_at, low_at = nibbles_at + t * pairs + k0, rows[t] + k0
                    _split_codes(even, odd, anchor[high_at : high_at + run * width], out[low_at:])
                    t += run
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
def _read_ruler(anchor: Array, channels: int, c0: int, ruler: Array) -> bool:
    """Base and cell of even channels to ``ruler[0]`` and ``[1]``, of odd ones to ``[2]`` and ``[3]``."""
    good = True
    for k in range(ruler.shape[1]):
        for odd in range(2):
            base = get_u16(anchor, c0 + 2 * k + odd)
            cell = get_u16(anchor, channels + c0 + 2 * k + odd)
            good &= is_scale(base) and is_scale(cell) and widen(cell) >= F32(0)
            ruler[2 * odd, k] = widen(base)
            ruler[2 * odd + 1, k] = widen(cell)
    return good


@part
def _read_chunk(intervals: Array, ruler: Array, packed: Array, coarse: Array, fine: Array) -> bool:
    """Middle and step of a chunk's anchor codes and full codes; False for an unknown interval."""
    worst = U8(0)
    for code in intervals:
        worst = max(worst, code)
    if worst >= INTERVAL_COUNT:
        return False
    for odd in range(2):
        for k in range(len(packed)):
            packed[k] = PACKED[intervals[2 * k + odd]]
        base, cell = ruler[2 * odd], ruler[2 * odd + 1]
        middle, wide, start, step = coarse[odd], coarse[2 + odd], fine[odd], fine[2 + odd]
        for k in range(len(packed)):
            low = F32(base[k] + F32(F32(I32(packed[k] & I32(31))) * cell[k]))
            narrow = F32(F32(F32(I32(packed[k] >> I32(5))) * cell[k]) * F32(1 / 256))
            middle[k] = F32(low + F32(narrow * F32(8)))
            wide[k] = F32(narrow * F32(16))
            start[k] = F32(low + F32(narrow * HALF))
            step[k] = narrow
    return True


@jit
def decode(
    anchors: Array,
    anchor_bytes: Array,
    rests: Array,
    rest_bytes: Array,
    words: Array,
    channels: int,
    behind: Array,
) -> int:
    """Decode pages whose payloads lie at these addresses into ``words``; a rest of -1 bytes has not arrived.

    ``behind[p]`` becomes the number of bytes behind page p's codes: its exact tokens, which are not decoded here.

    Returns:
        The first page whose payloads are impossible, or -1.
    """
    pages, tokens, row_words = words.shape
    pairs, chunks = channels // 2, -(-tokens // CHUNK_TOKENS)
    per_pair = row_words // pairs
    rows = np.empty(tokens, np.int64)
    ruler, packed = np.empty((4, BLOCK // 2), F32), np.empty(BLOCK // 2, I32)
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
        behind[p] = anchor_bytes[p] - (early_start + taken * pairs)
        if beyond or wrong_rest or behind[p] < 0:
            return p
        for c0 in range(0, channels, BLOCK):
            c1 = min(c0 + BLOCK, channels)
            k0, k1 = c0 // 2, c1 // 2
            if not _read_ruler(anchor, channels, c0, ruler[:, : k1 - k0]):
                return p
            for n in range(chunks):
                at = 4 * channels + n * channels
                intervals = anchor[at + c0 : at + c1]
                if not _read_chunk(intervals, ruler, packed[: k1 - k0], coarse, fine):
                    return p
                for t in range(n * CHUNK_TOKENS, min((n + 1) * CHUNK_TOKENS, tokens)):
                    at = nibbles_at + t * pairs
                    high = anchor[at + k0 : at + k1]
                    row = words[p, t][k0 * per_pair : k1 * per_pair]
                    if rows[t] >= 0:
                        _full_row(high, anchor[rows[t] + k0 : rows[t] + k1], fine, row)
                    elif has_rest:
                        at = (-1 - rows[t]) * pairs
                        _full_row(high, rest[at + k0 : at + k1], fine, row)
                    else:
                        _values_row(high, coarse, row)
    return -1
