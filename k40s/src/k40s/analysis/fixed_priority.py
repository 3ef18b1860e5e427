"""Fixed-priority preemptive scheduling on one core: worst-case response times.

Busy-window analysis with release jitter and arbitrary deadlines (Lehoczky, RTSS 1990; Tindell, Burns and
Wellings, Real-Time Systems 1994) against any supply. Tasks of equal priority are taken to lose to one
another, so a proof holds for every order of ties, FIFO and round robin among them. Exact while effort lasts,
then a linear upper bound (in the manner of Davis and Burns, RTSS 2008) that takes constant time per task.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, groupby

from k40s.analysis.load import (
    DEFAULT_EFFORT,
    SHARE_BITS,
    Effort,
    EffortSpent,
    common_cycle,
    long_run,
    share_down,
    share_up,
)
from k40s.analysis.supply import WHOLE_CORE, Supply
from k40s.analysis.task import Task
from k40s.analysis.verdict import Bound, DeadlineMiss, Proved, Refuted, Undecided, Verdict


def fixed_priority(
    tasks: Sequence[Task], supply: Supply = WHOLE_CORE, effort: int = DEFAULT_EFFORT
) -> Verdict:
    """Whether every task meets its deadline under preemptive fixed priorities.

    Each job may take `wcet_ns`; there are no modes. `Proved` bounds the response, counted from arrival, of
    each task in the order given. `Refuted` names a legal run; where the supply is only a bound it becomes
    `Undecided`.

    Args:
        tasks: any number; the larger `priority` runs first.
        supply: what the tasks get of their core.
        effort: recurrence terms to evaluate before the linear bound is used.
    """
    load = long_run(tasks, supply)
    if not isinstance(load, Proved):
        return load
    meter = Effort(effort)
    bounds: dict[int, Bound] = {}
    for level in _levels(tasks, supply):
        bound = _judge(level, supply, meter)
        if not isinstance(bound, Bound):
            return bound
        bounds[level.index] = bound
    return Proved(tuple(bounds[index] for index in range(len(tasks))))


def fixed_priority_of(
    tasks: Sequence[Task], index: int, supply: Supply = WHOLE_CORE, effort: int = DEFAULT_EFFORT
) -> Verdict:
    """As `fixed_priority`, for the task at `index` alone: `Proved` has one bound."""
    sharing = [task for task in tasks if task.priority >= tasks[index].priority]
    load = long_run(sharing, supply)
    if not isinstance(load, Proved):
        return load
    level = next(level for level in _levels(tasks, supply) if level.index == index)
    bound = _judge(level, supply, Effort(effort))
    return Proved((bound,)) if isinstance(bound, Bound) else bound


def _judge(level: "_Level", supply: Supply, meter: Effort) -> Bound | Refuted | Undecided:
    """One task's bound, exact while effort lasts."""
    task = level.task
    try:
        worst = _worst_response(level, supply, meter)
        is_exact = supply.is_exact
    except EffortSpent:
        linear = _linear_response(level, supply)
        if linear is None:
            return Undecided(
                f"{task.name}: the effort was spent and its priority level leaves no time to bound it by"
            )
        worst, is_exact = linear, False
    if worst.response_ns <= task.deadline_ns:
        return Bound(task.name, worst.response_ns, task.deadline_ns)
    if is_exact:
        return Refuted(DeadlineMiss(task.name, level.index, worst.due_ns))
    return Undecided(
        f"{task.name}: a bound that is not exact allows a response of {worst.response_ns} ns, "
        f"more than its deadline of {task.deadline_ns} ns"
    )


@dataclass(frozen=True, slots=True)
class _Worst:
    """Largest response found, and when the job that has it is due, counted from the simultaneous release."""

    response_ns: int
    due_ns: int


@dataclass(frozen=True, slots=True)
class _Level:
    """A task and the scaled load of its rivals: the other tasks of its own or a higher priority.

    `carried` is what rivals bring along beyond their share of the window: C * J / T at least (down), and at
    most C * (J + T - 1) / T (up).
    """

    index: int
    task: Task
    sharing: Sequence[tuple[int, int, int]]
    """C, J and T of the task and its rivals."""
    cycle_ns: int | None
    """A time after which their periods and the supply's repeat, None where it is too long to matter."""
    share_down: int
    share_up: int
    carried_down: int
    carried_up: int


