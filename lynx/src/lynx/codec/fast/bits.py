"""What the kernels share: one loop body for bfloat16 and float32, bytes at an address, scales.

A page comes as two views of the same memory: ``words``, ``[tokens, pairs]`` uint32 (two bfloat16 channels) or
``[tokens, channels]`` float32, and ``keys``, ``[tokens, channels]`` int16 or int32. Numba compiles a kernel
once for either; `load_pair` and `store_pair` are where the two differ.

Numba promotes small integers to 64 bits at every operation, which halves the lanes of a vector; hence the
casts around each step.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic, overload

F32, I32, U8, U32 = np.float32, np.int32, np.uint8, np.uint32
ONE, ZERO, HALF = np.float32(1), np.float32(0), np.float32(0.5)
HIGH_HALF = np.uint32(0xFFFF0000)
SMALLEST_STEP = np.float32(2.0**-100)

BLOCK = 256
"""Channels that a kernel works on at once: 256 tokens of them, twice read, stay in a core's second cache."""

Array = Any
F = TypeVar("F", bound=Callable[..., Any])


def jit(function: F) -> F:
    """Compile at first use, or load from numba's cache beside the module; runs without the GIL."""
    return cast(F, njit(nogil=True, cache=True, error_model="numpy")(function))


def part(function: F) -> F:
    """Compile as a part of the kernels that call it: no way in from Python, so half the compiling."""
    options = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return cast(F, njit(nogil=True, error_model="numpy", **options)(function))


@intrinsic  # type: ignore[untyped-decorator]  # numba has no types
def _pointer(typing_context: Any, address: Any) -> Any:
    del typing_context, address

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context, signature
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), codegen


@jit
def address_of(data: Array) -> int:
    """Where an array's bytes lie; three times as fast as asking numpy."""
    address: int = data.ctypes.data
    return address


@part
def bytes_at(address: int, length: int) -> Array:
    """The ``length`` bytes at ``address``: payloads lie anywhere, and a Python object for each is slow."""
    return carray(_pointer(address), (length,), np.uint8)


def load_pair(row: Array, k: int) -> Array:
    """Channels 2k and 2k+1 of a row of words, as float32."""
    raise NotImplementedError("only compiled code calls this")


@overload(load_pair, inline="always")  # type: ignore[untyped-decorator]  # numba has no types
def _load_pair(row: Any, k: Any) -> Any:
    del k

    def two_bf16(row: Any, k: Any) -> Array:
        return U32(row[k] << U32(16)).view(F32), U32(row[k] & HIGH_HALF).view(F32)

    def two_f32(row: Any, k: Any) -> Array:
        return row[2 * k], row[2 * k + 1]

    return two_bf16 if row.dtype == types.uint32 else two_f32


def store_pair(row: Array, k: int, even: Any, odd: Any) -> None:
    """Write channels 2k and 2k+1 of a row of words, rounded as `lynx.codec.pages.from_float32` does."""
    raise NotImplementedError("only compiled code calls this")


@overload(store_pair, inline="always")  # type: ignore[untyped-decorator]  # numba has no types
def _store_pair(row: Any, k: Any, even: Any, odd: Any) -> Any:
    del k, even, odd

    def two_bf16(row: Any, k: Any, even: Any, odd: Any) -> None:
        low = U32(U32(F32(even).view(U32) + U32(0x8000)) >> U32(16))
        row[k] = low | U32(U32(F32(odd).view(U32) + U32(0x8000)) & HIGH_HALF)

    def two_f32(row: Any, k: Any, even: Any, odd: Any) -> None:
        row[2 * k] = even
        row[2 * k + 1] = odd

    return two_bf16 if row.dtype == types.uint32 else two_f32


def order(key: Any) -> Any:
    """An integer that sorts as the float with these bits does; its own inverse."""
    raise NotImplementedError("only compiled code calls this")


@overload(order, inline="always")  # type: ignore[untyped-decorator]  # numba has no types
def _order(key: Any) -> Any:
    def of_bf16(key: Any) -> Any:
        return np.int16(key ^ np.int16(np.int16(key >> np.int16(15)) & np.int16(0x7FFF)))

    def of_f32(key: Any) -> Any:
        return I32(key ^ I32(I32(key >> I32(31)) & I32(0x7FFFFFFF)))

    return of_bf16 if key == types.int16 else of_f32


def key_value(key: Any) -> Any:
    """The float32 whose `order` is ``key``, without the sign of zero."""
    raise NotImplementedError("only compiled code calls this")


@overload(key_value, inline="always")  # type: ignore[untyped-decorator]  # numba has no types
def _key_value(key: Any) -> Any:
    def of_bf16(key: Any) -> Any:
        return F32(U32(U32(np.uint16(order(key))) << U32(16)).view(F32) + ZERO)

    def of_f32(key: Any) -> Any:
        return F32(U32(order(key)).view(F32) + ZERO)

    return of_bf16 if key == types.int16 else of_f32


