"""What an admission test answers: proved, refuted with a witness, or undecided with a reason.

Every room that admits something (cores, links, placement) speaks in these types. A verdict is a value, never
an exception, and only `Proved` admits: whoever reads one must not take `Undecided` for either of the others.
Knows nothing about how a test reaches its answer.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

Mode = Literal["LO", "HI"]
"""Mode of a node: in LO every task keeps to C(LO); the first overrun of a HI task switches to HI."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A proved upper bound: `name` (task or flow) needs at most `at_most_ns` of the `limit_ns` it is given.

    `mode` is the mode of the node in which the bound was found; plain tests know only LO.
    """

    name: str
    at_most_ns: int
    limit_ns: int
    mode: Mode = "LO"

    def __str__(self) -> str:
        return f"{self.name} needs at most {self.at_most_ns} ns of {self.limit_ns} ns in mode {self.mode}"


@dataclass(frozen=True, slots=True)
class Overload:
    """More is asked of `resource` in the long run than it has; whatever the order, backlog grows for ever.

    `demand` and `capacity` are exact: processor time per time for a core, bits per second for a link.
    """

    resource: str
    demand: Fraction
    capacity: Fraction

    def __str__(self) -> str:
        return f"{self.resource} is asked for {_decimal(self.demand)} and has {_decimal(self.capacity)}"


@dataclass(frozen=True, slots=True)
class DeadlineMiss:
    """A legal run under fixed priorities in which a job of the task at `index` misses, at `by_ns` or before.

    In it all tasks are released together at 0 with their largest jitter, then as early as they may; each job
    takes the largest time allowed in `mode`; the supply is the worst that the server may give; the task loses
    ties of priority.
    """

    task: str
    index: int
    by_ns: int
    mode: Mode = "LO"

    def __str__(self) -> str:
        return f"{self.task} is late by {self.by_ns} ns after a simultaneous release, in mode {self.mode}"


@dataclass(frozen=True, slots=True)
class Excess:
    """A window in which more must be completed than the supply is sure to give: no scheduler meets all
    deadlines.

    The run is that of `DeadlineMiss`; some job with a deadline at `window_ns` or before is late.
    """

    window_ns: int
    demand_ns: int
    supplied_ns: int
    mode: Mode = "LO"

    def __str__(self) -> str:
        return (
            f"jobs due within {self.window_ns} ns of a simultaneous release need {self.demand_ns} ns, "
            f"and {self.supplied_ns} ns are sure, in mode {self.mode}"
        )


@dataclass(frozen=True, slots=True)
class TooFar:
    """A flow that is late even when it has every link to itself: `least_ns` is its latency alone."""

    flow: str
    least_ns: int
    limit_ns: int

    def __str__(self) -> str:
        return f"{self.flow} takes {self.least_ns} ns on idle links and is allowed {self.limit_ns} ns"


Witness = Overload | DeadlineMiss | Excess | TooFar


@dataclass(frozen=True, slots=True)
class Proved:
    """Holds in every legal run. `bounds` has one entry per task or flow and mode, in the order they were
    given.
    """

    bounds: tuple[Bound, ...]

    def __str__(self) -> str:
        return "proved: " + ("; ".join(map(str, self.bounds)) or "nothing was asked for")


@dataclass(frozen=True, slots=True)
class Refuted:
    """Does not hold: `witness` is a legal run, or a sum, that shows it."""

    witness: Witness

    def __str__(self) -> str:
        return f"refuted: {self.witness}"


@dataclass(frozen=True, slots=True)
class Undecided:
    """The test is only sufficient and did not succeed, or its effort was spent. `reason` is one sentence."""

    reason: str

    def __str__(self) -> str:
        return f"undecided: {self.reason}"


Verdict = Proved | Refuted | Undecided


def _decimal(value: Fraction) -> str:
    """Six digits after the point, rounded down; for people only, no decision reads it."""
    whole, millionths = divmod(value.numerator * 10**6 // value.denominator, 10**6)
    return f"{whole}.{millionths:06d}"
