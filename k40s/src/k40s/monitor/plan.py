"""Which metrics are read how often: by the most critical job on the node, and by what the node enforces anyway.

A node that enforces budgets, limits and rates needs to know whether tasks miss and budgets run out; one that only
promises best effort must look for everything that could delay a job. Whatever it is not worth watching closely is
still read now and then, since the node's assurance rests on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from k40s.api.level import Level

MS: Final = 1_000_000
SECOND: Final = 1_000 * MS


class Metric(StrEnum):
    """A kind of counter."""

    TASKS = "tasks"
    STEAL = "steal"
    BUSY = "busy"
    CPU_PRESSURE = "cpu-pressure"
    MEMORY_PRESSURE = "memory-pressure"
    IO_PRESSURE = "io-pressure"
    SOFTIRQS = "softirqs"
    WAKEUP = "wakeup-latency"
    THERMAL = "thermal-events"
    LINK_ERRORS = "link-errors"
    CLOCK = "clock-offset"
    USAGE = "usage"
    THROTTLED = "throttling"
    MEMORY = "memory"
    PROCESSES = "processes"


PER_CONTAINER: Final = frozenset({Metric.USAGE, Metric.THROTTLED, Metric.MEMORY, Metric.PROCESSES})


class Guarantee(StrEnum):
    """What a node enforces by itself, whatever the jobs do."""

    BUDGETS = "budgets"
    MEMORY_LIMITS = "memory-limits"
    FLOW_RATES = "flow-rates"


CLOSE_NS: Final[Mapping[Level, int]] = {Level.HI: SECOND, Level.LO: 3 * SECOND, Level.NO: 15 * SECOND}
"""How often what matters is read, by the most critical job on the node."""
FAR_NS: Final = 30 * SECOND
"""How often the rest is read."""
ALARM_NS: Final = 250 * MS
"""How often containers are looked at while there is an alarm."""

ALWAYS: Final = frozenset({Metric.TASKS, Metric.STEAL})
UNLESS: Final[Mapping[Metric, Guarantee]] = {
    Metric.BUSY: Guarantee.BUDGETS,
    Metric.CPU_PRESSURE: Guarantee.BUDGETS,
    Metric.SOFTIRQS: Guarantee.BUDGETS,
    Metric.WAKEUP: Guarantee.BUDGETS,
    Metric.MEMORY_PRESSURE: Guarantee.MEMORY_LIMITS,
    Metric.LINK_ERRORS: Guarantee.FLOW_RATES,
}
"""Watched closely unless the node guarantees it."""
WITH: Final[Mapping[Metric, Guarantee]] = {
    Metric.USAGE: Guarantee.BUDGETS,
    Metric.THROTTLED: Guarantee.BUDGETS,
}
"""Watched closely when the node enforces it: they tell who runs into a budget."""
BETWEEN: Final = frozenset({Metric.CPU_PRESSURE, Metric.MEMORY_PRESSURE, Metric.WAKEUP})
"""Read at four times the close period even when guaranteed: they are what an alarm is raised on."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How often each metric is read. `why` says by which rule."""

    period_ns: Mapping[Metric, int]
    why: Mapping[Metric, str]

    def due(self, last_ns: Mapping[Metric, int], now_ns: int) -> frozenset[Metric]:
        """Metrics to read now; one never read is due, and so is one read in the future (the clock went back)."""
        return frozenset(
            metric
            for metric, period_ns in self.period_ns.items()
            if metric not in last_ns or not 0 <= now_ns - last_ns[metric] < period_ns
        )


def make_plan(levels: Set[Level], guarantees: Set[Guarantee], alarmed: bool = False) -> Plan:
    """The plan for a node that runs jobs of these levels (none: an idle node)."""
    close_ns = CLOSE_NS[max(levels)] if levels else FAR_NS
    most = max(levels).name if levels else "no"
    period_ns, why = {}, {}
    for metric in Metric:
        rule, period = f"{most} jobs; nothing hangs on it closely", max(FAR_NS, close_ns)
        if metric in ALWAYS:
            rule, period = f"always, for {most} jobs", close_ns
        elif metric in WITH and WITH[metric] in guarantees:
            rule, period = f"the node enforces {WITH[metric].value}: who runs into them", close_ns
        elif metric in UNLESS and UNLESS[metric] not in guarantees:
            rule, period = f"the node does not guarantee {UNLESS[metric].value}", close_ns
        elif metric in BETWEEN:
            rule, period = "alarms are raised on it", min(4 * close_ns, FAR_NS)
        if alarmed and (metric in PER_CONTAINER or metric in BETWEEN):
            rule, period = "alarm: looking for the culprit", ALARM_NS
        period_ns[metric], why[metric] = period, rule
    return Plan(period_ns, why)
