"""Whether two greedy answers are equal, and if not, whether they part at a tie: pure.

A verification pass computes many tokens at once and plain decoding one at a time; sums are rounded in another
order, so two logits that are equal to the arithmetic's precision may change places. That is a tie, and it is shown
with both logits; anything else is a fault.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lynx.speculate import accepted_prefix

TIE_GAP = {"float32": 1e-3, "bfloat16": 0.26, "float16": 0.033}
"""Largest gap between two log-probabilities that rounding explains: two logits between 16 and 32, each one step off.

Such a step is 1/8 in bfloat16, 1/64 in float16. SmolLM2-135M's largest logits are 7 to 39; in bfloat16 the gap between
the likeliest token and the next four moved by up to 0.375 between one pass over all tokens and one token at a time
(`bench/rounding/run.py`: three prompts of 2,000 tokens, 72 positions).
"""


@dataclass(frozen=True, slots=True)
class Equal:
    """Token for token the same."""


@dataclass(frozen=True, slots=True)
class Parted:
    """The answers part.

    Args:
        at: index of the first token that differs.
        mine: the drafting run's token there.
        theirs: the plain run's token.
        mine_logprob: log-probability of ``mine`` after the common prefix, in the plain run; ``None`` if not known.
        theirs_logprob: that of ``theirs``.
        tie: whether rounding explains it.
    """

    at: int
    mine: int
    theirs: int
    mine_logprob: float | None
    theirs_logprob: float | None
    tie: bool


def likeliest(choice: Mapping[str, Any]) -> list[dict[int, float]]:
    """For each token of a completion the log-probabilities of the likeliest tokens.

    Args:
        choice: one of an answer that was asked for with ``logprobs`` and ``return_tokens_as_token_ids``.
    """
    tops = choice["logprobs"]["top_logprobs"]
    return [{int(name.removeprefix("token_id:")): value for name, value in top.items()} for top in tops]


def compare(
    mine: Sequence[int], theirs: Sequence[int], theirs_logprobs: Sequence[Mapping[int, float]], dtype: str
) -> Equal | Parted:
    """Compare a drafting run's answer with a plain run's.

    Args:
        mine: token ids of the drafting run.
        theirs: token ids of the plain run.
        theirs_logprobs: for each token of the plain run the log-probabilities of the likeliest tokens.
        dtype: the engine's arithmetic.
    """
    if list(mine) == list(theirs):
        return Equal()
    at = accepted_prefix(mine, theirs)
    if at >= len(mine) or at >= len(theirs):
        return Parted(at, -1, -1, None, None, tie=False)
    known = theirs_logprobs[at] if at < len(theirs_logprobs) else {}
    mine_logprob, theirs_logprob = known.get(mine[at]), known.get(theirs[at])
    tie = (
        mine_logprob is not None
        and theirs_logprob is not None
        and abs(theirs_logprob - mine_logprob) <= TIE_GAP[dtype]
    )
    return Parted(at, mine[at], theirs[at], mine_logprob, theirs_logprob, tie)
