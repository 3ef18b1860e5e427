"""What one process of Lynx is started with: frozen, checked once, read by everything below.

Knows nothing of HTTP or vLLM; ``lynx.vllm.config`` turns an ``InstanceConfig`` into engine arguments.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from lynx.errors import BadInput
from lynx.importance import DEFAULT_SHARE

EngineDtype = Literal["bfloat16", "float16", "float32"]
Role = Literal["prefill", "decode"]
StreamPolicy = Literal["strict", "edf"]
LoadFailurePolicy = Literal["recompute", "fail"]

DSCP_EF = 46
DSCP_CS1 = 8
CODECS = ("nested", "lynx", "bf16", "int8", "int4", "kivi4")


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceConfig:
    """One prefill or decode instance.

    Args:
        role: which half of the pair this is.
        model: Hugging Face directory with ``config.json``.
        served_name: the name that clients put in ``model``.
        dtype: arithmetic of the engine and element type of its cache.
        host: address of the HTTP server.
        port: port of the HTTP server; 0 picks a free one.
        kv_host: address at which prefill serves KV planes, and which decode is told to dial.
        kv_port: its port; 0 picks a free one.
        codec: name of the codec (``lynx.codec``).
        policy: order of the streams on the link.
        rate_bps: token bucket in the transport in bits per second; ``None`` sends as fast as the link does.
        drafts: longest run of drafted tokens, 1 to 256; 0 switches drafting off (decode).
        early_share: share of tokens whose residual travels with the anchor, 0 to 1.
        max_model_len: longest prompt and answer together, in tokens; ``None`` takes the model's own limit.
        kv_cache_bytes: memory of the engine's cache.
        max_users: requests served at a time; the engine gets twice as many slots for the drafts.
        anchor_dscp: DSCP of the anchor connection, 0 to 63.
        residual_dscp: DSCP of the residual connection, 0 to 63.
        hold_s: how long prefill keeps a request's planes for a decode that has not fetched them.
        timeout_s: how long decode waits for planes before it acts by ``load_failure``.
        load_failure: decode computes the prompt itself, or answers with an error.

    Raises:
        BadInput: a field is out of its range.
    """

    role: Role
    model: Path
    served_name: str
    dtype: EngineDtype
    host: str = "127.0.0.1"
    port: int = 0
    kv_host: str = "127.0.0.1"
    kv_port: int = 0
    codec: str = "nested"
    policy: StreamPolicy = "edf"
    rate_bps: int | None = None
    drafts: int = 64
    early_share: float = DEFAULT_SHARE
    max_model_len: int | None = None
    kv_cache_bytes: int = 1 << 30
    max_users: int = 8
    anchor_dscp: int = DSCP_EF
    residual_dscp: int = DSCP_CS1
    hold_s: float = 60.0
    timeout_s: float = 60.0
    load_failure: LoadFailurePolicy = "recompute"

    def __post_init__(self) -> None:
        _one_of("role", self.role, get_args(Role))
        _one_of("dtype", self.dtype, get_args(EngineDtype))
        _one_of("codec", self.codec, CODECS)
        _one_of("policy", self.policy, get_args(StreamPolicy))
        _one_of("load_failure", self.load_failure, get_args(LoadFailurePolicy))
        _between("port", self.port, 0, 65535)
        _between("kv_port", self.kv_port, 0, 65535)
        _between("drafts", self.drafts, 0, 256)
        _between("early_share", self.early_share, 0.0, 1.0)
        _between("max_users", self.max_users, 1, 1024)
        _between("anchor_dscp", self.anchor_dscp, 0, 63)
        _between("residual_dscp", self.residual_dscp, 0, 63)
        _between("hold_s", self.hold_s, 0.1, 3600.0)
        _between("timeout_s", self.timeout_s, 0.1, 3600.0)
        _between("kv_cache_bytes", self.kv_cache_bytes, 1 << 20, 1 << 44)
        if self.rate_bps is not None:
            _between("rate_bps", self.rate_bps, 1_000, 10**13)
        if self.max_model_len is not None:
            _between("max_model_len", self.max_model_len, 16, 1 << 24)


def _one_of(field: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise BadInput(f"{field} is {value!r}; use one of {', '.join(allowed)}")


def _between(field: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise BadInput(f"{field} is {value}; it must be {low} to {high}")
