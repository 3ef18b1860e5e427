"""Kernels of ``lynx``: `lynx.codec.reference.encode_lynx` and its inverse.

The companding law is a table: of thresholds when encoding, of values when decoding. So compiled code and numpy
agree without having to agree on a logarithm.
"""

from typing import Any

import numpy as np

from lynx.codec import formats
from lynx.codec.fast.bits import (
    F32,
    HALF,
    I32,
    U8,
    ZERO,
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
    put_bitmap,
    put_u16,
    read_early,
    split_rows,
    store_pair,
    stored_step,
    widen,
)
from lynx.codec.reference import companding_curve, companding_thresholds
from lynx.layout import CHUNK_TOKENS

SHIFT_CELLS = formats.SHIFT_CELLS
CURVE = companding_curve()
THRESHOLDS = np.append(companding_thresholds(), np.float32(np.inf))
TABLE_CELLS = 1024
GUESS = np.searchsorted(THRESHOLDS, np.arange(TABLE_CELLS + 1) / TABLE_CELLS, side="right").astype(np.int32)
"""Magnitude at the start of each cell; no cell holds two thresholds, so one comparison mends it."""


@part
def _magnitude(share: Any) -> Any:
    guess = GUESS[min(I32(share * F32(TABLE_CELLS)), I32(TABLE_CELLS))]
    return I32(guess + 1) if share >= THRESHOLDS[guess] else I32(guess)


@part
def _ruler(low: Array, high: Array, anchor: Array, base: Array, cell: Array) -> None:
    """Write base and cell of each channel and leave them in ``base`` and ``cell``."""
    channels = len(base)
    for c in range(channels):
        least, most = low[0, c], high[0, c]
        for n in range(1, len(low)):
            least, most = min(least, low[n, c]), max(most, high[n, c])
        base_bits = floor_bf16(key_value(least))
        base[c] = widen(base_bits)
        cell_bits = stored_step(F32(key_value(most) - base[c]), F32(SHIFT_CELLS))
        cell[c] = widen(cell_bits)
        put_u16(anchor, c, base_bits)
        put_u16(anchor, channels + c, cell_bits)


