"""Two faults of vLLM 0.32's CPU build, mended from outside (vllm#55005); loaded by vLLM as a general plug-in.

1. The CPU stand-in for the rejection sampler's ``expand_kernel`` converts its output to int64 and writes into that
   copy, so drafted rows read uninitialised temperature, top-k and top-p.
2. ``apply_top_k_only`` takes the maximum over no rows when a step has drafts but no sampled bonus row.
"""

import functools
from typing import Any

import torch


def register() -> None:
    """Entry point ``vllm.general_plugins``; idempotent, called in every vLLM process."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from vllm.utils import cpu_triton_utils
    from vllm.v1.sample.ops import topk_topp_sampler

    # The platform installs its stand-ins when the worker is made, after the plug-ins: it shall find this one.
    cpu_triton_utils._expand_kernel_impl = expand
    topk_topp_sampler.apply_top_k_only = _guarding_no_rows(topk_topp_sampler.apply_top_k_only)


def expand(
    output_ptr: torch.Tensor,
    input_ptr: torch.Tensor,
    cu_num_tokens_ptr: torch.Tensor,
    replace_from: float,
    replace_to: float,
    MAX_NUM_TOKENS: int | None = None,
) -> None:
    """Spread ``input_ptr`` ``[requests]`` over ``output_ptr`` ``[tokens]``, replacing one value by another.

    Args:
        output_ptr: ``[tokens]``, overwritten in place.
        input_ptr: ``[requests]``.
        cu_num_tokens_ptr: ``[requests]``, cumulative token counts.
        replace_from: value of ``input_ptr`` to be replaced.
        replace_to: what stands in for it.
        MAX_NUM_TOKENS: not used; a bound that the Triton kernel needs.
    """
    counts = torch.diff(cu_num_tokens_ptr, prepend=cu_num_tokens_ptr.new_zeros(1))
    values = torch.where(input_ptr == replace_from, torch.full_like(input_ptr, replace_to), input_ptr)
    output_ptr.copy_(torch.repeat_interleave(values, counts))


def _guarding_no_rows(apply_top_k_only: Any) -> Any:
    if getattr(apply_top_k_only, "guards_no_rows", False):
        return apply_top_k_only

    @functools.wraps(apply_top_k_only)
    def guarded(logits: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return apply_top_k_only(logits, k) if logits.shape[0] else logits

    guarded.guards_no_rows = True  # type: ignore[attr-defined]  # marks the wrapper, so that it is put on once
    return guarded
