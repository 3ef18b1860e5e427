"""Stages of a request, from a record worked out by hand."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lynx.serve.breakdown import stages

RECORD: dict[str, Any] = {
    "drafted": [7, 8, 9],
    "accepted": 2,
    "draft_ns": [5_000_000_000, 6_000_000_000, 7_500_000_000],
    "verified_ns": [9_000_000_000, 9_100_000_000],
    "transfer": {
        "started_ns": 1_000_000_000,
        "anchor_end_ns": 3_000_000_000,
        "anchor_landed_ns": 3_500_000_000,
        "residual_end_ns": 8_000_000_000,
        "residual_landed_ns": 8_250_000_000,
        "quantise_ns": 250_000_000,
        "dequantise_ns": 500_000_000,
        "anchor_bytes": 100,
        "residual_bytes": 90,
    },
}


def test_a_record_worked_by_hand() -> None:
    assert stages(RECORD) == {
        "exposed_s": 2.0,
        "hidden_s": 5.0,
        "draft_s": 4.0,
        "verify_s": 0.75,
        "quantise_s": 0.25,
        "dequantise_s": 0.5,
        "bytes": {"anchor": 100, "residual": 90},
        "drafted": 3,
        "accepted": 2,
    }


@given(st.sets(st.sampled_from(sorted(RECORD))), st.sets(st.sampled_from(sorted(RECORD["transfer"]))))
def test_what_is_missing_is_left_out_and_never_wrong(fields: set[str], inner: set[str]) -> None:
    record = {name: value for name, value in RECORD.items() if name in fields}
    if "transfer" in record:
        record["transfer"] = {name: value for name, value in RECORD["transfer"].items() if name in inner}
    whole = stages(RECORD)
    for name, value in stages(record).items():
        if name.endswith("_s"):
            assert value == whole[name]
