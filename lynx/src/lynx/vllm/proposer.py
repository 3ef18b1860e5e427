"""``LynxProposer``: vLLM asks it for drafts after every step; it offers what the draft twin of a request wrote.

vLLM's own rejection sampler then verifies them in one pass, so nothing here can make an output wrong.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lynx.vllm.proposals import TABLE


class LynxProposer:
    """A ``custom_class`` speculator (``speculative_config``)."""

    def __init__(self, vllm_config: Any) -> None:
        self._longest = int(vllm_config.speculative_config.num_speculative_tokens)

    def load_model(self, *_args: Any, **_kwargs: Any) -> None:
        """There is no model: the draft model is the served model on anchor KV."""

    def propose(
        self,
        sampled_token_ids: list[list[int]],
        num_tokens_no_spec: NDArray[np.int32],
        token_ids_cpu: NDArray[np.int32],
        slot_mappings: object = None,
    ) -> list[list[int]]:
        """One list of drafts a row of the batch, ``[]`` for none.

        Args:
            sampled_token_ids: tokens that this step made, a list a row; empty while a prompt is being computed.
            num_tokens_no_spec: tokens of each row, with this step's.
            token_ids_cpu: ``[rows, max_model_len]``, each row's tokens.
            slot_mappings: not used; vLLM passes it by name.
        """
        if not TABLE:
            return [[] for _ in sampled_token_ids]
        return [
            TABLE.continuation(token_ids_cpu[row, : num_tokens_no_spec[row]])[: self._longest]
            if sampled
            else []
            for row, sampled in enumerate(sampled_token_ids)
        ]
