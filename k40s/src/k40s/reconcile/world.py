"""What reconciling reads and what it orders: desired and observed state, actions, memory. Types only."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from k40s.api.level import Level


class Treatment(enum.IntEnum):
    """What is done to a job, gentlest first. NO jobs are throttled and frozen, LO jobs are degraded."""

    FREE = 0
    THROTTLED = 1
    DEGRADED = 2
    FROZEN = 3
    EVICTED = 4


@dataclass(frozen=True, slots=True)
class DesiredJob:
    """A job that should run, and where."""

    name: str
    node: str
    criticality: Level
    may_preempt: bool = True
    """Whether others may be evicted for it."""
    preemptable: bool = True
    """Whether it may be frozen or evicted for others."""
    priority: int = 8
    """1 to 15 among jobs of one criticality; 1 is the most important."""
    on_partition: Literal["keep", "stop"] = "keep"


@dataclass(frozen=True, slots=True)
class Alarm:
    """A job is, or is about to be, denied what it was promised."""

    victim: str
    reason: str
    culprit: str | None = None
    """Who causes it, where that is known."""
    overrun: bool = False
    """A HI task ran beyond C(LO): the mode of the node becomes HI at once."""


@dataclass(frozen=True, slots=True)
class ObservedNode:
    """What is seen of one node."""

    jobs: Mapping[str, Treatment] = field(default_factory=dict)
    """Jobs that are there, and how they are treated; a job that is not there is not listed."""
    alarms: tuple[Alarm, ...] = ()
    watched_closely: bool = False
    mode: Level = Level.LO
    reachable: bool = True
    """Whether whoever reconciles can reach the node. An agent that is cut off says so of its own node."""


Observed = Mapping[str, ObservedNode]
Desired = Mapping[str, DesiredJob]


@dataclass(frozen=True, slots=True)
class NodeMemory:
    """Where one node stands on the ladder."""

    rung: int = -1
    """Index into the policy's ladder; -1 is the ground."""
    since_ns: int = 0
    """Since when it stands there."""
    calm_since_ns: int | None = None
    """Since when no alarm has called for this rung."""
    left_at_ns: int | None = None
    """When a rung was last left downwards."""
    relapses: int = 0
    """How often alarms came back soon after; each doubles the patience before leaving a rung."""
    high_since_ns: int | None = None
    """Last time that an overrun called for mode HI."""
    cut_off_since_ns: int | None = None
    """Since when the node has not been reachable."""
    culprits: frozenset[str] = frozenset()
    """Jobs named by alarms during this climb, of the class that the rung is about."""
    helped: Level = Level.NO
    """Most critical victim that this climb is for."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What one pass hands to the next; the empty one is the start."""

    nodes: Mapping[str, NodeMemory] = field(default_factory=dict)
    moved_at_ns: Mapping[str, int] = field(default_factory=dict)
    """When each job was last moved."""


@dataclass(frozen=True, slots=True)
class Watch:
    """Measure a node closely, per container, or go back to the cheap stage."""

    node: str
    closely: bool
    reason: str


@dataclass(frozen=True, slots=True)
class SetMode:
    """Switch the node's mode: servers get their C(HI) or C(LO) budgets."""

    node: str
    mode: Level
    reason: str


@dataclass(frozen=True, slots=True)
class Treat:
    """Change how a job on a node is treated; `EVICTED` ends it there."""

    node: str
    job: str
    treatment: Treatment
    reason: str


@dataclass(frozen=True, slots=True)
class Start:
    """Start a job that should run on the node and does not."""

    node: str
    job: str
    treatment: Treatment
    reason: str


@dataclass(frozen=True, slots=True)
class Stop:
    """End a job that should no longer run on the node."""

    node: str
    job: str
    reason: str


@dataclass(frozen=True, slots=True)
class Move:
    """Start a HI job on a node where it is proved feasible, then end it where it suffers."""

    node: str
    job: str
    target: str
    reason: str


Action = Watch | SetMode | Treat | Start | Stop | Move
