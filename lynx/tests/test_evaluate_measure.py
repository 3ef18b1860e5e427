"""Evaluation on tiny random models: shapes, exactness of the shortcut, levels in their order."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from lynx import codec as codecs
from lynx.errors import BadInput
from lynx.evaluate import Model, evaluate
from lynx.evaluate.measure import bfloat16_bits, measure
from lynx.evaluate.model import attention, from_pages, to_pages
from lynx.evaluate.reference import continued, greedy, make_reference
from lynx.evaluate.transfer import transfer
from lynx.layout import KvLayout
from lynx.speculate import accepted_prefix

PROMPT = np.random.default_rng(5).integers(0, 97, 300).tolist()
DRAFTS = 12


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """A second thread costs such small products more than it gives."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def tiny(kv_heads: int, context: int = 512) -> Model:
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=kv_heads,
        head_dim=16,
        max_position_embeddings=context,
        initializer_range=0.4,
    )
    return Model(LlamaForCausalLM(config))


@pytest.fixture(params=[6, 2, 1], ids=["mha", "gqa", "mqa"])
def model(request: pytest.FixtureRequest) -> Model:
    return tiny(request.param)


def test_forward_pass_is_the_networks_own(model: Model) -> None:
    context = model.room(len(PROMPT))
    ours = model.extend(context, PROMPT, 5)
    stepwise = model.room(len(PROMPT))
    model.extend(stepwise, PROMPT[:-5], 1)
    pieces = torch.cat([model.extend(stepwise, [token], 1) for token in PROMPT[-5:]])
    model.network.set_attn_implementation("eager")
    with torch.inference_mode():
        theirs = model.network(input_ids=torch.tensor([PROMPT])).logits[0, -5:]
    torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=1e-3)
    torch.testing.assert_close(pieces, theirs, atol=2e-4, rtol=1e-3)


def test_greedy_with_lookups_is_greedy_one_by_one(model: Model) -> None:
    text = [*PROMPT[:100], *PROMPT[:100]]  # repeats, so that lookups are tried and mostly refused
    context = model.room(len(text) + DRAFTS)
    model.extend(context, text[:-1], 1)
    answer = greedy(model, context, text, DRAFTS)

    plain, tokens = model.room(len(text) + DRAFTS), list(text)
    model.extend(plain, text[:-1], 1)
    for _ in range(DRAFTS):
        tokens.append(int(model.extend(plain, tokens[-1:], 1).argmax()))
    assert list(answer.tokens) == tokens[len(text) :]
    assert context.tokens == len(text) - 1 + DRAFTS
    assert answer.logits.shape == (DRAFTS, 97)
    assert answer.queries.shape == (2, 6, DRAFTS, 16)


def test_one_pass_over_the_answer_tells_what_drafting_one_by_one_keeps(model: Model) -> None:
    reference = make_reference(model, PROMPT, DRAFTS)
    layout = KvLayout(2, 2, model.kv_heads, 16, "bfloat16")
    none = [np.empty(0, np.int64)] * 2
    (level,) = transfer(codecs.by_name("int4"), layout, bfloat16_bits(reference.kv), none)
    context = continued(model, reference, from_pages(level.kv, model.kv_heads))
    drafts = greedy(model, context, PROMPT, DRAFTS).tokens

    sample = measure(model, reference, {"int4": codecs.by_name("int4")}, share=0.0)["int4"]
    assert sample.anchor.accepted == accepted_prefix(drafts, reference.answer.tokens)


def test_drafts_kept_are_those_that_the_full_level_writes_itself(model: Model) -> None:
    reference = make_reference(model, PROMPT, DRAFTS)
    layout = KvLayout(2, 2, model.kv_heads, 16, "bfloat16")
    codec = codecs.by_name("nested")
    levels = transfer(codec, layout, bfloat16_bits(reference.kv), [np.empty(0, np.int64)] * 2)
    written = [
        greedy(
            model, continued(model, reference, from_pages(level.kv, model.kv_heads)), PROMPT, DRAFTS
        ).tokens
        for level in levels
    ]
    sample = measure(model, reference, {"nested": codec}, share=0.0)["nested"]
    assert sample.kept == accepted_prefix(*written)


def test_bf16_is_exact_and_more_bits_are_nearer(model: Model) -> None:
    reference = make_reference(model, PROMPT, DRAFTS)
    found = measure(model, reference, {name: codecs.by_name(name) for name in codecs.names()}, share=0.1)
    assert found["bf16"].anchor.accepted == DRAFTS
    assert found["bf16"].anchor.vnmse == 0
    assert found["bf16"].anchor.kl == pytest.approx(0, abs=1e-6)
    assert 16 <= found["bf16"].full.bits < 16.1
    for name in ("nested", "lynx"):
        sample = found[name]
        assert sample.full.vnmse < sample.anchor.vnmse / 10
        assert sample.anchor.bits < 6 < 8 < sample.full.bits < 10
    assert found["int8"].anchor.vnmse < found["int4"].anchor.vnmse


def test_early_tokens_lessen_the_error_and_are_paid_for(model: Model) -> None:
    reference = make_reference(model, PROMPT, DRAFTS)
    nested = {"nested": codecs.by_name("nested")}
    few, many = (measure(model, reference, nested, share)["nested"] for share in (0.0, 0.5))
    assert many.anchor.vnmse < few.anchor.vnmse
    assert many.anchor.bits - few.anchor.bits == pytest.approx(0.5 * 4, rel=0.1)
    assert many.full.vnmse == few.full.vnmse


def test_attention_of_some_queries_is_the_end_of_attention_of_all() -> None:
    generator = torch.Generator().manual_seed(1)
    queries = torch.randn(6, 40, 16, generator=generator)
    kv = torch.randn(2, 2, 40, 16, generator=generator)
    whole = attention(queries, kv, 0.25)
    torch.testing.assert_close(attention(queries[:, -7:], kv, 0.25), whole[:, -7:], atol=1e-5, rtol=1e-5)


def test_pages_and_back() -> None:
    kv = torch.arange(2 * 2 * 3 * 5 * 4, dtype=torch.float32).view(2, 2, 3, 5, 4)
    pages = to_pages(kv)
    assert pages.shape == (2, 2, 5, 12)
    assert pages.flags.c_contiguous
    torch.testing.assert_close(from_pages(pages, 3), kv)


def test_rows_hold_every_promised_field() -> None:
    rows = evaluate(tiny(2), [PROMPT, PROMPT[:280]], codec=["nested", "int8"], drafts=4)
    assert [row["codec"] for row in rows] == ["nested", "int8"]
    promised = {"codec", "anchor_bits", "total_bits", "accepted_mean", "vnmse", "kl", "prompts", "tokens"}
    for row in rows:
        assert promised <= row.keys()
        assert row["prompts"] == 2
        assert row["tokens"] == 300
        assert 0 <= row["accepted_p10"] <= row["accepted_mean"] <= row["accepted_p90"] <= 4


def test_bad_input_gets_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="context is 64 tokens; use fewer --tokens"):
        evaluate(tiny(2, context=64), [PROMPT], codec=["int8"])
    with pytest.raises(BadInput, match="codec is 'zip'"):
        evaluate(tiny(2), [PROMPT], codec=["zip"])
    with pytest.raises(BadInput, match="no config"):
        Model.load(tmp_path)
