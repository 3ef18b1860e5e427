"""How much processor time a task set is sure to get: the whole core, or a server with a budget per period.

A supply is described by `supplied_ns(window)`, the least it gives in any window of that length, and its
inverse `window_ns(work)`, the shortest window that is sure to give that much. Both are exact integers. All
supplies here are superadditive, which the busy-window arguments of the tests rest on. Knows nothing about
tasks.
"""

import enum
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

from k40s.errors import BadInput


class Supply(Protocol):
    """Least processor time that is sure to be there."""

    @property
    def rate(self) -> Fraction:
        """Share of a core in the long run, 0 to 1."""
        ...

    @property
    def gap_ns(self) -> int:
        """Delay of the linear bound: any window w gives at least rate * (w - gap)."""
        ...

    @property
    def cycle_ns(self) -> int:
        """Beyond the gap, windows longer by this are supplied with exactly rate * cycle more."""
        ...

    @property
    def is_exact(self) -> bool:
        """Whether `supplied_ns` is what the worst legal supply really gives, so that a miss against it is a
        miss.
        """
        ...

    def supplied_ns(self, window_ns: int) -> int:
        """Least supply in any window of that length; 0 for windows of 0 or less."""
        ...

    def window_ns(self, work_ns: int) -> int:
        """Shortest window that is sure to supply `work_ns` (0 for 0): the inverse of `supplied_ns`."""
        ...


@dataclass(frozen=True, slots=True)
class WholeCore:
    """All of one core."""

    rate = Fraction(1)
    gap_ns = 0
    cycle_ns = 1
    is_exact = True

    def supplied_ns(self, window_ns: int) -> int:
        return max(0, window_ns)

    def window_ns(self, work_ns: int) -> int:
        return work_ns


WHOLE_CORE = WholeCore()


class ServerKind(enum.Enum):
    """How a server hands out its budget; the value is how many gaps of P - Q can come together."""

    CONSTANT_BANDWIDTH = 2
    """Budget may come at the start of one period and at the end of the next (SCHED_DEADLINE, RT cgroups)."""

    DEFERRABLE = 1
    """Budget is kept while there is nothing to run, and the server is served first on its core."""


@dataclass(frozen=True, slots=True)
class Server:
    """A CPU reservation on one core: `budget_ns` in every period of `period_ns`.

    The supply bound is that of the periodic resource model (Shin and Lee, RTSS 2003), with a first gap of 2(P
    - Q) or, for a deferrable server, P - Q: the queue may become busy just after the budget was spent at the
    start of a period.

    Raises:
        BadInput: not 1 <= budget_ns <= period_ns.
    """

    period_ns: int
    budget_ns: int
    kind: ServerKind = ServerKind.CONSTANT_BANDWIDTH

    def __post_init__(self) -> None:
        if not 1 <= self.budget_ns <= self.period_ns:
            raise BadInput(
                f"server budget_ns is {self.budget_ns}; it must be 1 to its period_ns of {self.period_ns}"
            )

    @property
    def rate(self) -> Fraction:
        return Fraction(self.budget_ns, self.period_ns)

    @property
    def gap_ns(self) -> int:
        """Longest time without supply: the first gap."""
        return self.kind.value * (self.period_ns - self.budget_ns)

    @property
    def cycle_ns(self) -> int:
        return self.period_ns

    @property
    def is_exact(self) -> bool:
        return True

    def supplied_ns(self, window_ns: int) -> int:
        after_gap = window_ns - self.gap_ns
        if after_gap <= 0:
            return 0
        periods, rest = divmod(after_gap, self.period_ns)
        return periods * self.budget_ns + min(rest, self.budget_ns)

    def window_ns(self, work_ns: int) -> int:
        if work_ns <= 0:
            return 0
        budgets = (work_ns - 1) // self.budget_ns
        return self.gap_ns + budgets * self.period_ns + work_ns - budgets * self.budget_ns


@dataclass(frozen=True, slots=True)
class Linear:
    """The linear (rate and delay) lower bound of a server: (w - gap) * Q / P, rounded down.

    Only sufficient: kept because others quote budgets by it, and as the cheapest bound there is.
    """

    server: Server

    @property
    def rate(self) -> Fraction:
        return self.server.rate

    @property
    def gap_ns(self) -> int:
        return self.server.gap_ns

    @property
    def cycle_ns(self) -> int:
        return self.server.period_ns

    @property
    def is_exact(self) -> bool:
        return self.server.budget_ns == self.server.period_ns

    def supplied_ns(self, window_ns: int) -> int:
        return max(0, window_ns - self.gap_ns) * self.server.budget_ns // self.server.period_ns

    def window_ns(self, work_ns: int) -> int:
        return self.gap_ns - (-work_ns * self.server.period_ns // self.server.budget_ns) if work_ns > 0 else 0
