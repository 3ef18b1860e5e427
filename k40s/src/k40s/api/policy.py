"""AssurancePolicy: how evidence becomes a score, and how the ladder is climbed."""

import enum
import itertools
from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from k40s.api.fields import (
    API_VERSION,
    Duration,
    Finding,
    Model,
    Name,
    ObjectMeta,
    PositiveDuration,
    Ratio,
    refuse,
)

SECOND_NS = 1_000_000_000

Points = Annotated[float, Field(ge=0, le=5)]


ALPHA_POINTS: Mapping[str, float] = {
    "ecc-memory": 1.0,
    "smt-off": 0.75,
    "cache-allocation": 0.75,
    "watchdog": 1.0,
    "timestamping-nic": 0.5,
    "redundant-links": 0.5,
    "bare-metal": 0.5,
}
"""Hardware."""
BETA_POINTS: Mapping[str, float] = {
    "preempt-rt": 1.25,
    "rt-budgets": 1.25,
    "isolated-cpus": 0.75,
    "partitioning-hypervisor": 0.5,
    "tsn-qdiscs": 0.5,
    "ptp-in-sync": 0.75,
}
"""Software."""


class Weights(Model):
    """Points that each capability of hardware (alpha) and software (beta) gives; each part adds up to at most
    5."""

    alpha: dict[Name, Points] = Field(default_factory=lambda: dict(ALPHA_POINTS))
    beta: dict[Name, Points] = Field(default_factory=lambda: dict(BETA_POINTS))

    @model_validator(mode="after")
    def _at_most_five(self) -> Self:
        for part, points in (("alpha", self.alpha), ("beta", self.beta)):
            if sum(points.values()) > 5:
                refuse(Finding((part,), sum(points.values()), "lower the points to a sum of at most 5"))
        return self


class Signal(Model):
    """How one run-time measurement scales gamma: whole up to `good`, down by `severity` from `bad` on, linear
    between.

    A signal that is not measured counts as `bad`. Units are those of the signal: parts per million for
    ratios, nanoseconds for times, plain counts for events."""

    good: Annotated[int, Field(strict=True, ge=0)]
    bad: Annotated[int, Field(strict=True, ge=1)]
    severity: Ratio

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.good >= self.bad:
            refuse(Finding(("bad",), self.bad, f"use more than good ({self.good})"))
        return self


def _signal(good: int, bad: int, severity_percent: int) -> Signal:
    return Signal(good=good, bad=bad, severity=Fraction(severity_percent, 100))


SIGNALS: Mapping[str, Signal] = {
    "deadline-misses": _signal(0, 1_000, 100),
    "budget-overruns": _signal(0, 10_000, 80),
    "wakeup-latency": _signal(100_000, 5_000_000, 60),
    "cpu-pressure": _signal(100_000, 800_000, 30),
    "memory-pressure": _signal(10_000, 300_000, 50),
    "io-pressure": _signal(100_000, 800_000, 20),
    "throttling": _signal(10_000, 500_000, 20),
    "steal": _signal(2_000, 100_000, 50),
    "thermal-events": _signal(0, 10, 30),
    "clock-offset": _signal(1_000, 1_000_000, 10),
    "link-errors": _signal(0, 1_000, 40),
}
"""Run-time evidence."""


class Thresholds(Model):
    """Scores at which a node's level begins."""

    lo: Ratio = Fraction(1, 3)
    hi: Ratio = Fraction(2, 3)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.lo > self.hi:
            refuse(Finding(("hi",), float(self.hi), f"use at least lo ({float(self.lo):g})"))
        return self


class Hysteresis(Model):
    """A score falls at once and recovers slowly, so that a level never flaps."""

    rise: Ratio = Fraction(1, 50)
    """How far above a threshold the score must be before the level rises."""
    hold_ns: Duration = 10 * SECOND_NS
    """How long it must stay there."""
    half_life_ns: PositiveDuration = 30 * SECOND_NS
    """Time in which half of the harm done by bad evidence is forgotten."""


class Step(enum.StrEnum):
    """Rungs of the reaction ladder, gentlest first."""

    WATCH = "watch-closer"
    THROTTLE_NO = "throttle-no"
    FREEZE_NO = "freeze-no"
    EVICT_NO = "evict-no"
    DEGRADE_LO = "degrade-lo"
    EVICT_LO = "evict-lo"
    MOVE_HI = "move-hi"


class Rung(Model):
    """One step of the ladder, with its patience."""

    step: Step
    escalate_after_ns: Duration = SECOND_NS
    """How long the alarm must last on this rung before the next one is climbed."""
    recover_after_ns: Duration = 10 * SECOND_NS
    """How long it must be calm before this rung is left downwards."""


class AssurancePolicySpec(Model):
    """Everything that may be tuned about scores and reactions."""

    weights: Weights = Weights()
    signals: dict[Name, Signal] = Field(default_factory=lambda: dict(SIGNALS))
    thresholds: Thresholds = Thresholds()
    hysteresis: Hysteresis = Hysteresis()
    ladder: tuple[Rung, ...] = tuple(Rung(step=step) for step in Step)
    """Steps may be left out, their order may not change."""
    throttle_share: Ratio = Fraction(1, 4)
    """What a throttled container keeps of its CPU limit."""

    partition_lease_ns: PositiveDuration = 2 * SECOND_NS
    """How long a node may be cut off before it ends its `onPartition: stop` jobs; others may start them after
    twice that."""

    @model_validator(mode="after")
    def _ladder_in_order(self) -> Self:
        order = list(Step)
        places = [order.index(rung.step) for rung in self.ladder]
        for index, (lower, upper) in enumerate(itertools.pairwise(places), start=1):
            if upper <= lower:
                above = order[lower].value
                refuse(Finding(("ladder", index, "step"), order[upper].value, f"put it before {above}, once"))
        return self


class AssurancePolicy(Model):
    """How nodes are scored and how trouble is answered."""

    api_version: Literal["k40s.dev/v1alpha1"] = API_VERSION
    kind: Literal["AssurancePolicy"] = "AssurancePolicy"
    metadata: ObjectMeta
    spec: AssurancePolicySpec = AssurancePolicySpec()
