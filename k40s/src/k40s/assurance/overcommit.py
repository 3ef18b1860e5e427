"""The first part of gamma: points for what a node has promised against what it has.

With C the capacity and R_x, L_x the sums of requests and limits of the jobs of class x, in order:

    L_HI <= C                  2 points    HI jobs get all they may use
    R_LO + L_HI <= C           2 points    and LO jobs what they were promised
    L_LO + L_HI <= C           1 point     or all they may use
    R_NO + R_LO + L_HI <= C    1 point     and NO jobs what they were promised
    R_NO + L_LO + L_HI <= C    2 points    only when more than 4 points came together so far
    L_NO + L_LO + L_HI <= C    2 points    nothing is over-committed

A rule holds when it holds for CPU and for memory. A job without a limit may use the whole node.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from k40s.api.level import Level

RULES: Sequence[tuple[int, str]] = (
    (2, "limits of HI jobs fit"),
    (2, "limits of HI and requests of LO jobs fit"),
    (1, "limits of HI and LO jobs fit"),
    (1, "limits of HI, requests of LO and NO jobs fit"),
    (2, "limits of HI and LO, requests of NO jobs fit (counts only above 4 points)"),
    (2, "limits of all jobs fit"),
)
"""Points and words of each rule, in order."""

MOST_POINTS = 10


@dataclass(frozen=True, slots=True)
class Amounts:
    """CPU in thousandths of a core, memory in bytes."""

    cpu_milli: int = 0
    memory_bytes: int = 0

    def __add__(self, other: "Amounts") -> "Amounts":
        return Amounts(self.cpu_milli + other.cpu_milli, self.memory_bytes + other.memory_bytes)

    def __sub__(self, other: "Amounts") -> "Amounts":
        return Amounts(self.cpu_milli - other.cpu_milli, self.memory_bytes - other.memory_bytes)

    def fits(self, capacity: "Amounts") -> bool:
        return self.cpu_milli <= capacity.cpu_milli and self.memory_bytes <= capacity.memory_bytes


NOTHING = Amounts()


@dataclass(frozen=True, slots=True)
class Load:
    """Sums of requests and limits on a node, by criticality (index: `Level`)."""

    requests: tuple[Amounts, Amounts, Amounts] = field(default=(NOTHING, NOTHING, NOTHING))
    limits: tuple[Amounts, Amounts, Amounts] = field(default=(NOTHING, NOTHING, NOTHING))

    def with_job(self, level: Level, request: Amounts, limit: Amounts) -> "Load":
        """The sums with one more job."""
        return Load(_added(self.requests, level, request), _added(self.limits, level, limit))

    def without_job(self, level: Level, request: Amounts, limit: Amounts) -> "Load":
        """The sums with one job less."""
        return self.with_job(level, NOTHING - request, NOTHING - limit)


def _added(
    sums: tuple[Amounts, Amounts, Amounts], level: Level, more: Amounts
) -> tuple[Amounts, Amounts, Amounts]:
    no, lo, hi = (total + more if index == level else total for index, total in enumerate(sums))
    return (no, lo, hi)


def rules_held(load: Load, capacity: Amounts) -> tuple[bool, ...]:
    """For each of `RULES` whether its points are given."""
    request_no, request_lo, _ = load.requests
    limit_no, limit_lo, limit_hi = load.limits
    sums = (
        limit_hi,
        request_lo + limit_hi,
        limit_lo + limit_hi,
        request_no + request_lo + limit_hi,
        request_no + limit_lo + limit_hi,
        limit_no + limit_lo + limit_hi,
    )
    held = [total.fits(capacity) for total in sums]
    so_far = sum(points for (points, _), holds in zip(RULES[:4], held[:4], strict=True) if holds)
    held[4] = held[4] and so_far > 4
    return tuple(held)


def overcommit_points(load: Load, capacity: Amounts) -> int:
    """0 to 10."""
    return sum(points for (points, _), holds in zip(RULES, rules_held(load, capacity), strict=True) if holds)
