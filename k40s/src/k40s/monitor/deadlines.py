"""Misses and overruns of tasks, and which misses the host explains.

A virtual machine's host takes its cores away now and then; what it took is counted per core ("steal"). A miss is
explained when the steal seen around the period (from 0.2 s before its release to 0.2 s after its end, the counter being
fed late) is at least the time by which the deadline was missed. The counter has steps of 10 ms, so up to one step
may be lacking, but some of it must have been seen.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

STEP_NS = 10_000_000
AROUND_NS = 200_000_000


class Period(Protocol):
    """What is known of a period's work; times are monotonic nanoseconds."""

    @property
    def release_ns(self) -> int:
        """When it was released."""

    @property
    def end_ns(self) -> int:
        """When it was done."""


@dataclass(frozen=True, slots=True)
class Misses:
    """Periods looked at, those that missed, and those of them that the host does not explain."""

    periods: int = 0
    missed: int = 0
    unexplained: int = 0

    def __add__(self, other: Misses) -> Misses:
        return Misses(
            self.periods + other.periods, self.missed + other.missed, self.unexplained + other.unexplained
        )


def judge(periods: Iterable[Period], deadline_ns: int, steal: Sequence[tuple[int, int]]) -> Misses:
    """Judge finished periods. `steal`: (time, steal so far) of the task's core, oldest first."""
    looked_at = missed = unexplained = 0
    for period in periods:
        looked_at += 1
        late_ns = period.end_ns - period.release_ns - deadline_ns
        if late_ns > 0:
            missed += 1
            unexplained += not _explained(period.release_ns, period.end_ns, late_ns, steal)
    return Misses(looked_at, missed, unexplained)


def _explained(from_ns: int, to_ns: int, late_ns: int, steal: Sequence[tuple[int, int]]) -> bool:
    stolen_ns = stolen_between(from_ns - AROUND_NS, to_ns + AROUND_NS, steal)
    return stolen_ns > 0 and stolen_ns + STEP_NS > late_ns


def stolen_between(from_ns: int, to_ns: int, steal: Sequence[tuple[int, int]]) -> int:
    """Steal seen between the last reading at or before `from_ns` and the first at or after `to_ns`, or as near to them
    as there are readings."""
    if not steal:
        return 0
    times = [at_ns for at_ns, _ in steal]
    before = max(0, bisect_right(times, from_ns) - 1)
    after = min(len(steal) - 1, bisect_left(times, to_ns))
    return max(0, steal[after][1] - steal[before][1])


def spent_budgets(used_ns: int, passed_ns: int, budget_us: int, period_us: int) -> int:
    """Without word from the task: periods in which a container spent its whole budget, over an interval.

    Counted only where it used 99 % of all that the interval granted: a container that keeps to its budget leaves
    more than that unused, so what this counts ran dry and was stopped.
    """
    periods = passed_ns // (period_us * 1_000)
    if periods == 0 or budget_us == 0:
        return 0
    granted_ns = periods * budget_us * 1_000
    return min(periods, used_ns // (budget_us * 1_000)) if used_ns * 100 >= granted_ns * 99 else 0
