"""Two criticalities: no late job over any mode change, hand-worked bounds, and what the papers promise."""

from dataclasses import replace
from fractions import Fraction
from random import Random

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from k40s.analysis.fixed_priority import fixed_priority, fixed_priority_of
from k40s.analysis.mixed import (
    VirtualDeadlines,
    amc_rtb,
    amc_rtb_of,
    assign_priorities,
    edf_vd,
    virtual_deadlines,
)
from k40s.analysis.simulate import (
    Always,
    Job,
    by_deadline,
    by_priority,
    by_virtual_deadline,
    critical_instant,
    random_jobs,
    simulate,
    worst_slices,
)
from k40s.analysis.supply import WHOLE_CORE, Server, Supply
from k40s.analysis.task import Task, deadline_monotonic, in_mode, plain
from k40s.analysis.verdict import Bound, DeadlineMiss, Excess, Overload, Proved, Refuted, Undecided

HORIZON_NS = 250


@st.composite
def small_tasks(draw: st.DrawFn, with_jitter: bool = True) -> Task:
    period_ns = draw(st.integers(3, 40))
    low_ns = draw(st.integers(1, max(1, period_ns // 3)))
    high_ns = draw(st.one_of(st.just(0), st.integers(0, low_ns), st.integers(low_ns, 2 * low_ns + 1)))
    deadline_ns = draw(st.one_of(st.just(period_ns), st.integers(low_ns, 2 * period_ns)))
    jitter_ns = draw(st.integers(0, 2)) if with_jitter else 0
    return Task("t", period_ns, deadline_ns, low_ns, high_ns, jitter_ns, draw(st.integers(1, 3)))


small_sets = st.lists(small_tasks(), min_size=1, max_size=4)
supplies: st.SearchStrategy[Supply] = st.one_of(
    st.just(WHOLE_CORE), st.integers(5, 8).map(lambda budget: Server(8, budget))
)


def limits(verdict: Proved, tasks: list[Task]) -> list[int]:
    """Larger of the LO and HI bound of each task."""
    low, high = verdict.bounds[: len(tasks)], iter(verdict.bounds[len(tasks) :])
    return [
        max(bound.at_most_ns, next(high).at_most_ns) if task.wcet_hi_ns else bound.at_most_ns
        for bound, task in zip(low, tasks, strict=True)
    ]


@settings(max_examples=200, deadline=None)
@given(small_sets, supplies, st.integers(0, 2**32).map(Random))
def test_amc_keeps_its_bounds_over_mode_changes(tasks: list[Task], supply: Supply, random: Random) -> None:
    verdict = amc_rtb(tasks, supply)
    if not isinstance(verdict, Proved):
        return
    for jobs in (critical_instant(tasks, HORIZON_NS), random_jobs(tasks, HORIZON_NS, random)):
        slices = worst_slices(supply) if isinstance(supply, Server) else Always()
        policy = by_priority(tasks, random.randrange(len(tasks)), changes_mode=True)
        run = simulate(tasks, jobs, policy, slices)
        assert not run.late
        bounds = limits(verdict, tasks)
        assert all(response_ns <= bounds[at] for at, response_ns in run.worst_response_ns.items())


@settings(max_examples=300, deadline=None)
@given(st.lists(small_tasks(with_jitter=False), min_size=2, max_size=4), st.integers(0, 2**32).map(Random))
def test_edf_vd_keeps_every_guarantee(tasks: list[Task], random: Random) -> None:
    plan = virtual_deadlines(tasks)
    if not isinstance(plan, VirtualDeadlines):
        return
    for jobs in (critical_instant(tasks, HORIZON_NS), random_jobs(tasks, HORIZON_NS, random)):
        assert not simulate(tasks, jobs, by_virtual_deadline(plan)).late


@settings(max_examples=200, deadline=None)
@given(small_sets)
def test_witnesses_reproduce_their_miss_in_their_mode(tasks: list[Task]) -> None:
    for verdict in (amc_rtb(tasks), edf_vd(tasks)):
        match verdict:
            case Refuted(DeadlineMiss(_, index, by_ns, mode)):
                steady = [_in(task, mode == "HI") for task in tasks]
                jobs = [
                    job
                    for job in critical_instant(steady, by_ns + 1)
                    if _takes_part(tasks, job, mode == "HI")
                ]
                late = simulate(steady, jobs, by_priority(steady, index)).late
                assert any(one.task == index and one.due_ns <= by_ns for one in late)
            case Refuted(Excess(window_ns, mode=mode)):
                kept = in_mode(tasks, mode)
                late = simulate(kept, critical_instant(kept, window_ns + 1), by_deadline(kept)).late
                assert any(one.due_ns <= window_ns for one in late)


def _in(task: Task, is_high: bool) -> Task:
    budget_ns = max(1, task.wcet_hi_ns) if is_high else task.wcet_lo_ns
    return replace(task, wcet_lo_ns=budget_ns, wcet_hi_ns=budget_ns)


def _takes_part(tasks: list[Task], job: Job, is_high: bool) -> bool:
    return not is_high or tasks[job.task].wcet_hi_ns > 0


@settings(max_examples=200, deadline=None)
@given(small_sets)
def test_amc_admits_what_fits_without_any_mode_change(tasks: list[Task]) -> None:
    """AMC-rtb dominates the reservation of every task's larger budget."""
    reserved = fixed_priority(tasks)
    if isinstance(reserved, Proved) and all(
        bound.at_most_ns <= task.period_ns for bound, task in zip(reserved.bounds, tasks, strict=True)
    ):
        assert isinstance(amc_rtb(tasks), Proved)


implicit = st.lists(
    st.builds(
        lambda period, low, high, is_high: Task(
            "t", period, period, min(low, period), min(period, low + high) if is_high else 0
        ),
        st.integers(100, 1000),
        st.integers(1, 300),
        st.integers(0, 500),
        st.booleans(),
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=300, deadline=None)
@given(implicit)
def test_edf_vd_admits_all_that_three_quarters_of_a_core_could_serve(tasks: list[Task]) -> None:
    """Theorem of the ECRTS 2012 paper: speed-up 4/3 over any scheduler, with utilisations as the measure.

    Deadlines are whole nanoseconds here, so a margin for rounding down (at most one in a hundred) is left.
    """
    low = sum((Fraction(task.wcet_lo_ns, task.period_ns) for task in tasks), Fraction(0))
    high = sum((Fraction(task.wcet_hi_ns, task.period_ns) for task in tasks), Fraction(0))
    assume(max(low, high) <= Fraction(73, 100))
    assert isinstance(edf_vd(tasks), Proved)


@settings(max_examples=100, deadline=None)
@given(st.lists(small_tasks(), min_size=1, max_size=4))
def test_searched_priorities_are_proved_and_found_when_there_are_any(tasks: list[Task]) -> None:
    distinct = [replace(task, priority=level) for level, task in enumerate(tasks)]
    match assign_priorities(tasks, amc_rtb_of):
        case Undecided():
            assert not isinstance(amc_rtb(distinct), Proved)
        case found:
            assert isinstance(amc_rtb(found), Proved)


def test_amc_by_hand() -> None:
    """control (HI) above service (LO) above guard (HI), periods 10, 20, 40.

    LO: control 2; service 4 + 2 = 6; guard 5 + 2 + 4 = 11, then 5 + 2 * 2 + 4 = 13, which stays.
    HI over the change: control 4. guard: service once before 13, so 4, and 8 + 4 + 4 * ceil(R / 10):
    R = 13 gives 20, 20 gives 20. Were guard's own LO response above 20, service would count twice.
    """
    tasks = (
        Task("control", 10, 10, 2, 4, priority=3),
        Task("service", 20, 20, 4, 0, priority=2),
        Task("guard", 40, 40, 5, 8, priority=1),
    )
    assert amc_rtb(tasks) == Proved(
        (
            Bound("control", 2, 10),
            Bound("service", 6, 20),
            Bound("guard", 13, 40),
            Bound("control", 4, 10, "HI"),
            Bound("guard", 20, 40, "HI"),
        )
    )
    assert isinstance(fixed_priority(tasks), Proved)
    tight = (*tasks[:2], replace(tasks[2], deadline_ns=19))
    assert isinstance(amc_rtb(tight), Undecided)


def test_amc_proves_what_reservation_cannot() -> None:
    """Reserved: guard takes 16 + 3 * 3 + 2 * 2 = 29. AMC: 5 + 3 + 1 = 9 in LO, so service counts once: 16 + 3
    + 4.
    """
    tasks = (
        Task("control", 20, 20, 1, 2, priority=3),
        Task("service", 10, 10, 3, 0, priority=2),
        Task("guard", 30, 28, 5, 16, priority=1),
    )
    assert fixed_priority(tasks) == Refuted(DeadlineMiss("guard", 2, 28))
    match amc_rtb(tasks):
        case Proved(bounds):
            assert bounds[2:] == (
                Bound("guard", 9, 28),
                Bound("control", 2, 20, "HI"),
                Bound("guard", 23, 28, "HI"),
            )
        case verdict:
            raise AssertionError(str(verdict))


def test_degraded_guarantee_by_hand() -> None:
    """service keeps 1 of 3 in HI: one job in LO, R_LO = 9 of guard, later ones 1 each.

    guard: 16 + (3 - 1) * 1 + 2 * ceil(R / 20) + 1 * ceil(R / 10): R = 20 gives 16 + 2 + 2 + 2 = 22, then
    16 + 2 + 4 + 3 = 25, which stays.
    """
    tasks = (
        Task("control", 20, 20, 1, 2, priority=3),
        Task("service", 10, 10, 3, 1, priority=2),
        Task("guard", 30, 30, 5, 16, priority=1),
    )
    match amc_rtb(tasks):
        case Proved(bounds):
            assert bounds[2] == Bound("guard", 9, 30)
            assert bounds[3:] == (
                Bound("control", 2, 20, "HI"),
                Bound("service", 5, 10, "HI"),
                Bound("guard", 25, 30, "HI"),
            )
        case verdict:
            raise AssertionError(str(verdict))


def test_edf_vd_by_hand() -> None:
    """U: LO tasks 2/5; HI tasks 1/5 in LO, 7/10 in HI. Together 11/10, so plain EDF fails.

    Largest x with x * 2/5 + 7/10 <= 1 is 3/4; LO then needs 2/5 + (1/5) / (3/4) = 2/3 <= 1.
    """
    tasks = (Task("service", 10, 10, 4, 0), Task("control", 20, 20, 4, 14))
    assert virtual_deadlines(tasks) == VirtualDeadlines((10, 15), (10, 20))
    assert edf_vd(tasks) == Proved(
        (Bound("service", 10, 10), Bound("control", 15, 20), Bound("control", 20, 20, "HI"))
    )
    heavier = (tasks[0], replace(tasks[1], wcet_hi_ns=19))
    assert isinstance(edf_vd(heavier), Undecided)


def test_edf_vd_keeps_deadlines_where_no_mode_change_is_needed() -> None:
    tasks = (Task("service", 10, 10, 4, 0), Task("control", 20, 20, 4, 12))
    assert virtual_deadlines(tasks) == VirtualDeadlines((10, 20), (10, 20))


def test_edf_vd_says_what_to_do_about_jitter() -> None:
    tasks = (Task("service", 10, 10, 4, 0, jitter_ns=1), Task("control", 20, 20, 4, 14))
    match edf_vd(tasks):
        case Undecided(reason):
            assert "shorter by it" in reason
        case verdict:
            raise AssertionError(str(verdict))


def test_an_infeasible_mode_is_named() -> None:
    tasks = (
        Task("a", 10, 10, 2, 6, priority=2),
        Task("b", 10, 10, 2, 0, priority=3),
        Task("c", 20, 20, 1, 9),
    )
    match amc_rtb(tasks):
        case Refuted(Overload(resource)):
            assert "HI" in resource
        case verdict:
            raise AssertionError(str(verdict))
    late = (Task("a", 10, 10, 2, 6, priority=2), Task("b", 10, 10, 2, 0, priority=3), Task("c", 20, 12, 1, 7))
    assert amc_rtb(late) == Refuted(DeadlineMiss("c", 2, 12, "HI"))


def test_mode_change_and_return_as_they_happen() -> None:
    """control overruns at 2 and is done at 5.

    Under AMC the first service job runs on until 7 though nothing is owed to it, so that the second, released
    at 6, is dropped in mode HI; at 7 the core is idle and the mode LO again. EDF-VD ends it at the switch, so
    the core is idle at 5 and the second job is served.
    """
    tasks = (Task("control", 10, 10, 2, 5, priority=2), Task("service", 6, 6, 2, 0, priority=1))
    jobs = [Job(0, 0, 0, 5), Job(1, 0, 0, 2), Job(1, 6, 6, 2)]
    later = [*jobs, Job(1, 12, 12, 1)]
    amc = simulate(tasks, jobs, by_priority(tasks, changes_mode=True))
    assert amc.switched_ns == [2]
    assert amc.worst_response_ns == {0: 5}
    assert simulate(tasks, later, by_priority(tasks, changes_mode=True)).worst_response_ns == {0: 5, 1: 1}
    cut = simulate(tasks, jobs, by_virtual_deadline(VirtualDeadlines((4, 6), (10, 6))))
    assert cut.switched_ns == [2]
    assert cut.worst_response_ns == {0: 5, 1: 2}


def test_deadlines_beyond_the_period_are_left_undecided_when_needed() -> None:
    tasks = (plain("a", 10, 30, 6, priority=2), plain("b", 10, 90, 4, priority=1), Task("c", 100, 400, 1, 0))
    assert isinstance(amc_rtb(tasks[:2]), Proved)
    crowded = (plain("a", 10, 30, 6, jitter_ns=5, priority=2), plain("b", 10, 90, 4, priority=1))
    match amc_rtb(crowded):
        case Undecided(reason):
            assert "exceeds its period" in reason
        case verdict:
            raise AssertionError(str(verdict))


def test_audsley_finds_what_deadline_monotonic_misses() -> None:
    """With D > T the shortest deadline first is not optimal.

    Above a, b takes 5 of every 8: a ends at 4 + 2 * 5 = 14, after 13. Above b, a leaves b's jobs done at 9,
    18, 27, 32, that is within 9, 10, 11 and 8 of their arrivals, and then the core is idle.
    """
    tasks = (plain("a", 11, 13, 4), plain("b", 8, 11, 5))
    assert isinstance(fixed_priority(deadline_monotonic(tasks)), Refuted)
    found = assign_priorities(tasks, fixed_priority_of)
    assert isinstance(found, tuple)
    assert fixed_priority(found) == Proved((Bound("a", 4, 13), Bound("b", 11, 11)))
