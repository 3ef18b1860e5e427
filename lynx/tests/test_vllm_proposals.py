from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lynx.vllm.proposals import Proposal, ProposalTable, place_drafts

tokens = st.lists(st.integers(0, 5), min_size=1, max_size=12)


def row(*parts: list[int]) -> np.ndarray:
    return np.array([token for part in parts for token in part], dtype=np.int32)


@given(tokens, tokens, st.data())
def test_offers_exactly_what_follows_the_generated_prefix(prompt, drafted, data):
    table = ProposalTable()
    table.add([Proposal("main", prompt, drafted)])
    made = data.draw(st.integers(1, len(drafted)))
    assert table.continuation(row(prompt, drafted[:made])) == drafted[made:]


@given(tokens, tokens, tokens)
def test_never_offers_after_a_divergence(prompt, drafted, made):
    table = ProposalTable()
    table.add([Proposal("main", prompt, drafted)])
    offered = table.continuation(row(prompt, made))
    assert offered == (drafted[len(made) :] if drafted[: len(made)] == made else [])


def test_prompt_alone_gets_nothing():
    table = ProposalTable()
    table.add([Proposal("main", [1, 2], [3, 4])])
    assert table.continuation(row([1, 2])) == []


def test_another_prompt_gets_nothing():
    table = ProposalTable()
    table.add([Proposal("main", [1, 2], [3, 4])])
    assert table.continuation(row([9, 2, 3])) == []


def test_retired_drafts_are_gone_and_unknown_ones_no_error():
    table = ProposalTable()
    table.add([Proposal("main", [1], [2, 3])])
    table.retire(["main", "other"])
    assert len(table) == 0
    assert table.continuation(row([1, 2])) == []


@dataclass
class FakeStep:
    """The fields of vLLM's ``SchedulerOutput`` that drafts are placed in."""

    num_scheduled_tokens: dict[str, int]
    total_num_scheduled_tokens: int
    scheduled_spec_decode_tokens: dict[str, list[int]]


@given(st.dictionaries(st.sampled_from("abc"), st.lists(st.integers(0, 9), max_size=6)), st.integers(1, 4))
def test_a_first_step_verifies_the_draft_and_computes_nothing_else(drafts, padding):
    """Of each request one token is left to compute; vLLM pads the step with placeholders."""
    padded = {name: [-1] * padding for name in drafts}
    counts = dict.fromkeys(drafts, 1 + padding) | {"prefill": 7}
    step = FakeStep(counts, sum(counts.values()), padded)
    place_drafts(step, drafts.__getitem__)
    placed = {name: drafted[:padding] for name, drafted in drafts.items()}
    assert step.scheduled_spec_decode_tokens == {name: drafted for name, drafted in placed.items() if drafted}
    assert step.num_scheduled_tokens == {name: 1 + len(drafted) for name, drafted in placed.items()} | {
        "prefill": 7
    }
    assert step.total_num_scheduled_tokens == sum(step.num_scheduled_tokens.values())


def test_what_a_proposer_has_drafted_stays():
    step = FakeStep({"a": 3}, 3, {"a": [5, 6]})
    place_drafts(step, lambda _: [1])
    assert step == FakeStep({"a": 3}, 3, {"a": [5, 6]})
