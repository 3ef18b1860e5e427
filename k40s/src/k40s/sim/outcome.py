"""What a run came to, as counts and as points in time. Types only."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Sample:
    """The plant at one time."""

    at_ns: int
    offered: int
    """Jobs so far."""
    accepted: int
    """Of those, placed at the first try."""
    running: dict[str, int]
    """Jobs by criticality."""
    waiting: dict[str, int]
    node_levels: dict[str, int]
    """Nodes by level of assurance."""
    assurance_mean: float
    misses: int
    outage_s: dict[str, float]
    """Time without enough working replicas so far, summed over the jobs of a criticality."""
    actions: dict[str, int]
    """Orders so far, by kind."""


@dataclass(slots=True)
class Outcome:
    """What one run came to; counters are by criticality."""

    scorer: str
    offered: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)
    """At the first try."""
    misses: Counter[str] = field(default_factory=Counter)
    outage_ns: Counter[str] = field(default_factory=Counter)
    outages_beyond_promise: int = 0
    """Outages longer than the job's maxOutage."""
    actions: Counter[str] = field(default_factory=Counter)
    """By kind."""
    samples: list[Sample] = field(default_factory=list)
