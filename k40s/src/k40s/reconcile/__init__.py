"""The reaction ladder: (desired, observed) -> ordered actions. Pure; time is handed in."""

from k40s.reconcile.ladder import mode_of, treatment_of
from k40s.reconcile.passes import Feasible, Outcome, isolated, nowhere, reconcile
from k40s.reconcile.world import (
    Action,
    Alarm,
    Desired,
    DesiredJob,
    Memory,
    Move,
    NodeMemory,
    Observed,
    ObservedNode,
    SetMode,
    Start,
    Stop,
    Treat,
    Treatment,
    Watch,
)

__all__ = [
    "Action",
    "Alarm",
    "Desired",
    "DesiredJob",
    "Feasible",
    "Memory",
    "Move",
    "NodeMemory",
    "Observed",
    "ObservedNode",
    "Outcome",
    "SetMode",
    "Start",
    "Stop",
    "Treat",
    "Treatment",
    "Watch",
    "isolated",
    "mode_of",
    "nowhere",
    "reconcile",
    "treatment_of",
]
