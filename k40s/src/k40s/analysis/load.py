"""Long-run load of a task set, and the bounded effort that every test here works within.

Utilisation is compared first, exactly; where sums of fractions would grow too long to be worth it, shares are
kept as integers scaled by 2**256 and rounded to the safe side. No float takes part. Knows tasks and supplies,
no scheduler.
"""

from collections.abc import Sequence
from fractions import Fraction
from math import lcm

from k40s.analysis.supply import Supply
from k40s.analysis.task import Task
from k40s.analysis.verdict import Overload, Proved, Refuted, Undecided

SHARE_BITS = 256
"""Binary places of a scaled share."""

DEFAULT_EFFORT = 400_000
"""Recurrence terms that one test may evaluate before it settles for its linear bound: some tens of
milliseconds.
"""

LONGEST_CYCLE_NS = 1 << 96
"""Common multiples of periods above this are not followed: no effort would reach their end."""

_EXACT_BITS = 20_000
"""Longest common denominator that is still summed exactly."""


class EffortSpent(Exception):
    """The recurrence was given up; the caller turns to a linear bound or says `Undecided`."""


class Effort:
    """A count of recurrence terms that runs out: what makes every test end in bounded time on every input."""

    __slots__ = ("left",)

    def __init__(self, terms: int) -> None:
        self.left = terms

    def spend(self, terms: int) -> None:
        """Raises EffortSpent once more was asked for than was given."""
        self.left -= terms
        if self.left < 0:
            raise EffortSpent


def share_down(amount: int, of: int) -> int:
    """`amount / of`, scaled, rounded down."""
    return (amount << SHARE_BITS) // of


def share_up(amount: int, of: int) -> int:
    """`amount / of`, scaled, rounded up."""
    return -(-(amount << SHARE_BITS) // of)


def common_cycle(cycle_ns: int | None, period_ns: int) -> int | None:
    """Least common multiple, None once it is too long to be worth knowing."""
    if cycle_ns is None:
        return None
    longer_ns = lcm(cycle_ns, period_ns)
    return longer_ns if longer_ns <= LONGEST_CYCLE_NS else None


def utilisation(tasks: Sequence[Task]) -> Fraction:
    """Exact sum of WCET / period."""
    return sum((Fraction(task.wcet_ns, task.period_ns) for task in tasks), Fraction(0))


def long_run(tasks: Sequence[Task], supply: Supply) -> Proved | Refuted | Undecided:
    """Whether the utilisation is at most the supply's rate; `Proved` has no bounds yet."""
    least = sum(share_down(task.wcet_ns, task.period_ns) for task in tasks)
    most = sum(share_up(task.wcet_ns, task.period_ns) for task in tasks)
    rate = supply.rate
    if most <= share_down(rate.numerator, rate.denominator):
        return Proved(())
    exact = sum(period.bit_length() for period in {task.period_ns for task in tasks}) <= _EXACT_BITS
    if not exact and least <= share_up(rate.numerator, rate.denominator):
        return Undecided(
            "utilisation is within 2**-200 of the supply's rate and its periods are too long to sum exactly"
        )
    demand = utilisation(tasks) if exact else Fraction(least, 1 << SHARE_BITS)
    return Refuted(Overload("core", demand, rate)) if demand > rate else Proved(())
