"""The cache's order in memory is learned, whatever it is: here an engine's cache-write op with an order of our own."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lynx.errors import BadInput
from lynx.vllm.cache import PagedCache

HEADS, BLOCK_TOKENS, HEAD_SIZE, BLOCKS = 3, 32, 16, 5


def layer(order: np.ndarray) -> SimpleNamespace:
    """A layer whose op puts (part, token, channel) at ``order[part, token, channel]`` of its (block, head)."""

    def do_kv_cache_update(_layer, key, value, cache, slots):
        flat = cache.view(cache.shape[0], cache.shape[1], -1)
        for slot, k, v in zip(slots.tolist(), key, value, strict=True):
            block, token = divmod(slot, BLOCK_TOKENS)
            for part, heads in ((0, k), (1, v)):
                flat[block][:, torch.from_numpy(order[part, token])] = heads

    return SimpleNamespace(layer_name="layer", impl=SimpleNamespace(do_kv_cache_update=do_kv_cache_update))


def in_order() -> np.ndarray:
    return np.arange(2 * BLOCK_TOKENS * HEAD_SIZE).reshape(2, BLOCK_TOKENS, HEAD_SIZE)


def keys_transposed() -> np.ndarray:
    order = in_order()
    order[0] = np.arange(BLOCK_TOKENS * HEAD_SIZE).reshape(HEAD_SIZE, BLOCK_TOKENS).T
    return order


def shuffled() -> np.ndarray:
    order = np.random.default_rng(7).permutation(2 * BLOCK_TOKENS * HEAD_SIZE)
    return order.reshape(2, BLOCK_TOKENS, HEAD_SIZE)


@pytest.mark.parametrize(
    "order", [in_order(), keys_transposed(), shuffled()], ids=["plain", "transposed", "shuffled"]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_pages_written_are_where_the_engine_would_put_them_and_are_read_back(order, dtype):
    engine = layer(order)
    caches = [torch.zeros(BLOCKS, HEADS, BLOCK_TOKENS, 2 * HEAD_SIZE, dtype=dtype) for _ in range(2)]
    cache = PagedCache([engine, engine], caches)
    tokens, blocks, first = 50, [3, 0, 4], 9
    values = torch.randn(2, tokens, HEADS, HEAD_SIZE).to(dtype)
    for part in range(2):
        bits = values[part].view(torch.uint16) if dtype is torch.bfloat16 else values[part]
        cache.write(1, part, blocks, first, bits.numpy().reshape(tokens, -1))
    expected = torch.zeros_like(caches[1])
    slots = torch.tensor(
        [blocks[t // BLOCK_TOKENS] * BLOCK_TOKENS + t % BLOCK_TOKENS for t in range(first, first + tokens)]
    )
    engine.impl.do_kv_cache_update(engine, values[0], values[1], expected, slots)
    assert torch.equal(caches[1], expected)
    assert not caches[0].any()
    for part in range(2):
        out = np.empty((tokens, HEADS * HEAD_SIZE), dtype=cache.numpy_dtype)
        cache.read(1, part, blocks, first, out)
        bits = values[part].view(torch.uint16) if dtype is torch.bfloat16 else values[part]
        assert np.array_equal(out, bits.numpy().reshape(tokens, -1))


def test_layout_is_named():
    cache = PagedCache(
        [layer(in_order())], [torch.zeros(2, HEADS, BLOCK_TOKENS, 2 * HEAD_SIZE, dtype=torch.bfloat16)]
    )
    assert (cache.layout.layers, cache.layout.kv_heads, cache.layout.head_size) == (1, HEADS, HEAD_SIZE)
    assert cache.layout.dtype == "bfloat16"
    assert cache.block_tokens == BLOCK_TOKENS


def test_op_that_loses_values_is_refused():
    order = in_order()
    order[0, 0, 0] = order[0, 0, 1]
    with pytest.raises(BadInput, match="could not be learned"):
        PagedCache([layer(order)], [torch.zeros(2, HEADS, BLOCK_TOKENS, 2 * HEAD_SIZE)])


def test_unequal_layers_are_refused():
    caches = [
        torch.zeros(2, HEADS, BLOCK_TOKENS, 2 * HEAD_SIZE),
        torch.zeros(2, HEADS, BLOCK_TOKENS, HEAD_SIZE),
    ]
    with pytest.raises(BadInput, match="shape"):
        PagedCache([layer(in_order())] * 2, caches)
