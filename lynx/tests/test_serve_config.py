"""An instance's configuration refuses what cannot be used, naming field, value and remedy."""

from pathlib import Path
from typing import Any

import pytest

from lynx.errors import BadInput
from lynx.serve.config import InstanceConfig


def config(**fields: Any) -> InstanceConfig:
    usual: dict[str, Any] = {"role": "decode", "model": Path("m"), "served_name": "m", "dtype": "float32"}
    return InstanceConfig(**(usual | fields))


def test_defaults_are_the_papers_drafts_and_our_order() -> None:
    assert (config().drafts, config().policy, config().codec) == (64, "edf", "nested")


@pytest.mark.parametrize(
    "fields",
    [
        {"role": "both"},
        {"dtype": "int8"},
        {"codec": "zip"},
        {"policy": "fair"},
        {"load_failure": "wait"},
        {"port": 65536},
        {"kv_port": -1},
        {"drafts": 257},
        {"early_share": 1.1},
        {"max_users": 0},
        {"anchor_dscp": 64},
        {"residual_dscp": -1},
        {"hold_s": 0.0},
        {"timeout_s": 1e9},
        {"kv_cache_bytes": 0},
        {"rate_bps": 0},
        {"max_model_len": 0},
    ],
)
def test_what_is_out_of_range_is_refused_by_name(fields: dict[str, Any]) -> None:
    ((name, value),) = fields.items()
    with pytest.raises(BadInput, match=f"^{name} is {value!r}; (use one of|it must be)"):
        config(**fields)
