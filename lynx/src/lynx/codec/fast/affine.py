"""Kernels of the codecs with one plane: ``bf16``, ``int8``, ``int4`` and ``kivi4``.

All share two signatures: ``encode(words, keys, parts, out, at)`` writes page p at ``at[p]`` of ``out``;
``decode(addresses, lengths, words, channels)`` reads pages at addresses. Both return the first page that is
impossible, or -1.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from lynx.codec import formats
from lynx.codec.fast.bits import (
    F32,
    HALF,
    I32,
    U8,
    U32,
    Array,
    bytes_at,
    extremes,
    floor_bf16,
    get_u16,
    halves_at,
    inverse,
    is_scale,
    is_usable,
    jit,
    key_value,
    load_pair,
    order,
    part,
    put_u16,
    store_pair,
    stored_step,
    widen,
)
from lynx.codec.formats import CodecName
from lynx.layout import CHUNK_TOKENS

INT_GROUP, KIVI_GROUP = formats.INT_GROUP, formats.KIVI_GROUP


@part
def _put_scale(least: Any, most: Any, steps: int, bases: Array, widths: Array, index: int) -> Any:
    """Write base and step that cover least..most (keys); returns base and 1/step."""
    base_bits = floor_bf16(key_value(least))
    base = widen(base_bits)
    step_bits = stored_step(F32(key_value(most) - base), F32(steps))
    put_u16(bases, index, base_bits)
    put_u16(widths, index, step_bits)
    return base, inverse(widen(step_bits))


@part
def _code(value: Any, base: Any, per_step: Any, steps: int) -> Any:
    return min(max(I32(F32(F32(F32(value - base) * per_step) + HALF)), I32(0)), I32(steps))


@part
def _encode_token(
    row: Array, keys: Array, group: int, steps: int, bases: Array, widths: Array, at: int, codes: Array
) -> bool:
    """Encode one token; 8-bit codes when ``steps`` is 255, else nibbles. False if a value is unusable."""
    channels = len(keys)
    for g in range(-(-channels // group)):
        c0, c1 = g * group, min((g + 1) * group, channels)
        least = order(keys[c0])
        most = least
        for c in range(c0, c1):
            key = order(keys[c])
            least, most = min(least, key), max(most, key)
        if not (is_usable(least) and is_usable(most)):
            return False
        base, per_step = _put_scale(least, most, steps, bases, widths, at + g)
        for k in range(c0 // 2, c1 // 2):
            x, y = load_pair(row, k)
            even, odd = _code(x, base, per_step, steps), _code(y, base, per_step, steps)
            if steps == 255:
                codes[2 * k] = U8(even)
                codes[2 * k + 1] = U8(odd)
            else:
                codes[k] = U8(I32(even | I32(odd << I32(4))))
    return True


@part
def _encode_by_token(words: Array, keys: Array, group: int, steps: int, out: Array) -> bool:
    tokens, channels = keys.shape
    groups = -(-channels // group)
    row_bytes = channels if steps == 255 else channels // 2
    widths, codes = out[2 * tokens * groups :], out[4 * tokens * groups :]
    for t in range(tokens):
        row = codes[t * row_bytes : (t + 1) * row_bytes]
        if not _encode_token(words[t], keys[t], group, steps, out, widths, t * groups, row):
            return False
    return True


@part
def _encode_by_channel(words: Array, keys: Array, out: Array) -> bool:
    """Nibbles with a scale for each channel and chunk."""
    tokens, channels = keys.shape
    chunks, pairs = -(-tokens // CHUNK_TOKENS), channels // 2
    widths, codes = out[2 * chunks * channels :], out[4 * chunks * channels :]
    low, high = np.empty(channels, keys.dtype), np.empty(channels, keys.dtype)
    base, per_step = np.empty(channels, F32), np.empty(channels, F32)
    for n in range(chunks):
        first, end = n * CHUNK_TOKENS, min((n + 1) * CHUNK_TOKENS, tokens)
        if not extremes(keys, first, end, 0, channels, low, high):
            return False
        for c in range(channels):
            base[c], per_step[c] = _put_scale(low[c], high[c], 15, out, widths, n * channels + c)
        for t in range(first, end):
            for k in range(pairs):
                x, y = load_pair(words[t], k)
                even = _code(x, base[2 * k], per_step[2 * k], 15)
                odd = _code(y, base[2 * k + 1], per_step[2 * k + 1], 15)
                codes[t * pairs + k] = U8(I32(even | I32(odd << I32(4))))
    return True


@part
def _decode_by_token(data: Array, group: int, is_wide: bool, words: Array, channels: int) -> bool:
    """Inverse of `_encode_by_token`; ``is_wide`` for 8-bit codes."""
    tokens, groups, pairs = len(words), -(-channels // group), channels // 2
    codes = data[4 * tokens * groups :]
    for t in range(tokens):
        row, out = codes[t * (channels if is_wide else pairs) :], words[t]
        for g in range(groups):
            base_bits = get_u16(data, t * groups + g)
            step_bits = get_u16(data, (tokens + t) * groups + g)
            if not (is_scale(base_bits) and is_scale(step_bits)):
                return False
            base, step = widen(base_bits), widen(step_bits)
            for k in range(g * group // 2, min((g + 1) * group, channels) // 2):
                even = I32(row[2 * k]) if is_wide else I32(row[k] & U8(15))
                odd = I32(row[2 * k + 1]) if is_wide else I32(row[k] >> U8(4))
                store_pair(out, k, F32(base + F32(F32(even) * step)), F32(base + F32(F32(odd) * step)))
    return True


@part
def _decode_by_channel(data: Array, words: Array, channels: int) -> bool:
    """Inverse of `_encode_by_channel`."""
    tokens, pairs = len(words), channels // 2
    chunks = -(-tokens // CHUNK_TOKENS)
    codes = data[4 * chunks * channels :]
    base, step = np.empty(channels, F32), np.empty(channels, F32)
    for n in range(chunks):
        for c in range(channels):
            base_bits = get_u16(data, n * channels + c)
            step_bits = get_u16(data, (chunks + n) * channels + c)
            if not (is_scale(base_bits) and is_scale(step_bits)):
                return False
            base[c], step[c] = widen(base_bits), widen(step_bits)
        for t in range(n * CHUNK_TOKENS, min((n + 1) * CHUNK_TOKENS, tokens)):
            for k in range(pairs):
                code = I32(codes[t * pairs + k])
                even = F32(base[2 * k] + F32(F32(I32(code & I32(15))) * step[2 * k]))
                odd = F32(base[2 * k + 1] + F32(F32(I32(code >> I32(4))) * step[2 * k + 1]))
                store_pair(words[t], k, even, odd)
    return True


@part
def _round_bf16(value: Any) -> Any:
    bits = F32(value).view(U32)
    odd = U32(U32(bits >> U32(16)) & U32(1))
    return U32(U32(U32(bits + U32(0x7FFF)) + odd) >> U32(16))


@jit
def encode_bf16(words: Array, keys: Array, _parts: Array, out: Array, at: Array) -> int:
    """Values rounded to bfloat16, ties to even."""
    pages, tokens, channels = keys.shape
    halves = out.view(np.uint16)
    for p in range(pages):
        for t in range(tokens):
            start = at[p] // 2 + t * channels
            row, good = halves[start : start + channels], True
            for c in range(channels):
                good &= is_usable(order(keys[p, t, c]))
            if not good:
                return p
            for k in range(channels // 2):
                x, y = load_pair(words[p, t], k)
                row[2 * k] = np.uint16(_round_bf16(x))
                row[2 * k + 1] = np.uint16(_round_bf16(y))
    return -1


@jit
def decode_bf16(addresses: Array, lengths: Array, words: Array, channels: int) -> int:
    """Inverse of `encode_bf16`."""
    pages, tokens, _ = words.shape
    for p in range(pages):
        if lengths[p] != 2 * tokens * channels:
            return p
        values, good = halves_at(addresses[p], tokens * channels), True
        for t in range(tokens):
            row, out = values[t * channels : (t + 1) * channels], words[p, t]
            for c in range(channels):
                good &= np.uint16(row[c] & np.uint16(0x7F80)) != np.uint16(0x7F80)
            for k in range(channels // 2):
                store_pair(out, k, widen(row[2 * k]), widen(row[2 * k + 1]))
        if not good:
            return p
    return -1


@jit
def encode_int8(words: Array, keys: Array, _parts: Array, out: Array, at: Array) -> int:
    """See `lynx.codec.reference.encode_int8`."""
    for p in range(len(words)):
        if not _encode_by_token(words[p], keys[p], INT_GROUP, 255, out[at[p] :]):
            return p
    return -1


@jit
def decode_int8(addresses: Array, lengths: Array, words: Array, channels: int) -> int:
    """Inverse of `encode_int8`."""
    pages, tokens, _ = words.shape
    expected = tokens * (channels + 4 * -(-channels // INT_GROUP))
    for p in range(pages):
        if lengths[p] != expected:
            return p
        if not _decode_by_token(bytes_at(addresses[p], expected), INT_GROUP, True, words[p], channels):
            return p
    return -1


@jit
def encode_int4(words: Array, keys: Array, _parts: Array, out: Array, at: Array) -> int:
    """See `lynx.codec.reference.encode_int4`."""
    for p in range(len(words)):
        if not _encode_by_token(words[p], keys[p], INT_GROUP, 15, out[at[p] :]):
            return p
    return -1


@jit
def decode_int4(addresses: Array, lengths: Array, words: Array, channels: int) -> int:
    """Inverse of `encode_int4`."""
    pages, tokens, _ = words.shape
    expected = tokens * (channels // 2 + 4 * -(-channels // INT_GROUP))
    for p in range(pages):
        if lengths[p] != expected:
            return p
        if not _decode_by_token(bytes_at(addresses[p], expected), INT_GROUP, False, words[p], channels):
            return p
    return -1


@part
def _kivi4_axis_at(tokens: int, channels: int, axis: int) -> int:
    """Where the last byte of a payload lies."""
    scales = tokens * -(-channels // KIVI_GROUP) if axis else -(-tokens // CHUNK_TOKENS) * channels
    return 4 * scales + tokens * (channels // 2)


@jit
def encode_kivi4(words: Array, keys: Array, parts: Array, out: Array, at: Array) -> int:
    """See `lynx.codec.reference.encode_kivi4`."""
    pages, tokens, channels = keys.shape
    for p in range(pages):
        page = out[at[p] :]
        if parts[p] == 1:
            good = _encode_by_token(words[p], keys[p], KIVI_GROUP, 15, page)
        else:
            good = _encode_by_channel(words[p], keys[p], page)
        if not good:
            return p
        axis = 1 if parts[p] == 1 else 0
        page[_kivi4_axis_at(tokens, channels, axis)] = U8(axis)
    return -1


@jit
def decode_kivi4(addresses: Array, lengths: Array, words: Array, channels: int) -> int:
    """Inverse of `encode_kivi4`."""
    pages, tokens, _ = words.shape
    for p in range(pages):
        if lengths[p] < 1:
            return p
        data = bytes_at(addresses[p], lengths[p])
        axis = data[lengths[p] - 1]
        if axis > 1 or lengths[p] != _kivi4_axis_at(tokens, channels, axis) + 1:
            return p
        if axis == 1:
            good = _decode_by_token(data, KIVI_GROUP, False, words[p], channels)
        else:
            good = _decode_by_channel(data, words[p], channels)
        if not good:
            return p
    return -1


Encode = Callable[[Array, Array, Array, Array, Array], int]
Decode = Callable[[Array, Array, Array, int], int]
ENCODERS: dict[CodecName, Encode] = {
    "bf16": encode_bf16,
    "int8": encode_int8,
    "int4": encode_int4,
    "kivi4": encode_kivi4,
}
DECODERS: dict[CodecName, Decode] = {
    "bf16": decode_bf16,
    "int8": decode_int8,
    "int4": decode_int4,
    "kivi4": decode_kivi4,
}
