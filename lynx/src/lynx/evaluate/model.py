"""A Hugging Face causal LM whose KV cache is a plain tensor that we may read, replace and attend to.

The model runs without any cache of its own: one attention function, registered under a name with
transformers, appends the new tokens' K and V to our tensor and attends over all of it. So a context decoded
by any codec is put in place by assignment, and the queries of any step can be looked at. The only module of
this package that imports torch and transformers.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from lynx.errors import BadInput

_ATTENTION = "lynx_evaluate"


@dataclass(slots=True)
class Context:
    """KV of one sequence during a forward pass.

    Args:
        kv: ``[layers, 2, kv_heads, room, head_size]`` float32, tokens 0 to ``tokens - 1`` filled.
        tokens: tokens filled.
        queries: ``[layers, heads, n, head_size]``, the last ``n`` queries of the latest pass, after RoPE.
    """

    kv: Tensor
    tokens: int
    queries: Tensor


class Model:
    """One causal LM in float32 on the CPU.

    Args:
        network: a transformers causal LM with standard (full, causal) attention.
    """

    def __init__(self, network: Any) -> None:
        ALL_ATTENTION_FUNCTIONS.register(_ATTENTION, self._unbound)
        config = network.config
        self.network = network.eval()
        self.layers: int = config.num_hidden_layers
        self.heads: int = config.num_attention_heads
        self.kv_heads: int = getattr(config, "num_key_value_heads", None) or self.heads
        self.head_size: int = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.limit: int = config.max_position_embeddings
        self.scaling: float = self.head_size**-0.5
        """Factor on attention scores; corrected by what the model says in its first pass."""
        kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
        if kinds != {"full_attention"}:
            raise BadInput(f"model has attention layers {sorted(kinds)}; use one with full_attention only")

    @classmethod
    def load(cls, path: Path) -> tuple["Model", Any]:
        """The model and tokenizer of a Hugging Face directory.

        Raises:
            BadInput: the directory is missing or holds no causal LM.
        """
        if not (path / "config.json").is_file():
            raise BadInput(f"model is {str(path)!r}, which has no config.json; give a Hugging Face directory")
        network = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, local_files_only=True)
        return cls(network), AutoTokenizer.from_pretrained(path, local_files_only=True)

    def room(self, tokens: int, queries: int = 32) -> Context:
        """An empty context that can grow to ``tokens`` and remembers up to ``queries`` queries of a pass."""
        kv = torch.empty(self.layers, 2, self.kv_heads, tokens, self.head_size)
        return Context(kv, 0, torch.empty(self.layers, self.heads, queries, self.head_size))

    def extend(self, context: Context, token_ids: Sequence[int], last: int) -> Tensor:
        """Run ``token_ids`` after what the context holds, append their KV; logits ``[last, vocabulary]``."""
        first = context.tokens
        position_ids = torch.arange(first, first + len(token_ids))[None]
        with torch.inference_mode(), self._attending(context):
            output = self.network(
                input_ids=torch.tensor([list(token_ids)]),
                position_ids=position_ids,
                use_cache=False,
                logits_to_keep=last,
            )
        context.tokens += len(token_ids)
        return cast(Tensor, output.logits[0])

    @contextmanager
    def _attending(self, context: Context) -> Iterator[None]:
        def attend(
            module: Any,
            query: Tensor,
            key: Tensor,
            value: Tensor,
            _mask: None,
            scaling: float,
            **options: Any,
        ) -> tuple[Tensor, None]:
            if options.get("softcap") or options.get("s_aux") is not None:
                raise BadInput(
                    "model uses soft-capped or sink attention; use one with plain softmax attention"
                )
            self.scaling = scaling
            kv, first, new = context.kv[module.layer_idx], context.tokens, query.shape[2]
            kv[0, :, first : first + new] = key[0]
            kv[1, :, first : first + new] = value[0]
            kept = min(new, context.queries.shape[2])
            context.queries[module.layer_idx, :, -kept:] = query[0, :, -kept:]
            return attention(query[0], kv[:, :, : first + new], scaling).transpose(0, 1)[None], None

        ALL_ATTENTION_FUNCTIONS.register(_ATTENTION, attend)
        self.network.set_attn_implementation(_ATTENTION)
        try:
            yield
        finally:
            ALL_ATTENTION_FUNCTIONS.register(_ATTENTION, self._unbound)

    @staticmethod
    def _unbound(*_: Any, **__: Any) -> tuple[Tensor, None]:
        raise RuntimeError("the model was called outside Model.extend")


def attention(queries: Tensor, kv: Tensor, scaling: float) -> Tensor:
    """Causal attention of the last ``n`` tokens' queries.

    Args:
        queries: ``[heads, n, head_size]``.
        kv: ``[2, kv_heads, tokens, head_size]``; the queries belong to its last ``n`` tokens.
        scaling: factor on the scores.

    Returns:
        ``[heads, n, head_size]``.
    """
    heads, new, size = queries.shape
    kv_heads, tokens = kv.shape[1:3]
    if new == tokens:
        repeated = kv.repeat_interleave(heads // kv_heads, dim=1)
        return torch.nn.functional.scaled_dot_product_attention(
            queries[None], repeated[:1], repeated[1:], is_causal=True, scale=scaling
        )[0]
    # Few queries over many keys: group the heads that share a KV head instead of copying the cache.
    grouped = queries.reshape(kv_heads, heads // kv_heads * new, size)
    scores = torch.bmm(grouped * scaling, kv[0].transpose(1, 2)).view(heads, new, tokens)
    ahead = torch.ones(new, new, dtype=torch.bool).triu(1)
    scores[:, :, tokens - new :].masked_fill_(ahead, -torch.inf)
    weights = scores.softmax(-1).view(kv_heads, heads // kv_heads * new, tokens)
    return torch.bmm(weights, kv[1]).view(heads, new, size)


def to_pages(kv: Tensor) -> NDArray[np.float32]:
    """``[layers, 2, kv_heads, tokens, head_size]`` to ``[layers, 2, tokens, channels]``, contiguous."""
    layers, parts, kv_heads, tokens, size = kv.shape
    pages = kv.transpose(2, 3).reshape(layers, parts, tokens, kv_heads * size)
    return cast(NDArray[np.float32], np.ascontiguousarray(pages.numpy()))


def from_pages(pages: NDArray[np.float32], kv_heads: int) -> Tensor:
    """The inverse of :func:`to_pages`."""
    layers, parts, tokens, channels = pages.shape
    return torch.from_numpy(pages).view(layers, parts, tokens, kv_heads, channels // kv_heads).transpose(2, 3)
