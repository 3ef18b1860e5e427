"""Fixed priorities: exact against the simulator, sound for every run, textbook responses, bounded time."""

import time
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from response_time_analysis import fp
from response_time_analysis import model as rta

from k40s.analysis.fixed_priority import fixed_priority, fixed_priority_of
from k40s.analysis.load import utilisation
from k40s.analysis.simulate import (
    Always,
    Deferrable,
    Slices,
    by_priority,
    critical_instant,
    random_jobs,
    random_slices,
    simulate,
    worst_slices,
)
from k40s.analysis.supply import WHOLE_CORE, Linear, Server, ServerKind, Supply
from k40s.analysis.task import Task, plain
from k40s.analysis.verdict import DeadlineMiss, Proved, Refuted, Undecided

HORIZON_NS = 250


@st.composite
def small_tasks(draw: st.DrawFn) -> Task:
    period_ns = draw(st.integers(2, 30))
    return plain(
        draw(st.sampled_from("abc")),
        period_ns,
        draw(st.one_of(st.just(period_ns), st.integers(1, 3 * period_ns))),
        draw(st.integers(1, max(1, period_ns // 3))),
        jitter_ns=draw(st.one_of(st.just(0), st.integers(0, period_ns + 3))),
        priority=draw(st.integers(1, 3)),
    )


@st.composite
def small_supplies(draw: st.DrawFn) -> Supply:
    if draw(st.booleans()):
        return WHOLE_CORE
    period_ns = draw(st.integers(1, 12))
    return Server(
        period_ns, draw(st.integers((period_ns + 1) // 2, period_ns)), draw(st.sampled_from(ServerKind))
    )


linear_supplies = st.one_of(
    st.just(WHOLE_CORE), st.integers(5, 10).map(lambda budget: Linear(Server(10, budget)))
)
small_sets = st.lists(small_tasks(), min_size=1, max_size=5)


def worst(supply: Supply) -> Slices:
    return worst_slices(supply) if isinstance(supply, Server) else Always()


def any_legal(supply: Supply, random: Random) -> Slices:
    match supply:
        case Server(period_ns, budget_ns, ServerKind.DEFERRABLE):
            phase_ns = random.randint(1, period_ns)
            return Deferrable(supply, phase_ns, random.randint(0, min(budget_ns, period_ns - phase_ns)))
        case Server():
            return random_slices(supply, random)
        case _:
            return Always()


@settings(max_examples=150, deadline=None)
@given(small_sets, small_supplies())
def test_bounds_are_the_responses_of_the_critical_instant(tasks: list[Task], supply: Supply) -> None:
    verdict = fixed_priority(tasks, supply)
    if not isinstance(verdict, Proved):
        return
    for index, bound in enumerate(verdict.bounds):
        jobs = critical_instant(tasks, HORIZON_NS)
        run = simulate(tasks, jobs, by_priority(tasks, loser=index), worst(supply))
        assert not run.late
        assert run.worst_response_ns[index] == bound.at_most_ns


@settings(max_examples=150, deadline=None)
@given(small_sets, small_supplies(), st.integers(0, 2**32).map(Random))
def test_no_run_of_a_proved_set_is_late(tasks: list[Task], supply: Supply, random: Random) -> None:
    verdict = fixed_priority(tasks, supply)
    if not isinstance(verdict, Proved):
        return
    jobs = random_jobs(tasks, HORIZON_NS, random)
    run = simulate(tasks, jobs, by_priority(tasks, random.randrange(len(tasks))), any_legal(supply, random))
    assert not run.late
    assert all(run.worst_response_ns[at] <= verdict.bounds[at].at_most_ns for at in run.worst_response_ns)


@settings(max_examples=200, deadline=None)
@given(small_sets, small_supplies())
def test_a_witness_reproduces_its_miss(tasks: list[Task], supply: Supply) -> None:
    match fixed_priority(tasks, supply):
        case Refuted(DeadlineMiss(_, index, by_ns)):
            jobs = critical_instant(tasks, by_ns + 1)
            run = simulate(tasks, jobs, by_priority(tasks, loser=index), worst(supply))
            assert any(late.task == index and late.due_ns <= by_ns for late in run.late)


def test_an_overload_reproduces_a_miss() -> None:
    tasks = [plain("a", 7, 7, 3, priority=2), plain("b", 5, 50, 3, priority=1)]
    assert isinstance(fixed_priority(tasks), Refuted)
    assert simulate(tasks, critical_instant(tasks, 2000), by_priority(tasks), stop_when_late=True).late


@settings(max_examples=150, deadline=None)
@given(small_sets, small_supplies(), st.data())
def test_less_load_stays_proved(tasks: list[Task], supply: Supply, data: st.DataObject) -> None:
    if not isinstance(fixed_priority(tasks, supply), Proved):
        return
    index = data.draw(st.integers(0, len(tasks) - 1))
    task = tasks[index]
    wcet_ns = data.draw(st.integers(1, task.wcet_ns))
    lighter = replace(
        task,
        wcet_lo_ns=wcet_ns,
        wcet_hi_ns=wcet_ns,
        period_ns=task.period_ns + data.draw(st.integers(0, 9)),
        deadline_ns=task.deadline_ns + data.draw(st.integers(0, 9)),
        jitter_ns=data.draw(st.integers(0, task.jitter_ns)),
    )
    assert isinstance(fixed_priority([*tasks[:index], lighter, *tasks[index + 1 :]], supply), Proved)


@settings(max_examples=150, deadline=None)
@given(small_sets, small_supplies())
def test_bounds_when_effort_is_spent_are_above_the_exact_ones(tasks: list[Task], supply: Supply) -> None:
    hasty, exact = fixed_priority(tasks, supply, effort=0), fixed_priority(tasks, supply)
    if isinstance(hasty, Proved):
        assert isinstance(exact, Proved)
        pairs = zip(hasty.bounds, exact.bounds, strict=True)
        assert all(above.at_most_ns >= least.at_most_ns for above, least in pairs)


@settings(max_examples=100, deadline=None)
@given(small_sets, small_supplies())
def test_one_task_alone_is_judged_as_among_all(tasks: list[Task], supply: Supply) -> None:
    whole = fixed_priority(tasks, supply)
    if isinstance(whole, Proved):
        alone = [fixed_priority_of(tasks, index, supply) for index in range(len(tasks))]
        assert alone == [Proved((bound,)) for bound in whole.bounds]


class DistinctTask(rta.Task):  # type: ignore[misc]  # the package is not typed for mypy
    """The package leaves out every task that equals the analysed one; this one equals only itself."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__


def second_opinion(tasks: list[Task], supply: Supply) -> list[int | None]:
    """Response bounds by the package, None where it has none."""
    theirs = [
        DistinctTask(
            rta.PeriodicWithJitter(task.period_ns, task.jitter_ns),
            rta.FullyPreemptive(rta.WCET(task.wcet_ns)),
            rta.Deadline(task.deadline_ns),
            rta.Priority(task.priority),
        )
        for task in tasks
    ]
    match supply:
        case Linear(server):
            model = rta.RateDelayModel(server.period_ns, server.budget_ns, server.gap_ns)
        case _:
            model = rta.IdealProcessor()
    everyone = rta.taskset(*theirs)
    return [fp.rta(everyone, task, model, horizon=100_000).response_time_bound for task in theirs]


@settings(max_examples=100, deadline=None)
@given(small_sets, linear_supplies)
def test_the_package_agrees(tasks: list[Task], supply: Supply) -> None:
    relaxed = [replace(task, jitter_ns=0, deadline_ns=100_000) for task in tasks]
    verdict = fixed_priority(relaxed, supply)
    if isinstance(verdict, Proved) and utilisation(relaxed) < supply.rate:  # else its busy window has no end
        assert [bound.at_most_ns for bound in verdict.bounds] == second_opinion(relaxed, supply)


def responses(*tasks: Task, supply: Supply = WHOLE_CORE) -> list[int]:
    verdict = fixed_priority(tasks, supply)
    assert isinstance(verdict, Proved), verdict
    return [bound.at_most_ns for bound in verdict.bounds]


def test_three_tasks_by_hand() -> None:
    """c: 5 + 3 + 3 = 11, then 5 + 2*3 + 3 = 14, 5 + 2*3 + 2*3 = 17, 5 + 3*3 + 2*3 = 20, which stays."""
    tasks = (
        plain("a", 7, 7, 3, priority=3),
        plain("b", 12, 12, 3, priority=2),
        plain("c", 20, 20, 5, priority=1),
    )
    assert responses(*tasks) == [3, 6, 20]


def test_the_first_job_need_not_be_the_worst() -> None:
    """Lehoczky's two tasks (RTSS 1990): the second's jobs take 114, 102, 116, 104, 118, 106 and 94."""
    tasks = (plain("a", 70, 70, 26, priority=2), plain("b", 100, 118, 62, priority=1))
    assert responses(*tasks) == [26, 118]
    witness = fixed_priority((tasks[0], replace(tasks[1], deadline_ns=117)))
    assert witness == Refuted(DeadlineMiss("b", 1, 4 * 100 + 117))


def test_jitter_of_a_rival_brings_two_jobs_together() -> None:
    """a's second job comes 10 - 4 = 6 after its first: b takes 4 + 3 = 7, so 4 + 2 * 3 = 10."""
    jittery = plain("a", 10, 10, 3, jitter_ns=4, priority=2)
    assert responses(jittery, plain("b", 30, 30, 4, priority=1)) == [3 + 4, 10]


def test_own_jitter_counts_from_arrival() -> None:
    assert responses(plain("a", 10, 20, 3, jitter_ns=12)) == [15]


def test_identical_tasks_see_each_other() -> None:
    twin = plain("twin", 10, 8, 4)
    assert responses(twin, twin) == [8, 8]
    assert isinstance(fixed_priority([replace(twin, deadline_ns=7)] * 2), Refuted)


def test_equal_priorities_lose_to_one_another() -> None:
    assert responses(plain("a", 10, 10, 2, priority=1), plain("b", 20, 20, 5, priority=1)) == [7, 7]


def test_a_server_delays_by_its_gap() -> None:
    """Q = 4 every 10: work of 3 waits 12 at most, or 6 for the deferrable server; work of 5 a period longer."""
    assert responses(plain("a", 100, 100, 3), supply=Server(10, 4)) == [15]
    assert responses(plain("a", 100, 100, 3), supply=Server(10, 4, ServerKind.DEFERRABLE)) == [9]
    assert responses(plain("a", 100, 100, 5), supply=Server(10, 4)) == [23]


def test_no_tasks_are_proved() -> None:
    assert fixed_priority(()) == Proved(())


def coprime_and_full(count: int) -> list[Task]:
    """Utilisation just below 1 with periods whose hyperperiod has thousands of digits."""
    period_ns = 10**15
    return [
        plain(f"t{at}", period_ns + 2 * at + 1, period_ns - at, period_ns // count - 20, priority=at % 7)
        for at in range(count)
    ]


@pytest.mark.parametrize(
    "tasks",
    [
        coprime_and_full(50),
        coprime_and_full(3000),
        [plain("tick", 2, 2, 1, priority=2), plain("long", 10**15 + 37, 10**15, 5 * 10**14, priority=1)],
        [plain("tick", 1, 1, 1), plain("more", 10**18, 10**18, 1)],
        [plain("a", 10**9 - 1, 10**18, 10**9 - 2, priority=2), plain("b", 10**18, 10**30, 10**9, priority=1)],
        [plain("a", 2**89 - 1, 2**90, 2**88, priority=2), plain("b", 2**107 - 1, 2**107, 2**106, priority=1)],
        [plain("a", 3, 3, 1, jitter_ns=10**20, priority=2), plain("b", 5, 10**25, 1, priority=1)],
        [
            plain("a", 2**61 - 1, 2**61, 2**60, priority=1),
            plain("b", 2**59 - 55, 2**70, 2**58 - 28, priority=2),
        ],
    ],
)
@pytest.mark.parametrize("supply", [WHOLE_CORE, Server(1000, 999), Linear(Server(10**12, 10**12 - 1))])
def test_time_is_bounded_on_every_input(tasks: list[Task], supply: Supply) -> None:
    started = time.process_time()
    verdict = fixed_priority(tasks, supply)
    assert isinstance(verdict, Proved | Refuted | Undecided)
    assert time.process_time() - started < 3


def test_values_beyond_a_double_are_exact() -> None:
    """2**60 + 1 and 2**60 are one float: a's second job comes exactly one nanosecond too early for b."""
    period_ns = 2**60
    a = plain("a", period_ns, period_ns, 1, priority=2)
    assert responses(a, plain("b", 2**62, 2**62, period_ns - 1, priority=1))[1] == period_ns
    assert responses(a, plain("b", 2**62, 2**62, period_ns, priority=1))[1] == period_ns + 2
