"""The task model that every test here shares: sporadic tasks with jitter, arbitrary deadlines and two WCETs.

Integer nanoseconds throughout. Knows nothing about servers, schedulers or machines.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from k40s.analysis.verdict import Mode
from k40s.errors import BadInput


@dataclass(frozen=True, slots=True)
class Task:
    """A sporadic task: jobs arrive at least `period_ns` apart.

    A job is released (may run) up to `jitter_ns` after it arrives and must complete `deadline_ns` after it
    *arrives*; the deadline may be below, at or above the period. Jobs of one task run in the order of their
    arrival.

    The two budgets say what the task is owed (Vestal, RTSS 2007; degraded budgets as in Burns and Baruah, WMC
    2013): a HI task has C(HI) >= C(LO); a LO task has C(HI) < C(LO), its degraded guarantee, 0 when it is
    dropped. A task with both equal is the same in either mode, so no test needs to be told its level.

    Args:
        name: for messages; need not be unique.
        period_ns: 1 or more.
        deadline_ns: 1 or more.
        wcet_lo_ns: C(LO), 1 or more.
        wcet_hi_ns: C(HI), 0 or more.
        jitter_ns: 0 or more.
        priority: for fixed-priority tests; the larger number runs first, as in Linux. Equal ones may run in
            any order.

    Raises:
        BadInput: a field is out of its range or not an integer.
    """

    name: str
    period_ns: int
    deadline_ns: int
    wcet_lo_ns: int
    wcet_hi_ns: int
    jitter_ns: int = 0
    priority: int = 0

    def __post_init__(self) -> None:
        for field, value, least in (
            ("period_ns", self.period_ns, 1),
            ("deadline_ns", self.deadline_ns, 1),
            ("wcet_lo_ns", self.wcet_lo_ns, 1),
            ("wcet_hi_ns", self.wcet_hi_ns, 0),
            ("jitter_ns", self.jitter_ns, 0),
            ("priority", self.priority, None),
        ):
            if not isinstance(value, int) or isinstance(value, bool):
                raise BadInput(f"task {self.name}: {field} is {value!r}; give an integer")
            if least is not None and value < least:
                raise BadInput(f"task {self.name}: {field} is {value}; it must be {least} or more")

    @property
    def wcet_ns(self) -> int:
        """The most that a job may ever take, in either mode."""
        return max(self.wcet_lo_ns, self.wcet_hi_ns)

    @property
    def effective_deadline_ns(self) -> int:
        """Deadline counted from the latest release: D - J, may be 0 or less."""
        return self.deadline_ns - self.jitter_ns

    def arrivals_released_in(self, window_ns: int) -> int:
        """Most jobs released in any half-open window of that length."""
        return -(-(window_ns + self.jitter_ns) // self.period_ns) if window_ns > 0 else 0


def plain(
    name: str, period_ns: int, deadline_ns: int, wcet_ns: int, *, jitter_ns: int = 0, priority: int = 0
) -> Task:
    """A task whose budget is the same in both modes. Raises as `Task`."""
    return Task(name, period_ns, deadline_ns, wcet_ns, wcet_ns, jitter_ns, priority)


def in_mode(tasks: Iterable[Task], mode: Mode) -> tuple[Task, ...]:
    """The tasks as they run for ever in one mode; those dropped in it are left out."""
    if mode == "LO":
        return tuple(replace(task, wcet_hi_ns=task.wcet_lo_ns) for task in tasks)
    return tuple(replace(task, wcet_lo_ns=task.wcet_hi_ns) for task in tasks if task.wcet_hi_ns)


def deadline_monotonic(tasks: Iterable[Task]) -> tuple[Task, ...]:
    """The tasks with priorities by deadline minus jitter, shortest first; optimal for D <= T (Leung and
    Whitehead 1982).
    """
    given = tuple(tasks)
    order = sorted(range(len(given)), key=lambda index: (-given[index].effective_deadline_ns, -index))
    rank = {index: priority for priority, index in enumerate(order, start=1)}
    return tuple(replace(task, priority=rank[index]) for index, task in enumerate(given))
