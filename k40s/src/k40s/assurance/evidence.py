"""What is known of a node: capabilities that it has or lacks, and readings taken while it runs.

Probes fill these in; this room only judges them. Something that could not be found out is `Unknown` with the
reason, and counts as absent. Names of capabilities and readings are those of the policy (`api.policy`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Present:
    """The node has it; `found` says what was seen, e.g. "EDAC mc0"."""

    found: str


@dataclass(frozen=True, slots=True)
class Absent:
    """The node lacks it; `found` says what was seen instead."""

    found: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """It could not be found out; `reason` says why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Measured:
    """A reading in its signal's unit: parts per million for ratios, nanoseconds for times, counts for events;
    >= 0."""

    value: int
    found: str = ""
    """How it came about, for people, e.g. "3 of 12000 periods"."""


Capability = Present | Absent | Unknown
Reading = Measured | Unknown

NEVER_LOOKED = Unknown("no probe reported it")


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that is known of one node at one time."""

    capabilities: Mapping[str, Capability] = field(default_factory=dict)
    """By name, e.g. `ecc-memory`, `preempt-rt`."""
    readings: Mapping[str, Reading] = field(default_factory=dict)
    """By name, e.g. `deadline-misses`, `steal`."""

    def capability(self, name: str) -> Capability:
        return self.capabilities.get(name, NEVER_LOOKED)

    def reading(self, name: str) -> Reading:
        return self.readings.get(name, NEVER_LOOKED)
