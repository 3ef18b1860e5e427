"""Two criticalities on one core: AMC-rtb for fixed priorities, EDF-VD for deadlines, and the mode change.

A node starts in mode LO. When a job of a HI task has run for C(LO) and is not done, the mode becomes HI: LO
tasks fall back to their degraded budget C(HI), or are dropped where it is 0; HI tasks may take C(HI). The
mode returns to LO at the first instant at which nothing is left to run. Both tests are sufficient; `Refuted`
comes only from a mode that is infeasible by itself. Knows no simulator and no machine.

AMC-rtb: Baruah, Burns and Davis, "Response-time analysis for mixed criticality systems", RTSS 2011.
EDF-VD: Baruah, Bonifaci, D'Angelo, Li, Marchetti-Spaccamela, van der Ster and Stougie, "The preemptive
uniprocessor scheduling of mixed-criticality implicit-deadline sporadic task systems", ECRTS 2012. Degraded
budgets: Burns and Baruah, WMC 2013 (AMC); Liu, Spasic, Guan, Chen, Liu, Stefanov and Yi, RTSS 2016 (EDF-VD).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Protocol

from k40s.analysis.earliest_deadline import earliest_deadline_first
from k40s.analysis.fixed_priority import fixed_priority, fixed_priority_of
from k40s.analysis.load import DEFAULT_EFFORT, Effort, EffortSpent
from k40s.analysis.supply import WHOLE_CORE, Supply
from k40s.analysis.task import Task, in_mode
from k40s.analysis.verdict import (
    Bound,
    DeadlineMiss,
    Excess,
    Mode,
    Overload,
    Proved,
    Refuted,
    Undecided,
    Verdict,
)


def amc_rtb(tasks: Sequence[Task], supply: Supply = WHOLE_CORE, effort: int = DEFAULT_EFFORT) -> Verdict:
    """Whether adaptive mixed criticality keeps every guarantee: all tasks in LO, those with C(HI) > 0 also in
    HI.

    LO jobs that are active at the mode change may finish with C(LO); later ones take C(HI). `Proved` has the
    LO bounds of all tasks, then the HI bounds (over the mode change too) of those with a guarantee there. A
    task whose bound exceeds its period leaves the test `Undecided`, as the analysis follows one job of a task
    at a time.
    """
    low = fixed_priority(in_mode(tasks, "LO"), supply, effort)
    if not isinstance(low, Proved):
        return low
    high = fixed_priority(in_mode(tasks, "HI"), supply, effort)
    if not isinstance(high, Proved):
        return _in_mode_hi(high, tasks)
    meter = Effort(effort)
    bounds: list[Bound] = []
    for index, bound in enumerate(low.bounds):
        changed = _over_change(tasks, index, bound.at_most_ns, supply, meter)
        if not isinstance(changed, Proved):
            return changed
        bounds.extend(changed.bounds)
    return Proved((*low.bounds, *bounds))


def amc_rtb_of(
    tasks: Sequence[Task], index: int, supply: Supply = WHOLE_CORE, effort: int = DEFAULT_EFFORT
) -> Verdict:
    """As `amc_rtb`, for the task at `index` alone."""
    low = fixed_priority_of(in_mode(tasks, "LO"), index, supply, effort)
    if not isinstance(low, Proved):
        return low
    changed = _over_change(tasks, index, low.bounds[0].at_most_ns, supply, Effort(effort))
    return Proved((*low.bounds, *changed.bounds)) if isinstance(changed, Proved) else changed


def _over_change(
    tasks: Sequence[Task], index: int, low_ns: int, supply: Supply, meter: Effort
) -> Proved | Undecided:
    """The task's bound over the mode change (none where it is dropped in HI), given its response in LO."""
    task = tasks[index]
    if low_ns > task.period_ns:
        return _one_job_at_a_time(task, low_ns, "LO")
    if not task.wcet_hi_ns:
        return Proved(())
    try:
        changed_ns = _response_over_change(tasks, index, low_ns - task.jitter_ns, supply, meter)
    except EffortSpent:
        return Undecided(f"{task.name}: the effort was spent on its response over the mode change")
    if changed_ns > task.deadline_ns:
        return Undecided(
            f"{task.name}: AMC-rtb allows it {changed_ns} ns or more over the mode change, "
            f"and its deadline is {task.deadline_ns} ns"
        )
    if changed_ns > task.period_ns:
        return _one_job_at_a_time(task, changed_ns, "HI")
    return Proved((Bound(task.name, changed_ns, task.deadline_ns, "HI"),))