def is_usable(key: Any) -> bool:
    """Whether the float whose `order` is ``key`` is below `lynx.codec.pages.LIMIT`; NaN and Inf sort beyond."""
    raise NotImplementedError("only compiled code calls this")


@overload(is_usable, inline="always")  # type: ignore[untyped-decorator]  # numba has no types
def _is_usable(key: Any) -> Any:
    def of_bf16(key: Any) -> Any:
        return (key < np.int16(0x7E80)) & (key >= np.int16(-0x7E80))

    def of_f32(key: Any) -> Any:
        return (key < I32(0x7E800000)) & (key >= I32(-0x7E800000))

    return of_bf16 if key == types.int16 else of_f32


@part
def key_values(keys: Array, values: Array) -> None:
    """`key_value` of as many keys as there are values."""
    for c in range(len(values)):
        values[c] = key_value(keys[c])


@part
def floor_bf16(value: Any) -> Any:
    """See `lynx.codec.pages.floor_bf16`."""
    bits = U32(F32(value + ZERO).view(U32))
    rounds = U32(U32(0xFFFF) * U32(bits >> U32(31)))  # away from zero for a negative value
    return U32(U32(bits + rounds) >> U32(16))


@part
def stored_step(span: Any, steps: Any) -> Any:
    """See `lynx.codec.reference.stored_step`."""
    step = F32(span / steps)
    if step < SMALLEST_STEP:
        return U32(0)
    return U32(U32(F32(step).view(U32) + U32(0xFFFF)) >> U32(16))


@part
def widen(bits: Any) -> Any:
    """The float32 that bfloat16 bits stand for."""
    return U32(U32(bits) << U32(16)).view(F32)


@part
def inverse(step: Any) -> Any:
    """See `lynx.codec.reference.inverse`."""
    return F32(ONE / step) if step > ZERO else ZERO


@part
def put_u16(out: Array, index: int, bits: Any) -> None:
    """Write the ``index``-th little-endian uint16 of a section."""
    out[2 * index] = U8(bits & U32(0xFF))
    out[2 * index + 1] = U8(bits >> U32(8))


@part
def get_u16(data: Array, index: int) -> Any:
    """Read the ``index``-th little-endian uint16 of a section."""
    return U32(U32(data[2 * index]) | U32(U32(data[2 * index + 1]) << U32(8)))


@part
def is_scale(bits: Any) -> bool:
    """Whether bfloat16 bits are finite."""
    return bool(U32(bits & U32(0x7F80)) != U32(0x7F80))


@part
def extremes(keys: Array, first: int, end: int, c0: int, c1: int, low: Array, high: Array) -> bool:
    """Least and greatest `order` of each channel c0..c1 over tokens first..end; False where one is unusable."""
    width = c1 - c0
    for c in range(width):
        key = order(keys[first, c0 + c])
        low[c] = key
        high[c] = key
    for t in range(first + 1, end):
        row = keys[t][c0:c1]
        for c in range(width):
            key = order(row[c])
            low[c] = min(low[c], key)
            high[c] = max(high[c], key)
    good = True
    for c in range(width):
        good &= is_usable(low[c]) & is_usable(high[c])
    return good


@part
def split_rows(early: Array, tokens: int, pairs: int, early_start: int, rest_start: int, rows: Array) -> bool:
    """Where each token's row of residual nibbles lies: with the early ones or with the rest.

    Returns:
        Whether ``early`` is strictly increasing and below ``tokens``.
    """
    taken = 0
    for t in range(tokens):
        if taken < len(early) and early[taken] == t:
            rows[t] = early_start + taken * pairs
            taken += 1
        else:
            rows[t] = rest_start + (t - taken) * pairs
    return taken == len(early)


@part
def read_early(bitmap: Array, tokens: int, pairs: int, early_start: int, rows: Array) -> int:
    """Fill ``rows`` as `split_rows` does (early: offset in the anchor; rest: -1 - its rank); early tokens."""
    taken = 0
    for t in range(tokens):
        if bitmap[t >> 3] >> (t & 7) & 1:
            rows[t] = early_start + taken * pairs
            taken += 1
        else:
            rows[t] = -1 - (t - taken)
    return taken


@part
def part_pairs(source: Array, target: Array, pairs: int) -> None:
    """Even channels of source[i] to target[2i], odd ones to target[2i + 1], for both rows of a chunk."""
    for i in range(2):
        both, even, odd = source[i], target[2 * i], target[2 * i + 1]
        for k in range(pairs):
            even[k] = both[2 * k]
            odd[k] = both[2 * k + 1]


@part
def put_bitmap(bitmap: Array, early: Array, tokens: int) -> None:
    """Write one bit for each token of the page, set for the early ones."""
    for i in range((tokens + 7) // 8):
        bitmap[i] = U8(0)
    for t in early:
        bitmap[t >> 3] |= U8(1 << (t & 7))


@part
def halves_at(address: int, count: int) -> Array:
    """The ``count`` uint16 at ``address``, aligned or not."""
    return carray(_pointer(address), (count,), np.uint16)
