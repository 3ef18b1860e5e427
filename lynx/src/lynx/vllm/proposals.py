"""The two ways of a drafted token into vLLM's verification; knows nothing of vLLM.

The short way is a request's first step (``place_drafts``): one pass computes its last prompt token and verifies.
Where vLLM leaves no room in that step, the drafts follow in the next, by the proposer. Connector and proposer live
in the same worker process but have no way to each other, and the proposer is told token ids, not request ids. So
they meet at ``TABLE``, and drafts are matched by content: prompt plus generated prefix. A wrong match could waste
a verification pass, never change an output.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

PLACEHOLDER = -1
"""vLLM's id of a draft that is not known yet."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """Drafted continuation of one main request.

    Args:
        request_id: the main request.
        prompt: its prompt's token ids.
        drafted: the tokens drafted after the prompt.
    """

    request_id: str
    prompt: list[int]
    drafted: list[int]


class Step(Protocol):
    """What of vLLM's ``SchedulerOutput`` drafts are placed in."""

    num_scheduled_tokens: dict[str, int]
    total_num_scheduled_tokens: int
    scheduled_spec_decode_tokens: dict[str, list[int]]


def place_drafts(step: Step, drafted: Callable[[str], list[int]]) -> None:
    """Put drafts where vLLM has put placeholders, and take the remaining placeholders away.

    vLLM pads the first step of a request that has one token left to compute to the longest draft, with -1: no
    proposer can have been asked yet. On a GPU that keeps the step's shape; on a CPU each row costs its time.

    Args:
        step: the step to come, changed in place; its requests' counts are not yet advanced.
        drafted: what is to be verified for a request, ``[]`` for nothing.
    """
    for request_id, tokens in list(step.scheduled_spec_decode_tokens.items()):
        if any(token != PLACEHOLDER for token in tokens):
            continue
        drafts = drafted(request_id)[: len(tokens)]
        if drafts:
            step.scheduled_spec_decode_tokens[request_id] = drafts
        else:
            del step.scheduled_spec_decode_tokens[request_id]
        step.num_scheduled_tokens[request_id] -= len(tokens) - len(drafts)
        step.total_num_scheduled_tokens -= len(tokens) - len(drafts)


class ProposalTable:
    """Drafts waiting to be verified, by main request."""

    def __init__(self) -> None:
        self._tokens: dict[str, tuple[int, NDArray[np.int32]]] = {}

    def __len__(self) -> int:
        return len(self._tokens)

    def add(self, proposals: Iterable[Proposal]) -> None:
        """Offer these drafts from now on."""
        for proposal in proposals:
            tokens = np.array(proposal.prompt + proposal.drafted, dtype=np.int32)
            self._tokens[proposal.request_id] = (len(proposal.prompt), tokens)

    def retire(self, request_ids: Iterable[str]) -> None:
        """Forget the drafts of requests that ended or have used them."""
        for request_id in request_ids:
            self._tokens.pop(request_id, None)

    def continuation(self, tokens: NDArray[np.int32]) -> list[int]:
        """Drafted tokens that follow ``tokens`` (prompt and at least one generated token), ``[]`` if none do."""
        count = len(tokens)
        for prompt_tokens, drafted in self._tokens.values():
            # The generated part differs soonest, so it is compared first.
            if (
                prompt_tokens < count < len(drafted)
                and np.array_equal(drafted[prompt_tokens:count], tokens[prompt_tokens:])
                and np.array_equal(drafted[:prompt_tokens], tokens[:prompt_tokens])
            ):
                return [int(token) for token in drafted[count:]]
        return []


TABLE = ProposalTable()
"""This worker process's table."""
