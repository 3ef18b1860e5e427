"""Early tokens: within the budget, sinks and neighbours first, then what the prompt looks at."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lynx.errors import BadInput
from lynx.importance import RECENT, SINKS, attention_scores, early_tokens


def keys_and_queries(seed, tokens, heads, kv_heads, count, size=16):
    random = np.random.default_rng(seed)
    keys = random.normal(size=(tokens, kv_heads, size)).astype(np.float32)
    return random.normal(size=(count, heads, size)).astype(np.float32), keys


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 99), st.integers(1, 300), st.floats(0, 1), st.booleans())
def test_the_budget_is_kept_and_the_choice_is_sorted(seed, tokens, share, seen):
    queries, keys = keys_and_queries(seed, tokens, 6, 3, min(8, tokens))
    early = early_tokens(queries if seen else None, keys, "float32", share)
    assert len(early) == int(share * tokens)
    assert (np.diff(early) > 0).all()
    assert not len(early) or (early[0] >= 0 and early[-1] < tokens)
    if len(early) >= SINKS + RECENT:
        assert {*range(SINKS), *range(tokens - RECENT, tokens)} <= set(early.tolist())


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 99), st.integers(9, 200), st.sampled_from([(3, 3), (9, 3), (4, 1)]))
def test_scores_are_plain_causal_attention_squared(seed, tokens, heads):
    queries, keys = keys_and_queries(seed, tokens, *heads, count=8)
    group = heads[0] // heads[1]
    expected = np.zeros(tokens)
    for row, query in enumerate(queries):
        seen = tokens - len(queries) + row + 1
        for head in range(heads[0]):
            logits = keys[:seen, head // group].astype(np.float64) @ query[head].astype(np.float64) / 4.0
            weights = np.exp(logits - logits.max())
            expected[:seen] += (weights / weights.sum()) ** 2
    assert np.allclose(attention_scores(queries, keys, "float32"), expected, rtol=1e-3, atol=1e-6)


def test_a_heavy_hitter_is_found():
    queries, keys = keys_and_queries(1, 400, 6, 3, 8)
    keys[123] = 8 * queries.mean(axis=0)[::2]
    assert 123 in early_tokens(queries, keys, "float32", 0.065)


def test_bfloat16_bits_choose_as_their_values_do():
    queries, keys = keys_and_queries(2, 300, 6, 3, 8)
    bits = (keys.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    widened = (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    assert (early_tokens(queries, bits, "bfloat16") == early_tokens(queries, widened, "float32")).all()


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_an_impossible_share_is_refused(share):
    with pytest.raises(BadInput, match="early share is"):
        early_tokens(None, np.zeros((5, 1, 4), np.float32), "float32", share)


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(BadInput, match="queries have shape"):
        attention_scores(np.zeros((2, 3, 4), np.float32), np.zeros((5, 2, 4), np.float32), "float32")