def _levels(tasks: Sequence[Task], supply: Supply) -> Iterator[_Level]:
    """Each task with its rivals, highest priority first."""
    order = sorted(range(len(tasks)), key=lambda index: -tasks[index].priority)
    by_priority = [(tasks[index].wcet_ns, tasks[index].jitter_ns, tasks[index].period_ns) for index in order]
    sums = [0, 0, 0, 0]
    placed = 0
    cycle_ns: int | None = supply.cycle_ns
    for _, peers in groupby(order, key=lambda index: tasks[index].priority):
        group = [(index, _scaled(tasks[index])) for index in peers]
        sums = [total + sum(own[part] for _, own in group) for part, total in enumerate(sums)]
        placed += len(group)
        for index, _ in group:
            cycle_ns = common_cycle(cycle_ns, tasks[index].period_ns)
        sharing = by_priority if placed == len(by_priority) else by_priority[:placed]
        for index, own in group:
            yield _Level(
                index,
                tasks[index],
                sharing,
                cycle_ns,
                *(total - part for total, part in zip(sums, own, strict=True)),
            )


def _scaled(task: Task) -> tuple[int, int, int, int]:
    """What a task adds to the four scaled sums of `_Level`."""
    wcet, period, jitter = task.wcet_ns, task.period_ns, task.jitter_ns
    return (
        share_down(wcet, period),
        share_up(wcet, period),
        share_down(wcet * jitter, period),
        share_up(wcet * (jitter + period - 1), period),
    )


def _worst_response(level: _Level, supply: Supply, meter: Effort) -> _Worst:
    """Largest response over the jobs of the longest busy window, or the first one found to be late.

    Job q arrives at q * T - J; the window ends with the first job that completes before the next one is
    released. A window without end (jitter or a gap at full utilisation) need not be followed beyond a common
    cycle of all periods: whatever ends at w has a successor, a cycle later, that ends at w + cycle or before.
    Raises EffortSpent.
    """
    task = level.task
    worst = _Worst(0, 0)
    finish_ns = 0
    for job in count():
        arrival_ns = job * task.period_ns - task.jitter_ns
        due_ns = arrival_ns + task.deadline_ns
        finish_ns = _finish(level, job + 1, finish_ns, due_ns, supply, meter)
        if finish_ns - arrival_ns > worst.response_ns:
            worst = _Worst(finish_ns - arrival_ns, due_ns)
        if finish_ns > due_ns or finish_ns <= arrival_ns + task.period_ns:
            return worst
        if level.cycle_ns is not None and (job + 1) * task.period_ns >= level.cycle_ns:
            return worst
    raise AssertionError("unreachable: count() does not end")


def _finish(level: _Level, jobs: int, previous_ns: int, due_ns: int, supply: Supply, meter: Effort) -> int:
    """Least fixed point at which `jobs` jobs of the task and all that rivals release before are done.

    Stops early, with a lower bound, once past `due_ns`. Starts at the linear lower bound, which rules out
    long climbs.
    """
    task = level.task
    own_ns = jobs * task.wcet_ns
    spare = share_up(supply.rate.numerator, supply.rate.denominator) - level.share_down
    start_ns = -(-((own_ns << SHARE_BITS) + level.carried_down) // spare)
    window_ns = max(start_ns, previous_ns + task.wcet_ns)
    while window_ns <= due_ns:
        meter.spend(len(level.sharing) + 1)
        need_ns = own_ns - task.wcet_ns * -(-(window_ns + task.jitter_ns) // task.period_ns)
        for wcet, jitter, period in level.sharing:  # the task itself among them: taken out again just above
            need_ns += wcet * -(-(window_ns + jitter) // period)
        reached_ns = supply.window_ns(need_ns)
        if reached_ns <= window_ns:
            return window_ns
        window_ns = reached_ns
    return window_ns


def _linear_response(level: _Level, supply: Supply) -> _Worst | None:
    """Upper bound by the straight lines above the rivals' requests and below the supply; None where they
    never meet.

    The first job's is the largest: each later one starts a period later and ends, as the utilisation is at
    most the rate, at most a period later.
    """
    task, rate = level.task, supply.rate
    spare = share_down(rate.numerator, rate.denominator) - level.share_up
    if spare <= 0:
        return None
    delay = share_up(supply.gap_ns * rate.numerator, rate.denominator)
    finish_ns = -(-((task.wcet_ns << SHARE_BITS) + level.carried_up + delay) // spare)
    return _Worst(finish_ns + task.jitter_ns, task.effective_deadline_ns)
