"""Which tokens send their residual inside the Anchor stream: those that the prompt itself looks at.

A draft reads the anchor of every token, and a token's error counts as much as the token is attended to. What
the answer will attend to is nearly known at prefill: what the prompt's last queries attend to. A token's
importance in a layer is therefore the sum, over those queries and their heads, of its squared attention
weight: noise in K or V reaches the output in proportion to the weight, and independent noise adds up in
squares. One layer at a time, so that the first layers travel while the last are still being looked at.
Pure: numpy in, numpy out; it knows no codec and no engine.

Heavy hitters: H2O (arXiv 2306.14048); the prompt's last window as the judge: SnapKV (arXiv 2404.14469); sinks:
StreamingLLM (arXiv 2309.17453).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lynx.errors import BadInput
from lynx.layout import KvDtype

DEFAULT_SHARE = 0.1
"""Share of a layer's tokens that are early."""

SINKS = 4
"""First tokens of a prompt: attended to by everybody, whatever they say."""

RECENT = 16
"""Last tokens of a prompt: the answer's neighbours, of which the very last nobody has looked at yet."""

QUERIES_USED = 8
"""Of the captured queries so many are used, evenly spread: the cost is in proportion, the choice hardly is."""


def early_tokens(
    queries: NDArray[np.float32] | None,
    keys: NDArray[Any],
    dtype: KvDtype,
    share: float = DEFAULT_SHARE,
    scaling: float | None = None,
) -> NDArray[np.int64]:
    """The early tokens of one layer: sinks, a short recent window, then heavy hitters.

    Args:
        queries: ``[n, heads, head_size]`` of the prompt's last ``n`` tokens, position encoding applied; heads
            share KV heads in consecutive groups. ``None`` where a backend gives none: then the budget goes
            to sinks and a longer recent window.
        keys: ``[tokens, kv_heads, head_size]`` of the whole prompt.
        dtype: what ``keys`` holds; bfloat16 as uint16 bits.
        share: budget, as a share of ``tokens``; 0 to 1. It is never exceeded: in a very short prompt sinks
            and recent tokens compete for it.
        scaling: factor on the scores; ``head_size ** -0.5`` unless the model has another.

    Returns:
        At most ``share * tokens`` token indices, increasing.

    Raises:
        BadInput: ``share`` is out of range or the shapes do not fit each other.
    """
    if not 0 <= share <= 1:
        raise BadInput(f"early share is {share}; it must be 0 to 1")
    tokens = len(keys)
    seats = int(share * tokens)
    if seats in (0, tokens):
        return np.arange(seats)
    scores = recency(tokens) if queries is None else attention_scores(queries, keys, dtype, scaling)
    scores[max(tokens - RECENT, 0) :] += np.float32(1e9)
    scores[:SINKS] += np.float32(2e9)
    return np.sort(np.argpartition(scores, tokens - seats)[tokens - seats :])


def recency(tokens: int) -> NDArray[np.float32]:
    """Scores when nothing is known of attention: the later the better."""
    return np.arange(tokens, dtype=np.float32)


def attention_scores(
    queries: NDArray[np.float32], keys: NDArray[Any], dtype: KvDtype, scaling: float | None = None
) -> NDArray[np.float32]:
    """Sum of the squared attention weights that each token gets, ``[tokens]``, each at most queries times heads.

    The weights are exact: all keys, causal. Arguments as in `early_tokens`.
    """
    count, heads, size = queries.shape
    tokens, kv_heads, key_size = keys.shape
    if key_size != size or heads % kv_heads or count > tokens:
        raise BadInput(
            f"queries have shape {queries.shape} and keys {keys.shape}; they need one head size, a number of "
            "query heads that KV heads divide, and no more queries than keys"
        )
    used = np.unique(np.linspace(0, count - 1, min(QUERIES_USED, count)).round().astype(np.int64))
    scale = np.float32(size**-0.5 if scaling is None else scaling)
    group = heads // kv_heads
    rows = (queries[used] * scale).reshape(len(used), kv_heads, group, size)
    shared = tokens - count + used[0] + 1  # from here on some of the queries may not look
    hidden = np.repeat(np.arange(shared, tokens) > (tokens - count + used)[:, None], group, axis=0)
    widened = _widen(keys, dtype)
    scores = np.zeros(tokens, np.float32)
    for head in range(kv_heads):
        weights = rows[:, head].reshape(-1, size) @ widened[:, head].T
        weights[:, shared:][hidden] = -np.inf
        weights -= weights.max(axis=1, keepdims=True)
        np.exp(weights, out=weights)
        sums = weights.sum(axis=1)
        np.square(weights, out=weights)
        scores += (1 / np.square(sums)) @ weights
    return scores


def _widen(keys: NDArray[Any], dtype: KvDtype) -> NDArray[np.float32]:
    if dtype == "bfloat16":
        return (keys.astype(np.uint32) << np.uint32(16)).view(np.float32)
    widened: NDArray[np.float32] = keys.astype(np.float32, copy=False)
    return widened