def _one_job_at_a_time(task: Task, response_ns: int, mode: Mode) -> Undecided:
    return Undecided(
        f"{task.name}: AMC-rtb follows one job at a time, and the bound of {response_ns} ns in mode {mode} "
        f"exceeds its period of {task.period_ns} ns"
    )


def _response_over_change(
    tasks: Sequence[Task], index: int, low_ns: int, supply: Supply, meter: Effort
) -> int:
    """Bound on the response, from arrival, of a task that sees the mode change; stops once past deadline or
    period.

    LO rivals released before the task would have been done in LO (`low_ns` after release) may take C(LO),
    later ones C(HI); HI rivals take C(HI) throughout. Raises EffortSpent.
    """
    task = tasks[index]
    rivals = [rival for at, rival in enumerate(tasks) if at != index and rival.priority >= task.priority]
    before_change = sum(
        rival.arrivals_released_in(low_ns) * max(0, rival.wcet_lo_ns - rival.wcet_hi_ns) for rival in rivals
    )
    window_ns = low_ns
    while window_ns + task.jitter_ns <= min(task.deadline_ns, task.period_ns):
        meter.spend(len(rivals) + 1)
        after_change = sum(rival.arrivals_released_in(window_ns) * rival.wcet_hi_ns for rival in rivals)
        reached_ns = supply.window_ns(task.wcet_ns + before_change + after_change)
        if reached_ns <= window_ns:
            break
        window_ns = reached_ns
    return window_ns + task.jitter_ns


class TestOfOne(Protocol):
    """A test of one task among the others: `fixed_priority_of` or `amc_rtb_of`."""

    def __call__(self, tasks: Sequence[Task], index: int, supply: Supply = ...) -> Verdict: ...


def assign_priorities(
    tasks: Sequence[Task], test: TestOfOne, supply: Supply = WHOLE_CORE
) -> tuple[Task, ...] | Undecided:
    """Priorities, 1 the lowest, under which every task passes `test`, found as Audsley does (IPL 79, 2001).

    A task that passes at the lowest level, with all others above it, may have that level. Both tests depend
    only on which tasks are above, so an assignment is found whenever one exists (one without equal
    priorities, that is).
    """
    placed: dict[int, int] = {}
    for level in range(1, len(tasks) + 1):
        waiting = [index for index in range(len(tasks)) if index not in placed]
        # the longest deadline first: most often right, and a stable choice among equals
        for index in sorted(waiting, key=lambda at: -tasks[at].effective_deadline_ns):
            above = [replace(tasks[at], priority=level + (at != index)) for at in waiting]
            if isinstance(test(above, waiting.index(index), supply), Proved):
                placed[index] = level
                break
        else:
            names = ", ".join(tasks[index].name for index in waiting)
            return Undecided(f"none of {names} passes below the others")
    return tuple(replace(task, priority=placed[index]) for index, task in enumerate(tasks))


@dataclass(frozen=True, slots=True)
class VirtualDeadlines:
    """What an EDF-VD scheduler ranks jobs by: their arrival plus `lo_ns` in mode LO, plus `hi_ns` in mode HI.

    One entry per task, in the order given. A LO job that is active at the mode change stops once it has run
    for C(HI).
    """

    lo_ns: tuple[int, ...]
    hi_ns: tuple[int, ...]