@part
def _centre(
    words: Array, base: Array, cell: Array, means: Array, peaks: Array, centre: Array, per_peak: Array
) -> None:
    """Mean and peak of one chunk's tokens ``words``, as codes, as the centre and as 1/peak."""
    channels = len(base)
    total, peak = np.zeros(channels, F32), np.zeros(channels, F32)
    for t in range(len(words)):
        for k in range(channels // 2):
            x, y = load_pair(words[t], k)
            total[2 * k] += F32(x - base[2 * k])
            total[2 * k + 1] += F32(y - base[2 * k + 1])
    share = F32(1 / len(words))
    for c in range(channels):
        middle = F32(F32(total[c] * share) * inverse(cell[c]))
        code = min(max(I32(F32(middle + HALF)), I32(0)), I32(255))
        means[c] = U8(code)
        centre[c] = F32(base[c] + F32(F32(code) * cell[c]))
    for t in range(len(words)):
        for k in range(channels // 2):
            x, y = load_pair(words[t], k)
            peak[2 * k] = max(peak[2 * k], abs(F32(x - centre[2 * k])))
            peak[2 * k + 1] = max(peak[2 * k + 1], abs(F32(y - centre[2 * k + 1])))
    for c in range(channels):
        code = min(max(I32(np.ceil(F32(peak[c] * inverse(cell[c])))), I32(0)), I32(255))
        peaks[c] = U8(code)
        per_peak[c] = inverse(F32(F32(code) * cell[c]))


@part
def _code(value: Any, centre: Any, per_peak: Any) -> Any:
    """Anchor nibble in bits 4 to 7, residual nibble in bits 0 to 3."""
    centred = F32(value - centre)
    magnitude = _magnitude(F32(abs(centred) * per_peak))
    top = I32((magnitude + 7) >> 4)
    sign = I32(8) if centred < ZERO else I32(0)
    return I32(((sign | top) << 4) | (magnitude + 7 - 16 * top))


@jit
def encode(
    words: Array, keys: Array, early: Array, early_at: Array, out: Array, anchor_at: Array, rest_at: Array
) -> int:
    """As `lynx.codec.fast.nested.encode`."""
    pages, tokens, channels = keys.shape
    pairs, chunks = channels // 2, -(-tokens // CHUNK_TOKENS)
    low, high = np.empty((chunks, channels), keys.dtype), np.empty((chunks, channels), keys.dtype)
    base, cell = np.empty(channels, F32), np.empty(channels, F32)
    centre, per_peak = np.empty(channels, F32), np.empty(channels, F32)
    rows = np.empty(tokens, np.int64)
    means_at = 4 * channels
    peaks_at = means_at + chunks * channels
    nibbles_at = peaks_at + chunks * channels
    bitmap_at = nibbles_at + tokens * pairs
    for p in range(pages):
        anchor = out[anchor_at[p] :]
        chosen = early[early_at[p] : early_at[p + 1]]
        early_start = anchor_at[p] + bitmap_at + (tokens + 7) // 8
        if not split_rows(chosen, tokens, pairs, early_start, rest_at[p], rows):
            return p
        put_bitmap(anchor[bitmap_at:], chosen, tokens)
        for n in range(chunks):
            end = min((n + 1) * CHUNK_TOKENS, tokens)
            if not extremes(keys[p], n * CHUNK_TOKENS, end, 0, channels, low[n], high[n]):
                return p
        _ruler(low, high, anchor, base, cell)
        for n in range(chunks):
            first, end = n * CHUNK_TOKENS, min((n + 1) * CHUNK_TOKENS, tokens)
            means, peaks = anchor[means_at + n * channels :], anchor[peaks_at + n * channels :]
            _centre(words[p, first:end], base, cell, means, peaks, centre, per_peak)
            for t in range(first, end):
                top, rest = anchor[nibbles_at + t * pairs :], out[rows[t] :]
                for k in range(pairs):
                    x, y = load_pair(words[p, t], k)
                    even = _code(x, centre[2 * k], per_peak[2 * k])
                    odd = _code(y, centre[2 * k + 1], per_peak[2 * k + 1])
                    top[k] = U8((even >> 4) | (odd & 0xF0))
                    rest[k] = U8((even & 15) | ((odd & 15) << 4))
    return -1


@part
def _value(nibble: Any, correction: Any, centre: Any, peak: Any) -> Any:
    share = CURVE[I32(I32(nibble & 7) * 16 + correction)]
    return F32(centre + F32((-share if nibble & 8 else share) * peak))


@part
def _is_possible(high: Array, low: Array) -> bool:
    """Whether no magnitude of a row is below zero."""
    good = True
    for k in range(len(high)):
        if (high[k] & 7 == 0 and low[k] & 15 < 7) or ((high[k] >> 4) & 7 == 0 and low[k] >> 4 < 7):
            good = False
    return good


@jit
def decode(
    anchors: Array, anchor_bytes: Array, rests: Array, rest_bytes: Array, words: Array, channels: int
) -> int:
    """As `lynx.codec.fast.nested.decode`."""
    pages, tokens, _ = words.shape
    pairs, chunks = channels // 2, -(-tokens // CHUNK_TOKENS)
    rows = np.empty(tokens, np.int64)
    base, cell = np.empty(channels, F32), np.empty(channels, F32)
    centre, peak = np.empty(channels, F32), np.empty(channels, F32)
    means_at = 4 * channels
    peaks_at = means_at + chunks * channels
    nibbles_at = peaks_at + chunks * channels
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
        for c in range(channels):
            base_bits, cell_bits = get_u16(anchor, c), get_u16(anchor, channels + c)
            base[c], cell[c] = widen(base_bits), widen(cell_bits)
            if not (is_scale(base_bits) and is_scale(cell_bits) and cell[c] >= 0):
                return p
        for t in range(tokens):
            if t % CHUNK_TOKENS == 0:
                at = t // CHUNK_TOKENS * channels
                for c in range(channels):
                    centre[c] = F32(base[c] + F32(F32(anchor[means_at + at + c]) * cell[c]))
                    peak[c] = F32(F32(anchor[peaks_at + at + c]) * cell[c])
            high, row = anchor[nibbles_at + t * pairs : nibbles_at + (t + 1) * pairs], words[p, t]
            if rows[t] < 0 and not has_rest:
                for k in range(pairs):
                    even = _value(high[k] & 15, 0, centre[2 * k], peak[2 * k])
                    odd = _value(high[k] >> 4, 0, centre[2 * k + 1], peak[2 * k + 1])
                    store_pair(row, k, even, odd)
                continue
            low = anchor[rows[t] :] if rows[t] >= 0 else rest[(-1 - rows[t]) * pairs :]
            if not _is_possible(high, low):
                return p
            for k in range(pairs):
                even = _value(high[k] & 15, I32(low[k] & 15) - 7, centre[2 * k], peak[2 * k])
                odd = _value(high[k] >> 4, I32(low[k] >> 4) - 7, centre[2 * k + 1], peak[2 * k + 1])
                store_pair(row, k, even, odd)
    return -1
