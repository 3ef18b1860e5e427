"""The engine's paged cache, read and written as pages ``[tokens, channels]``.

A CPU engine's cache tensor claims ``[blocks, heads, block_tokens, 2 * head_size]``, but how K and V lie inside
one (block, head) depends on the instruction set. So the order is not assumed: numbers are written once through
the engine's own cache-write op into a scratch cache, and where they land is the permutation.
"""

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray

from lynx.errors import BadInput
from lynx.layout import DTYPE_BYTES, KvDtype, KvLayout

TILE_TOKENS = 16
"""Tokens copied together where tokens lie side by side: a cache line of each channel."""

_DIGIT = 128
"""Base of the probe's digits: every integer below it is exact in bfloat16."""

_NUMPY_DTYPE: dict[KvDtype, type[np.generic]] = {
    "bfloat16": np.uint16,
    "float16": np.float16,
    "float32": np.float32,
}


@dataclass(frozen=True, slots=True)
class _Strided:
    """Token t, channel d of a head lies at ``start + t * token_step + d * channel_step``."""

    start: int
    token_step: int
    channel_step: int


@dataclass(frozen=True, slots=True)
class _Scattered:
    """Token t, channel d of a head lies at ``table[t, d]``."""

    table: NDArray[np.int64]


_Order = _Strided | _Scattered


class PagedCache:
    """Pages of one engine's cache.

    Args:
        layers: attention modules of the engine, in model order; each holds ``kv_cache`` as
            ``[blocks, heads, block_tokens, 2 * head_size]`` in main memory.

    Raises:
        BadInput: the caches are not of that shape, or do not live in main memory.
    """

    def __init__(self, layers: list[Any], caches: list[torch.Tensor]) -> None:
        shape = caches[0].shape
        for layer, cache in zip(layers, caches, strict=True):
            if cache.device.type != "cpu":
                raise BadInput(
                    f"KV cache lives on {cache.device}; Lynx handles caches in main memory (CPU engine)"
                )
            if cache.dim() != 4 or cache.shape[1:] != shape[1:] or cache.shape[3] % 2:
                raise BadInput(
                    f"KV cache of {layer.layer_name} has shape {tuple(cache.shape)}; "
                    "Lynx handles one group of equal layers [blocks, heads, tokens, 2 * head_size]"
                )
        self.block_tokens = int(shape[2])
        self.layout = KvLayout(
            layers=len(caches),
            parts=2,
            kv_heads=int(shape[1]),
            head_size=int(shape[3]) // 2,
            dtype=_dtype_name(caches[0].dtype),
        )
        orders = [_probe(layers[0], caches[0], part) for part in range(2)]
        self._views = [[_view(cache, order, self.layout.dtype) for order in orders] for cache in caches]

    @property
    def numpy_dtype(self) -> type[np.generic]:
        """Element type of pages: bfloat16 is carried as its bits in uint16."""
        return _NUMPY_DTYPE[self.layout.dtype]

    def read(self, layer: int, part: int, blocks: list[int], first: int, out: NDArray[Any]) -> None:
        """Copy ``out.shape[0]`` tokens from token ``first`` on into ``out`` ``[tokens, channels]``."""
        self._views[layer][part].read(
            self._spans(blocks, [(0, first, 0, len(out))]), self._by_head(out[None])
        )

    def write(self, layer: int, part: int, blocks: list[int], first: int, page: NDArray[Any]) -> None:
        """Copy ``page`` ``[tokens, channels]`` into the blocks from token ``first`` on."""
        self.write_pages(layer, part, blocks, [(0, first, 0, len(page))], page[None])

    def write_pages(
        self,
        layer: int,
        part: int,
        blocks: list[int],
        runs: list[tuple[int, int, int, int]],
        pages: NDArray[Any],
    ) -> None:
        """Copy runs of tokens from ``pages`` ``[P, tokens, channels]`` into the blocks.

        Args:
            layer: layer of every page.
            part: K or V.
            blocks: the request's blocks.
            runs: (index into ``pages``, first token of the context, first token of the page, tokens).
            pages: pages of this layer and part.
        """
        self._views[layer][part].write(self._spans(blocks, runs), self._by_head(pages))

    def _by_head(self, pages: NDArray[Any]) -> NDArray[Any]:
        by_head = pages.reshape(*pages.shape[:2], self.layout.kv_heads, self.layout.head_size)
        # numba has no 16-bit floats; copying needs only the bits.
        return by_head.view(np.uint16) if by_head.itemsize == 2 else by_head

    def _spans(self, blocks: list[int], runs: list[tuple[int, int, int, int]]) -> NDArray[np.int64]:
        """Runs cut at block boundaries: (block, token in block, page, token in page, tokens), a row each."""
        page, first, offset, count = np.array(runs, dtype=np.int64).reshape(-1, 4).T
        pieces = (first + count - 1) // self.block_tokens - first // self.block_tokens + 1
        run = np.repeat(np.arange(len(pieces)), pieces)
        place = first[run] // self.block_tokens + np.arange(len(run)) - (np.cumsum(pieces) - pieces)[run]
        begin = np.maximum(first[run], place * self.block_tokens)
        end = np.minimum((first + count)[run], (place + 1) * self.block_tokens)
        block = np.array(blocks, dtype=np.int64)[place]
        inner, outer = begin - place * self.block_tokens, offset[run] + begin - first[run]
        return np.stack([block, inner, page[run], outer, end - begin], axis=1)