def edf_vd(tasks: Sequence[Task], effort: int = DEFAULT_EFFORT) -> Verdict:
    """Whether EDF with `virtual_deadlines` keeps every guarantee on a whole core: all tasks in LO, C(HI) > 0
    in HI.

    `Proved` bounds responses by deadlines, LO tasks' and HI tasks' in LO, then those with a guarantee in HI.
    """
    plan = virtual_deadlines(tasks, effort)
    if not isinstance(plan, VirtualDeadlines):
        return plan
    low = tuple(Bound(task.name, plan.lo_ns[at], task.deadline_ns) for at, task in enumerate(tasks))
    high = tuple(
        Bound(task.name, plan.hi_ns[at], task.deadline_ns, "HI")
        for at, task in enumerate(tasks)
        if task.wcet_hi_ns
    )
    return Proved((*low, *high))


def virtual_deadlines(
    tasks: Sequence[Task], effort: int = DEFAULT_EFFORT
) -> VirtualDeadlines | Refuted | Undecided:
    """The deadlines that EDF-VD schedules by, if its utilisation test admits the tasks.

    Where every task fits with its larger budget, plain deadlines serve. Else HI tasks get x * D in LO,
    rounded down, with the largest x for which x * U(LO tasks, LO) + (1 - x) * U(LO tasks, HI) + U(HI tasks,
    HI) <= 1, and LO must fit under EDF with them. Periods count as min(D, T), which only makes the sporadic
    tasks denser.
    """
    if isinstance(earliest_deadline_first(tasks, WHOLE_CORE, effort), Proved):
        given = tuple(task.deadline_ns for task in tasks)
        return VirtualDeadlines(given, given)
    for mode in ("LO", "HI"):
        alone = earliest_deadline_first(in_mode(tasks, mode), WHOLE_CORE, effort)
        if isinstance(alone, Refuted):
            return alone if mode == "LO" else _in_mode_hi(alone, tasks)
    if any(task.jitter_ns for task in tasks):
        return Undecided("EDF-VD knows no release jitter: give its tasks periods and deadlines shorter by it")
    dense = tuple(min(task.deadline_ns, task.period_ns) for task in tasks)
    scale = _largest_scale(tasks, dense)
    if scale <= 0:
        return Undecided("EDF-VD leaves LO tasks no share: utilisation in mode HI is too high")
    scaled = tuple(
        scale.numerator * span // scale.denominator if task.wcet_hi_ns > task.wcet_lo_ns else span
        for task, span in zip(tasks, dense, strict=True)
    )
    fits = (
        min(scaled, default=1) > 0
        and sum(Fraction(task.wcet_lo_ns, span) for task, span in zip(tasks, scaled, strict=True)) <= 1
    )
    if not fits:
        return Undecided("EDF-VD finds no scale of deadlines that serves both modes")
    return VirtualDeadlines(scaled, dense)


def _largest_scale(tasks: Sequence[Task], dense: Sequence[int]) -> Fraction:
    """Largest x, at most 1, that mode HI allows; 0 or less where it allows none."""
    low = high = change = Fraction(0)
    for task, span in zip(tasks, dense, strict=True):
        if task.wcet_hi_ns > task.wcet_lo_ns:
            change += Fraction(task.wcet_hi_ns, span)
        else:
            low += Fraction(task.wcet_lo_ns, span)
            high += Fraction(task.wcet_hi_ns, span)
    left = 1 - change - high
    return min(Fraction(1), left / (low - high)) if low > high else Fraction(left >= 0)


def _in_mode_hi(verdict: Verdict, tasks: Sequence[Task]) -> Refuted | Undecided:
    """A verdict on the tasks of mode HI as one on all of them."""
    match verdict:
        case Refuted(DeadlineMiss() as miss):
            kept = [index for index, task in enumerate(tasks) if task.wcet_hi_ns]
            return Refuted(replace(miss, index=kept[miss.index], mode="HI"))
        case Refuted(Excess() as excess):
            return Refuted(replace(excess, mode="HI"))
        case Refuted(Overload() as overload):
            return Refuted(replace(overload, resource="core in mode HI"))
        case Refuted() | Undecided():
            return verdict
        case Proved():
            raise AssertionError("a proof needs no translation")
