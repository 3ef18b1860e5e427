import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lynx.vllm.proposals import Proposal, ProposalTable

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
