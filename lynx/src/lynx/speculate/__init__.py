"""Speculation on an anchor: accept rules, when to draft, when to stop. Pure; knows no engine and no clock."""

from lynx.speculate.accept import Verified, accepted_prefix, verify_greedy
from lynx.speculate.policy import (
    MAX_DRAFTS,
    Continue,
    Link,
    Loses,
    Pays,
    Stop,
    accept_rate,
    drafting_pays,
    expected_accepted,
    next_step,
)

__all__ = [
    "MAX_DRAFTS",
    "Continue",
    "Link",
    "Loses",
    "Pays",
    "Stop",
    "Verified",
    "accept_rate",
    "accepted_prefix",
    "drafting_pays",
    "expected_accepted",
    "next_step",
    "verify_greedy",
]
