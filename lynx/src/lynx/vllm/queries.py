"""The last queries of a prompt, caught on their way into each attention layer.

They tell which tokens the answer will look at. vLLM hands connectors no queries, so each attention module gets a
forward pre-hook; it copies at most ``LAST_QUERIES`` rows of a prompt that ends in the running step, and is idle
otherwise.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from vllm.forward_context import get_forward_context

LAST_QUERIES = 32
"""How many of a prompt's last queries are caught."""


@dataclass(frozen=True, slots=True)
class EndingPrompt:
    """A prompt whose last token is computed in the coming step.

    Args:
        request_id: the engine's id.
        tokens: prompt length.
        last_block: id of the cache block that holds the last token; tells the request's row in the batch.
    """

    request_id: str
    tokens: int
    last_block: int


class QueryCatcher:
    """Catches the last queries of ending prompts, layer by layer.

    Args:
        layers: attention modules in model order.
        block_tokens: tokens of a cache block.
    """

    def __init__(self, layers: Sequence[Any], block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._ending: Sequence[EndingPrompt] = ()
        self._rows: dict[str, slice] = {}
        self._caught: dict[str, list[NDArray[np.float32]]] = {}
        self._hooks = [layer.register_forward_pre_hook(self._on_forward) for layer in layers]
        self._first = layers[0]

    def expect(self, ending: Sequence[EndingPrompt]) -> None:
        """Say which prompts end in the coming step."""
        self._ending = ending

    def take(self, request_id: str) -> NDArray[np.float32] | None:
        """The caught queries ``[layers, queries, heads, head_size]`` of a prompt, once; ``None`` if there are none."""
        caught = self._caught.pop(request_id, None)
        return None if caught is None else np.stack(caught)

    def forget(self, request_ids: set[str]) -> None:
        """Drop what was caught for requests that ended without being sent."""
        for request_id in request_ids:
            self._caught.pop(request_id, None)

    def close(self) -> None:
        """Take the hooks off."""
        for hook in self._hooks:
            hook.remove()

    def _on_forward(self, layer: Any, args: tuple[Any, ...]) -> None:
        if not self._ending:
            return
        metadata = get_forward_context().attn_metadata
        if metadata is None:
            return
        if layer is self._first:
            self._rows = self._find_rows(metadata[layer.layer_name])
        query = args[0].view(-1, layer.num_heads, layer.head_size)
        for request_id, rows in self._rows.items():
            self._caught.setdefault(request_id, []).append(query[rows].float().cpu().numpy().copy())

    def _find_rows(self, metadata: Any) -> dict[str, slice]:
        starts = metadata.query_start_loc.tolist()
        lengths = metadata.seq_lens.tolist()
        rows = {}
        for prompt in self._ending:
            column = metadata.block_table[:, (prompt.tokens - 1) // self._block_tokens].tolist()
            for row, (length, block) in enumerate(zip(lengths, column, strict=False)):
                if length == prompt.tokens and block == prompt.last_block:
                    rows[prompt.request_id] = slice(
                        max(starts[row], starts[row + 1] - LAST_QUERIES), starts[row + 1]
                    )
                    self._caught.pop(prompt.request_id, None)
        return rows