U = np.uintp
"""Unsigned, so that numba does not look for indices from the end: a third of the time."""


@numba.njit(nogil=True, inline="always")  # type: ignore[untyped-decorator]
def _move(cache: Any, at: Any, lines: Any, of: Any, to_blocks: bool) -> None:
    """One element, one way or the other."""
    if to_blocks:
        cache[at] = lines[of]
    else:
        lines[of] = cache[at]


@numba.njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _copy(
    flat: Any, pages: Any, spans: Any, start: int, token_step: Any, channel_step: Any, to_blocks: bool
) -> None:
    """Copy spans of ``pages`` ``[P, tokens, heads, channels]`` to or from ``flat`` ``[blocks, heads, elements]``.

    One call for many pages, without the interpreter's lock: the engine computes meanwhile.
    """
    heads, elements, tokens, channels = flat.shape[1], flat.shape[2], pages.shape[1], U(pages.shape[3])
    cache, lines, line = flat.reshape(flat.size), pages.reshape(pages.size), U(heads * pages.shape[3])
    token_step, channel_step = U(token_step), U(channel_step)
    for block, inner, page, outer, run in spans:
        for head in range(heads):
            there = U((block * heads + head) * elements + start) + U(inner) * token_step
            here = U(((page * tokens + outer) * heads + head) * pages.shape[3])
            for first in range(U(0), U(run), U(TILE_TOKENS)):
                last = min(U(first) + U(TILE_TOKENS), U(run))
                if channel_step == U(1):
                    for token in range(U(first), last):
                        for channel in range(channels):
                            at, of = there + token * token_step + channel, here + token * line + channel
                            _move(cache, at, lines, of, to_blocks)
                else:
                    for channel in range(channels):
                        for token in range(U(first), last):
                            at = there + channel * channel_step + token * token_step
                            _move(cache, at, lines, here + token * line + channel, to_blocks)


class _View:
    """One layer's K or V, addressed ``[block, head, token, channel]`` whatever its order in memory."""

    def __init__(self, flat: NDArray[Any], order: _Order) -> None:
        self._flat = flat
        self._order = order

    def read(self, spans: NDArray[np.int64], pages: NDArray[Any]) -> None:
        match self._order:
            case _Strided(start, token_step, channel_step):
                _copy(self._flat, pages, spans, start, token_step, channel_step, False)
            case _Scattered(table):
                for block, inner, page, outer, run in spans:
                    found = self._flat[block][:, table[inner : inner + run]]
                    pages[page, outer : outer + run] = found.transpose(1, 0, 2)

    def write(self, spans: NDArray[np.int64], pages: NDArray[Any]) -> None:
        match self._order:
            case _Strided(start, token_step, channel_step):
                _copy(self._flat, pages, spans, start, token_step, channel_step, True)
            case _Scattered(table):
                for block, inner, page, outer, run in spans:
                    values = pages[page, outer : outer + run].transpose(1, 0, 2)
                    self._flat[block][:, table[inner : inner + run]] = values


def _view(cache: torch.Tensor, order: _Order, dtype: KvDtype) -> _View:
    bits = cache.view(torch.uint16) if DTYPE_BYTES[dtype] == 2 else cache
    blocks, heads, block_tokens, width = cache.shape
    return _View(bits.view(blocks, heads, block_tokens * width).numpy(), order)


def _probe(layer: Any, cache: torch.Tensor, part: int) -> _Order:
    """Learn where the engine's cache-write op puts token t, channel d of K (part 0) or V (part 1)."""
    _, heads, block_tokens, width = cache.shape
    head_size = width // 2
    count = block_tokens * head_size
    numbers = torch.arange(1, count + 1).reshape(block_tokens, 1, head_size).expand(-1, heads, -1)
    landed = torch.zeros(heads, block_tokens * width, dtype=torch.int64)
    weight = 1
    while weight <= count:
        digit = ((numbers // weight) % _DIGIT).to(cache.dtype).contiguous()
        scratch = torch.zeros(2, *cache.shape[1:], dtype=cache.dtype)
        written = [torch.zeros_like(digit), torch.zeros_like(digit)]
        written[part] = digit
        slots = torch.arange(block_tokens, 2 * block_tokens, dtype=torch.int64)
        layer.impl.do_kv_cache_update(layer, *written, scratch, slots)
        landed += scratch[1].reshape(heads, -1).to(torch.int64) * weight
        weight *= _DIGIT
    where = landed[0].numpy()
    position = np.full(count, -1, dtype=np.int64)
    filled = np.flatnonzero(where)
    position[where[filled] - 1] = filled
    if (position < 0).any() or not bool((landed == landed[0]).all()):
        raise BadInput(
            "KV cache order could not be learned from the engine's cache-write op; "
            "this engine build is not one that Lynx can read"
        )
    table: NDArray[np.int64] = position.reshape(block_tokens, head_size)
    start, token_step, channel_step = (
        int(table[0, 0]),
        int(table[1, 0] - table[0, 0]),
        int(table[0, 1] - table[0, 0]),
    )
    tokens, channels = np.indices(table.shape)
    if (table == start + tokens * token_step + channels * channel_step).all():
        return _Strided(start, token_step, channel_step)
    return _Scattered(table)


def _dtype_name(dtype: torch.dtype) -> KvDtype:
    for name in DTYPE_BYTES:
        if dtype == getattr(torch, name):
            return name
    raise BadInput(f"KV cache has dtype {dtype}; use one of {', '.join(DTYPE_BYTES)}")
