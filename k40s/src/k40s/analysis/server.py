"""Designing a server: the smallest budget for a period, and the period that costs the core least.

Searches over whole verdicts of the tests, so whatever it returns is `Proved`. Knows no scheduler of its own.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

from k40s.analysis.load import utilisation
from k40s.analysis.supply import Linear, Server, ServerKind, Supply
from k40s.analysis.task import Task
from k40s.analysis.verdict import Bound, Proved, Refuted, Undecided, Verdict
from k40s.errors import BadInput

LEAST_PERIOD_NS = 100_000
"""Shortest period that the kernel takes for a deadline task unless told otherwise."""


class Test(Protocol):
    """An admission test: `fixed_priority`, `earliest_deadline_first` or `amc_rtb`."""

    def __call__(self, tasks: Sequence[Task], supply: Supply = ...) -> Verdict: ...


@dataclass(frozen=True, slots=True)
class Sized:
    """A server under which the tasks are proved, with their bounds."""

    server: Server
    bounds: tuple[Bound, ...]


@dataclass(frozen=True, slots=True)
class Terms:
    """How a server is to be designed.

    Args:
        kind: how the kernel hands out the budget.
        grain_ns: budgets are multiples of it; 1000 for `cpu.rt_runtime_us`.
        switch_ns: what each period costs the core besides the budget; decides which period is best, not the
            budget.
        by_linear_bound: size by the linear bound of the supply instead of the exact one.

    Raises:
        BadInput: grain_ns below 1 or switch_ns below 0.
    """

    kind: ServerKind = ServerKind.CONSTANT_BANDWIDTH
    grain_ns: int = 1000
    switch_ns: int = 0
    by_linear_bound: bool = False

    def __post_init__(self) -> None:
        if self.grain_ns < 1:
            raise BadInput(f"grain_ns is {self.grain_ns}; it must be 1 or more")
        if self.switch_ns < 0:
            raise BadInput(f"switch_ns is {self.switch_ns}; it must be 0 or more")

    def supply(self, period_ns: int, budget_ns: int) -> tuple[Server, Supply]:
        """The server and the bound that it is judged by."""
        server = Server(period_ns, budget_ns, self.kind)
        return server, Linear(server) if self.by_linear_bound else server


def smallest_budget(
    tasks: Sequence[Task], test: Test, period_ns: int, terms: Terms = Terms()
) -> Sized | Refuted | Undecided:
    """The smallest budget of that period, in steps of the grain, under which `test` proves the tasks.

    A larger budget supplies no window with less, so the search is by halves, from the utilisation up. When
    not even the largest budget will do, its verdict is returned.

    Raises:
        BadInput: the period is shorter than the grain.
    """
    largest = period_ns // terms.grain_ns
    if largest < 1:
        raise BadInput(f"period_ns is {period_ns}; it must be at least the grain of {terms.grain_ns} ns")
    server, supply = terms.supply(period_ns, largest * terms.grain_ns)
    verdict = test(tasks, supply)
    if not isinstance(verdict, Proved):
        return verdict
    best = Sized(server, verdict.bounds)
    share = min((utilisation(tasks), Fraction(1)))
    below, fits = (
        min(largest, share.numerator * period_ns // (share.denominator * terms.grain_ns)) - 1,
        largest,
    )
    below = max(0, below)  # known, by utilisation or by being none at all, to be too little
    while fits - below > 1:
        middle = (below + fits) // 2
        server, supply = terms.supply(period_ns, middle * terms.grain_ns)
        verdict = test(tasks, supply)
        if isinstance(verdict, Proved):
            best, fits = Sized(server, verdict.bounds), middle
        else:
            below = middle
    return best


def candidate_periods(
    tasks: Sequence[Task], least_ns: int = LEAST_PERIOD_NS, most: int = 32
) -> tuple[int, ...]:
    """Periods worth trying: the shortest deadline (less jitter) divided by 1, 2, ... `most`, but `least_ns`
    or more.
    """
    shortest_ns = min((task.effective_deadline_ns for task in tasks), default=0)
    return tuple(
        sorted({shortest_ns // part for part in range(1, most + 1) if shortest_ns // part >= least_ns})
    )


def cheapest_server(
    tasks: Sequence[Task], test: Test, periods_ns: Iterable[int], terms: Terms = Terms()
) -> Sized | Refuted | Undecided:
    """The server of smallest (budget + switch) / period among the periods; the longer period wins a tie.

    Where none will do, the verdict of the shortest period is returned, `Undecided` when there is no period at
    all.
    """
    outcome: Sized | Refuted | Undecided = Undecided("no period was given that the kernel takes")
    cost = Fraction(0)
    for period_ns in sorted(set(periods_ns)):
        sized = smallest_budget(tasks, test, period_ns, terms)
        if not isinstance(sized, Sized):
            outcome = outcome if isinstance(outcome, Sized | Refuted) else sized
            continue
        cost_here = Fraction(sized.server.budget_ns + terms.switch_ns, period_ns)
        if not isinstance(outcome, Sized) or cost_here <= cost:
            outcome, cost = sized, cost_here
    return outcome
