"""What a workload asks of one core: servers, sized from its tasks for one node class.

Tasks of policy `deadline` are their own server (SCHED_DEADLINE: budget C every T, due within D). Tasks of
policy `fifo` share one group server: a budget Q every P, P a power of two times 125 us, so that the periods
on a core divide each other and the kernel priorities of two containers follow from their periods alone, on
every node. Q is the smallest budget for which the tasks are proved under fixed priorities when the budget may
leave gaps of 2(P - Q). LO tasks count with C(LO) in mode LO and with their degraded C(HI) in mode HI; HI
tasks with C(LO) and C(HI).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from itertools import count
from typing import cast

from k40s import api
from k40s.analysis.fixed_priority import fixed_priority
from k40s.analysis.server import Sized, Terms, Test, smallest_budget
from k40s.analysis.task import Task, in_mode
from k40s.analysis.verdict import Mode

SHORTEST_PERIOD_NS = 125_000
"""Shortest group server period; the longest is 2**14 times that, 2 s."""
OCTAVES = 15
SWITCH_NS = 20_000
"""What a period costs the core besides the budget (timer, switch there and back); decides between periods
only."""
TERMS = Terms(grain_ns=1_000, switch_ns=SWITCH_NS)
TOP_PRIORITY = 98
LEVELS_PER_OCTAVE = 6
PERIODS_TRIED = 5
_SERIALS = count()
_TEST = cast(Test, fixed_priority)  # the protocol has a marker for pytest that plain functions lack


@dataclass(frozen=True, slots=True)
class Need:
    """A task with its WCETs on one node class."""

    name: str
    by_deadline: bool
    period_ns: int
    deadline_ns: int
    jitter_ns: int
    wcet_lo_ns: int
    wcet_hi_ns: int
    """For a LO task: what it keeps in mode HI."""
    priority: int | None = None
    """Order inside the group, larger first; absent: deadline-monotonic."""


def need_of(task: api.Task, wcet: api.Wcet, level: api.Level) -> Need:
    """An absent C(HI) is C(LO) for a HI task and nothing for a LO one."""
    default_ns = wcet.lo_ns if level is api.Level.HI else 0
    return Need(
        name=task.name,
        by_deadline=task.policy is api.Policy.DEADLINE,
        period_ns=task.period_ns,
        deadline_ns=task.relative_deadline_ns,
        jitter_ns=task.jitter_ns,
        wcet_lo_ns=wcet.lo_ns,
        wcet_hi_ns=default_ns if wcet.hi_ns is None else wcet.hi_ns,
        priority=task.priority,
    )


@dataclass(frozen=True, slots=True)
class Server:
    """One budget on a core, by mode. `due_ns` counts from the start of a period."""

    name: str
    by_deadline: bool
    """SCHED_DEADLINE; else a group budget under fixed priorities."""
    period_ns: int
    due_ns: int
    budget_lo_ns: int
    budget_hi_ns: int
    """For a LO job: what is left in mode HI, 0 for nothing."""
    high: bool
    """Of a HI job: its budget may grow to `budget_hi_ns`, and the core is proved for that."""

    @property
    def budget_ns(self) -> int:
        """The largest budget in either mode: what the kernel is told to enforce."""
        return max(self.budget_lo_ns, self.budget_hi_ns)

    @property
    def share(self) -> Fraction:
        """Largest share of a core."""
        return Fraction(self.budget_ns, self.period_ns)


@dataclass(frozen=True, slots=True, eq=False)
class Reservation:
    """All servers of one workload on one core. Equal content is the same object (`reserve_for` keeps them),
    so that verdicts about cores can be looked up by identity."""

    servers: tuple[Server, ...]
    priorities: tuple[tuple[str, int], ...]
    """Kernel priority (SCHED_FIFO, 1 to 98) of each `fifo` task."""
    serial: int
    """In order of making: sorts reservations the same way in every run."""
    share: Fraction
    """Largest share of a core that all of it takes."""
    share_ppb: int
    """The same in parts per thousand million, rounded down."""


@dataclass(frozen=True, slots=True)
class NotSized:
    """No server will do; `reason` is one sentence."""

    reason: str


def octave_of(period_ns: int) -> int:
    """Which power of two a group server's period is: 0 is the shortest and most urgent."""
    return (period_ns // SHORTEST_PERIOD_NS).bit_length() - 1


@lru_cache(maxsize=65_536)
def reserve_for(tasks: tuple[Need, ...], level: api.Level, wakeup_ns: int) -> Reservation | NotSized:
    """Servers for the tasks of one workload; `wakeup_ns` adds to every
    jitter."""
    for task in tasks:
        spare_ns = task.deadline_ns - task.jitter_ns - wakeup_ns
        if max(task.wcet_lo_ns, task.wcet_hi_ns) > spare_ns:
            return NotSized(
                f"task {task.name}: WCET is longer than its deadline less jitter ({max(0, spare_ns)} ns)"
            )
    grouped = [task for task in tasks if not task.by_deadline]
    servers = [_own_server(task, level, wakeup_ns) for task in tasks if task.by_deadline]
    priorities: tuple[tuple[str, int], ...] = ()
    if grouped:
        modelled = _prioritised(grouped, wakeup_ns)
        group = _group_server(modelled, level)
        if isinstance(group, NotSized):
            return group
        servers.append(group)
        priorities = _kernel_priorities(modelled, group.period_ns)
    return _interned(tuple(servers), priorities)


@lru_cache(maxsize=65_536)
def _interned(servers: tuple[Server, ...], priorities: tuple[tuple[str, int], ...]) -> Reservation:
    share = sum((server.share for server in servers), Fraction(0))
    return Reservation(
        servers, priorities, next(_SERIALS), share, share.numerator * 10**9 // share.denominator
    )


def _own_server(task: Need, level: api.Level, wakeup_ns: int) -> Server:
    """The kernel replenishes from the wake-up on, so release delays shorten the time that is left.

    It also wants the deadline within the period.
    """
    due_ns = min(task.deadline_ns - task.jitter_ns - wakeup_ns, task.period_ns)
    high = level is api.Level.HI
    return Server(task.name, True, task.period_ns, due_ns, task.wcet_lo_ns, task.wcet_hi_ns, high)


def _prioritised(grouped: Sequence[Need], wakeup_ns: int) -> tuple[Task, ...]:
    """The tasks with their order inside the group: given priorities first, else deadline-monotonic."""
    order = sorted(grouped, key=lambda task: (-(task.priority or 0), task.deadline_ns - task.jitter_ns))
    lowest = len(order) - LEVELS_PER_OCTAVE + 1  # below it, tasks share the band's last priority and are ties
    return tuple(
        Task(
            name=task.name,
            period_ns=task.period_ns,
            deadline_ns=task.deadline_ns,
            wcet_lo_ns=task.wcet_lo_ns,
            wcet_hi_ns=task.wcet_hi_ns,
            jitter_ns=task.jitter_ns + wakeup_ns,
            priority=max(len(order) - place, lowest),
        )
        for place, task in enumerate(order)
    )


def _group_server(tasks: tuple[Task, ...], level: api.Level) -> Server | NotSized:
    """The cheapest of the few longest periods that are well below the shortest deadline."""
    shortest_ns = min(task.effective_deadline_ns for task in tasks)
    longest = min(OCTAVES - 1, (shortest_ns // (2 * SHORTEST_PERIOD_NS)).bit_length() - 1)
    if longest < 0:
        return NotSized(
            f"the shortest deadline less jitter is {shortest_ns} ns, below {2 * SHORTEST_PERIOD_NS} ns"
        )
    everything = tuple(replace(task, wcet_lo_ns=task.wcet_ns, wcet_hi_ns=task.wcet_ns) for task in tasks)
    best: tuple[Fraction, int] | None = None
    failure = ""
    for octave in range(longest, max(-1, longest - PERIODS_TRIED), -1):
        period_ns = SHORTEST_PERIOD_NS << octave
        sized = smallest_budget(everything, _TEST, period_ns, TERMS)
        if isinstance(sized, Sized):
            cost = Fraction(sized.server.budget_ns + SWITCH_NS, period_ns)
            best = min(best or (cost, period_ns), (cost, period_ns))
        else:
            failure = str(sized)
    if best is None:
        return NotSized(f"even a whole core does not hold the tasks: {failure}")
    period_ns = best[1]
    lo_ns, hi_ns = _budget_in(tasks, "LO", period_ns), _budget_in(tasks, "HI", period_ns)
    if level is api.Level.HI:
        hi_ns = max(lo_ns, hi_ns)
    return Server("group", False, period_ns, period_ns, lo_ns, hi_ns, level is api.Level.HI)


def _budget_in(tasks: tuple[Task, ...], mode: Mode, period_ns: int) -> int:
    """Smallest budget in one mode; 0 when no task has a guarantee there."""
    guaranteed = in_mode(tasks, mode)
    if not guaranteed:
        return 0
    sized = smallest_budget(guaranteed, _TEST, period_ns, TERMS)
    # The largest budgets of all tasks together were proved with this period, so these are as well; should the
    # effort of the test have run out on the way, the whole period is the safe answer.
    return sized.server.budget_ns if isinstance(sized, Sized) else period_ns


def _kernel_priorities(tasks: tuple[Task, ...], period_ns: int) -> tuple[tuple[str, int], ...]:
    """One band of priorities for each server period, the shortest on top."""
    top = TOP_PRIORITY - LEVELS_PER_OCTAVE * octave_of(period_ns)
    highest = max(task.priority for task in tasks)
    return tuple((task.name, top - (highest - task.priority)) for task in tasks)
