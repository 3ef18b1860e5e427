"""Where the connector leaves drafted tokens and the proposer finds them; knows nothing of vLLM.

vLLM makes the two in the same worker process but gives them no way to each other, and tells the proposer token
ids, not request ids. So they meet at ``TABLE``, and drafts are matched by content: prompt plus generated prefix.
A wrong match could waste a verification pass, never change an output.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


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
