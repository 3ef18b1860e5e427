"""Earliest-deadline-first scheduling on one core: processor demand.

A task set meets all deadlines exactly when in no window the jobs that are both released and due need more
than the supply (Baruah, Rosier and Howell, Real-Time Systems 1990; jitter as in Spuri, INRIA 1996; servers as
in Shin and Lee, RTSS 2003). The windows are searched from the longest down as in quick processor-demand
analysis (Zhang and Burns, IEEE TC 2009), here stepping through the inverse of the supply. When effort is
spent, demand that is exact for the first jobs of each task and linear after them (Albers and Slomka, ECRTS
2004) may still prove.
"""

from collections.abc import Sequence

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
from k40s.analysis.verdict import Bound, Excess, Proved, Refuted, Undecided, Verdict

_STEPS_KEPT_EXACT = 64
"""Jobs per task that the fallback keeps exact."""


def earliest_deadline_first(
    tasks: Sequence[Task], supply: Supply = WHOLE_CORE, effort: int = DEFAULT_EFFORT
) -> Verdict:
    """Whether every task meets its deadline under preemptive EDF, whatever the order of ties.

    Each job may take `wcet_ns`; there are no modes. `Proved` bounds each response by the task's deadline,
    which is all that demand shows. `Refuted` names a window that no scheduler survives; where the supply is
    only a bound it becomes `Undecided`.
    """
    load = long_run(tasks, supply)
    if not isinstance(load, Proved):
        return load
    proof = Proved(tuple(Bound(task.name, task.deadline_ns, task.deadline_ns) for task in tasks))
    if supply.gap_ns == 0 and all(task.effective_deadline_ns >= task.period_ns for task in tasks):
        return proof  # demand never exceeds utilisation * window (Liu and Layland, JACM 1973)
    try:
        excess = _excess(tasks, supply, effort)
    except EffortSpent:
        if _is_linearly_fine(tasks, supply, max(1, min(_STEPS_KEPT_EXACT, effort // max(1, len(tasks))))):
            return proof
        return Undecided(
            f"the effort of {effort} terms was spent and the linear bound on demand does not prove it"
        )
    if excess is None:
        return proof
    return Refuted(excess) if supply.is_exact else Undecided(f"by a bound that is not exact: {excess}")


_Row = tuple[int, int, int]
"""D - J, T and C of a task: what demand is made of."""


def demand_ns(tasks: Sequence[Task], window_ns: int) -> int:
    """Most that can be both released and due in a window: job k is due D - J + k * T after its release."""
    return _demand(_rows(tasks), window_ns)


def _rows(tasks: Sequence[Task]) -> list[_Row]:
    return [(task.effective_deadline_ns, task.period_ns, task.wcet_ns) for task in tasks]


def _demand(rows: Sequence[_Row], window_ns: int) -> int:
    return sum(
        wcet * (1 + (window_ns - deadline) // period)
        for deadline, period, wcet in rows
        if deadline <= window_ns
    )


def _due_by(rows: Sequence[_Row], window_ns: int) -> int:
    """Latest due time of any job at or before the end of the window; 0 where there is none."""
    return max(
        (
            window_ns - (window_ns - deadline) % period
            for deadline, period, _ in rows
            if deadline <= window_ns
        ),
        default=0,
    )


def _excess(tasks: Sequence[Task], supply: Supply, effort: int) -> Excess | None:
    """A window with more demand than supply, searched from the longest that matters. Raises EffortSpent."""
    meter = Effort(effort)
    rows = _rows(tasks)
    if any(deadline <= 0 for deadline, _, _ in rows):
        return Excess(0, _demand(rows, 0), 0)
    window_ns = _due_by(rows, _longest_window(tasks, supply, meter))
    while window_ns > 0:
        meter.spend(2 * len(rows))
        need_ns = _demand(rows, window_ns)
        supplied_ns = supply.supplied_ns(window_ns)
        if need_ns > supplied_ns:
            return Excess(window_ns, need_ns, supplied_ns)
        # every window from here up to window_ns is supplied with need_ns, and demands no more
        enough_ns = supply.window_ns(need_ns)
        window_ns = enough_ns if enough_ns < window_ns else _due_by(rows, window_ns - 1)
    return None


def _longest_window(tasks: Sequence[Task], supply: Supply, meter: Effort) -> int:
    """A length beyond which no first excess lies: the linear bound, a common cycle or the busy window.

    Beyond the last first deadline and the gap, a window longer by a common cycle of the periods has demand
    and supply grow by utilisation and rate times the cycle, so the shorter window shows an excess as well.
    Raises EffortSpent when none of the three is found.
    """
    known = [
        bound_ns
        for bound_ns in (_linear_window(tasks, supply), _cyclic_window(tasks, supply))
        if bound_ns is not None
    ]
    known_ns = min(known) if known else None
    try:
        busy_ns = _busy_window(tasks, supply, Effort(meter.left // 4), known_ns)
    except EffortSpent:
        if known_ns is None:
            raise
        return known_ns
    return busy_ns if known_ns is None else min(busy_ns, known_ns)


def _linear_window(tasks: Sequence[Task], supply: Supply) -> int | None:
    """Where the lines above the demand and below the supply meet; None at full utilisation."""
    rate = supply.rate
    spare = share_down(rate.numerator, rate.denominator)
    spare -= sum(share_up(task.wcet_ns, task.period_ns) for task in tasks)
    if spare <= 0:
        return None
    ahead = share_up(supply.gap_ns * rate.numerator, rate.denominator)
    for deadline, period, wcet in _rows(tasks):
        ahead += share_up(wcet * max(0, period - deadline), period)
    return ahead // spare


def _cyclic_window(tasks: Sequence[Task], supply: Supply) -> int | None:
    cycle_ns: int | None = supply.cycle_ns
    for task in tasks:
        cycle_ns = common_cycle(cycle_ns, task.period_ns)
    if cycle_ns is None:
        return None
    return cycle_ns + max(supply.gap_ns, *(task.effective_deadline_ns for task in tasks))


def _busy_window(tasks: Sequence[Task], supply: Supply, meter: Effort, enough_ns: int | None) -> int:
    """Longest time until all that was released is done, from a simultaneous release; stops past `enough_ns`."""
    window_ns = supply.window_ns(sum(task.wcet_ns for task in tasks))
    while enough_ns is None or window_ns < enough_ns:
        meter.spend(len(tasks))
        reached_ns = supply.window_ns(
            sum(task.wcet_ns * task.arrivals_released_in(window_ns) for task in tasks)
        )
        if reached_ns <= window_ns:
            break
        window_ns = reached_ns
    return window_ns


def _is_linearly_fine(tasks: Sequence[Task], supply: Supply, exact_jobs: int) -> bool:
    """Whether demand, linear from each task's `exact_jobs`-th job on, stays below the linear bound of the
    supply.

    Between its steps that demand grows no faster than the supply, so looking at the steps is enough.
    """
    rate = supply.rate
    growth_limit = share_down(rate.numerator, rate.denominator)
    if sum(share_up(task.wcet_ns, task.period_ns) for task in tasks) > growth_limit:
        return False
    steps = sorted(
        (task.effective_deadline_ns + job * task.period_ns, job == exact_jobs - 1, number)
        for number, task in enumerate(tasks)
        for job in range(exact_jobs)
    )
    constant = slope = 0  # scaled demand in a window w is constant + slope * w
    for position, (due_ns, turns_linear, number) in enumerate(steps):
        task = tasks[number]
        constant += task.wcet_ns << SHARE_BITS
        if turns_linear:
            share = share_up(task.wcet_ns, task.period_ns)
            slope += share
            constant -= share * due_ns
        if position + 1 < len(steps) and steps[position + 1][0] == due_ns:
            continue
        demand = constant + slope * due_ns
        supplied = growth_limit * max(0, due_ns - supply.gap_ns)
        if due_ns <= 0 or demand > supplied:
            return False
    return True
