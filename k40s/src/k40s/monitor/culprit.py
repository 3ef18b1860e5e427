"""Stage 2: which container is behind an alarm. The one furthest beyond what it was promised, with the numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from k40s.api.level import Level


class Resource(StrEnum):
    """What is short."""

    CPU = "cpu"
    MEMORY = "memory"
    PROCESSES = "processes"


@dataclass(frozen=True, slots=True)
class Suspect:
    """A container's use of one resource over the last interval, beside what it was promised, in the same unit."""

    job: str
    container: str
    level: Level
    used: int
    promised: int

    @property
    def excess(self) -> int:
        """Use beyond the promise."""
        return max(0, self.used - self.promised)


@dataclass(frozen=True, slots=True)
class Culprit:
    """Who it is, and why."""

    suspect: Suspect
    resource: Resource
    share_percent: int
    """Its part of all use beyond promises."""

    def __str__(self) -> str:
        who = self.suspect
        return (
            f"{who.job}/{who.container} ({who.level.name}) uses {who.used} of {self.resource.value} and was promised "
            f"{who.promised}: {self.share_percent} % of all use beyond promises"
        )


def find_culprit(resource: Resource, suspects: Sequence[Suspect]) -> Culprit | None:
    """The container with the largest excess, of equal ones the least critical; None when all keep to their promise.

    Who is more critical than another is not spared: to name it is no punishment, and the ladder decides who pays.
    """
    total = sum(suspect.excess for suspect in suspects)
    if total == 0:
        return None
    worst = max(
        suspects, key=lambda suspect: (suspect.excess, -suspect.level, suspect.job, suspect.container)
    )
    return Culprit(worst, resource, 100 * worst.excess // total)
