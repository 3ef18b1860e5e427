"""An ``InstanceConfig`` as vLLM engine arguments; knows which switches the design needs and why."""

import dataclasses
from typing import Any

from vllm.config import KVTransferConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.v1.executor.uniproc_executor import UniProcExecutor

from lynx.serve.config import InstanceConfig

CONNECTOR_MODULE = "lynx.vllm.connector"
PROPOSER_CLASS = "lynx.vllm.proposer.LynxProposer"

MARGIN_TOKENS = 1
"""A sequence within the draft length of the engine's limit gets zeros drafted for *every* row of the step, so a
decode engine is given ``drafts + MARGIN_TOKENS`` more than it serves; the front keeps clients to the served limit."""


def prefill_args(config: InstanceConfig) -> AsyncEngineArgs:
    """Engine arguments of a prefill instance: stock, with the connector as producer."""
    return AsyncEngineArgs(
        **_shared(config),
        max_num_seqs=config.max_users,
        max_model_len=served_limit(config),
        kv_transfer_config=_transfer(config, "kv_producer"),
    )


def decode_args(config: InstanceConfig) -> AsyncEngineArgs:
    """Engine arguments of a decode instance: the connector as consumer, and the proposer when it drafts."""
    speculative: dict[str, Any] = {}
    if config.drafts:
        speculative["speculative_config"] = {
            "method": "custom_class",
            "model": PROPOSER_CLASS,
            "num_speculative_tokens": config.drafts,
        }
    return AsyncEngineArgs(
        **_shared(config),
        **speculative,
        # A draft must never hold the slot that its main request needs.
        max_num_seqs=2 * config.max_users,
        max_model_len=served_limit(config) + (config.drafts + MARGIN_TOKENS if config.drafts else 0),
        hf_overrides=_long_enough(config),
        kv_transfer_config=_transfer(config, "kv_consumer"),
    )


def served_limit(config: InstanceConfig) -> int:
    """Longest prompt and answer together that clients may ask for, in tokens."""
    return config.max_model_len or model_limit(config)


def model_limit(config: InstanceConfig) -> int:
    """The model's own context length, from its ``config.json``."""
    from transformers import AutoConfig

    hf_config = AutoConfig.from_pretrained(config.model)
    return int(hf_config.get_text_config().max_position_embeddings)


def _shared(config: InstanceConfig) -> dict[str, Any]:
    return {
        "model": str(config.model),
        "served_model_name": [config.served_name],
        "dtype": config.dtype,
        "enforce_eager": True,
        # The worker lives in the engine's process: one process less to start and to hop through. vLLM's CPU platform
        # would turn the name "uni" into several processes, to set OpenMP up; the class it leaves alone.
        "distributed_executor_backend": UniProcExecutor,
        "enable_prefix_caching": True,
        "kv_cache_memory_bytes": config.kv_cache_bytes,
        # Whole prompts in one step: a chunk boundary would only delay the first byte.
        "max_num_batched_tokens": max(served_limit(config), 2048),
    }


def _transfer(config: InstanceConfig, role: str) -> KVTransferConfig:
    fields = {
        name: value
        for name, value in dataclasses.asdict(config).items()
        if name
        in {
            "kv_host", "kv_port", "codec", "policy", "rate_bps", "drafts", "early_share",
            "anchor_dscp", "residual_dscp", "hold_s", "timeout_s",
        }
    }  # fmt: skip
    return KVTransferConfig(
        kv_connector="LynxConnector",
        kv_connector_module_path=CONNECTOR_MODULE,
        kv_role=role,
        kv_load_failure_policy=config.load_failure,
        kv_connector_extra_config=fields,
    )


def _long_enough(config: InstanceConfig) -> dict[str, Any]:
    """Let the decode engine exceed the model's own limit by the draft margin; no token is served from there."""
    limit = model_limit(config)
    if not config.drafts or served_limit(config) + config.drafts + MARGIN_TOKENS <= limit:
        return {}
    return {"max_position_embeddings": limit + config.drafts + MARGIN_TOKENS}
