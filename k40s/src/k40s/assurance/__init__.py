"""From evidence to assurance: how far a node can be trusted, and why. Pure; time is handed in."""

from k40s.assurance.evidence import Absent, Capability, Evidence, Measured, Present, Reading, Unknown
from k40s.assurance.overcommit import Amounts, Load, overcommit_points, rules_held
from k40s.assurance.score import (
    Assurance,
    Line,
    Memory,
    assess,
    explain,
    gamma_millipoints,
    millipoints_for,
)
from k40s.assurance.status import to_status

__all__ = [
    "Absent",
    "Amounts",
    "Assurance",
    "Capability",
    "Evidence",
    "Line",
    "Load",
    "Measured",
    "Memory",
    "Present",
    "Reading",
    "Unknown",
    "assess",
    "explain",
    "gamma_millipoints",
    "millipoints_for",
    "overcommit_points",
    "rules_held",
    "to_status",
]
