"""EDF: exact against the simulator, as good as any scheduler, textbook windows, bounded time."""

import time
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from response_time_analysis import edf
from response_time_analysis import model as rta

from k40s.analysis.earliest_deadline import demand_ns, earliest_deadline_first
from k40s.analysis.fixed_priority import fixed_priority
from k40s.analysis.load import utilisation
from k40s.analysis.simulate import (
    Always,
    Slices,
    by_deadline,
    critical_instant,
    random_jobs,
    random_slices,
    simulate,
    worst_slices,
)
from k40s.analysis.supply import WHOLE_CORE, Linear, Server, Supply
from k40s.analysis.task import Task, plain
from k40s.analysis.verdict import Excess, Overload, Proved, Refuted, Undecided

HORIZON_NS = 250


@st.composite
def small_tasks(draw: st.DrawFn) -> Task:
    period_ns = draw(st.integers(2, 30))
    wcet_ns = draw(st.integers(1, max(1, period_ns // 2)))
    deadline_ns = draw(st.one_of(st.just(period_ns), st.integers(wcet_ns, 3 * period_ns)))
    jitter_ns = draw(st.one_of(st.just(0), st.integers(0, period_ns // 2)))
    name, priority = draw(st.sampled_from("abc")), draw(st.integers(1, 3))
    return plain(name, period_ns, deadline_ns, wcet_ns, jitter_ns=jitter_ns, priority=priority)


@st.composite
def small_supplies(draw: st.DrawFn) -> Supply:
    if draw(st.booleans()):
        return WHOLE_CORE
    period_ns = draw(st.integers(1, 8))
    return Server(period_ns, draw(st.integers((period_ns + 1) // 2, period_ns)))


small_sets = st.lists(small_tasks(), min_size=1, max_size=4)


def worst(supply: Supply) -> Slices:
    return worst_slices(supply) if isinstance(supply, Server) else Always()


@settings(max_examples=200, deadline=None)
@given(small_sets, small_supplies(), st.integers(0, 2**32).map(Random))
def test_no_run_of_a_proved_set_is_late(tasks: list[Task], supply: Supply, random: Random) -> None:
    if not isinstance(earliest_deadline_first(tasks, supply), Proved):
        return
    assert not simulate(tasks, critical_instant(tasks, HORIZON_NS), by_deadline(tasks), worst(supply)).late
    slices = random_slices(supply, random) if isinstance(supply, Server) else Always()
    assert not simulate(tasks, random_jobs(tasks, HORIZON_NS, random), by_deadline(tasks), slices).late


@settings(max_examples=200, deadline=None)
@given(small_sets, small_supplies())
def test_a_witness_reproduces_its_miss(tasks: list[Task], supply: Supply) -> None:
    match earliest_deadline_first(tasks, supply):
        case Refuted(Excess(window_ns, demand, supplied)):
            assert demand == demand_ns(tasks, window_ns) > supplied == supply.supplied_ns(window_ns)
            jobs = critical_instant(tasks, window_ns + 1)
            late = simulate(tasks, jobs, by_deadline(tasks), worst(supply)).late
            assert any(one.due_ns <= window_ns for one in late)


@settings(max_examples=200, deadline=None)
@given(small_sets, small_supplies())
def test_what_any_priorities_can_do_deadlines_can(tasks: list[Task], supply: Supply) -> None:
    if isinstance(fixed_priority(tasks, supply), Proved):
        assert isinstance(earliest_deadline_first(tasks, supply), Proved)


@settings(max_examples=150, deadline=None)
@given(small_sets, small_supplies(), st.data())
def test_less_load_stays_proved(tasks: list[Task], supply: Supply, data: st.DataObject) -> None:
    if not isinstance(earliest_deadline_first(tasks, supply), Proved):
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
    verdict = earliest_deadline_first([*tasks[:index], lighter, *tasks[index + 1 :]], supply)
    assert not isinstance(verdict, Refuted)


@settings(max_examples=200, deadline=None)
@given(small_sets, small_supplies())
def test_a_hasty_proof_is_a_proof(tasks: list[Task], supply: Supply) -> None:
    hasty, exact = earliest_deadline_first(tasks, supply, effort=20), earliest_deadline_first(tasks, supply)
    if not isinstance(exact, Undecided):
        assert isinstance(hasty, Undecided) or type(hasty) is type(exact)


class DistinctTask(rta.Task):  # type: ignore[misc]  # the package is not typed for mypy
    """The package leaves out every task that equals the analysed one; this one equals only itself."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__


def second_opinion(tasks: list[Task], supply: Supply) -> bool:
    """Whether the package bounds every response by its deadline."""
    theirs = [
        DistinctTask(
            rta.Periodic(task.period_ns),
            rta.FullyPreemptive(rta.WCET(task.wcet_ns)),
            rta.Deadline(task.deadline_ns),
        )
        for task in tasks
    ]
    match supply:
        case Linear(server):
            model = rta.RateDelayModel(server.period_ns, server.budget_ns, server.gap_ns)
        case _:
            model = rta.IdealProcessor()
    everyone = rta.taskset(*theirs)
    bounds = [edf.rta(everyone, task, model, horizon=100_000).response_time_bound for task in theirs]
    return all(
        bound is not None and bound <= task.deadline_ns for bound, task in zip(bounds, tasks, strict=True)
    )


@settings(max_examples=100, deadline=None)
@given(small_sets, st.one_of(st.just(WHOLE_CORE), st.integers(6, 10).map(lambda q: Linear(Server(10, q)))))
def test_the_package_never_proves_what_is_refuted(tasks: list[Task], supply: Supply) -> None:
    """On a whole core both are exact; behind a linear bound its busy windows cost it some sets."""
    steady = [replace(task, jitter_ns=0) for task in tasks]
    ours = isinstance(earliest_deadline_first(steady, supply), Proved)
    if second_opinion(steady, supply):
        assert ours
    elif supply is WHOLE_CORE and utilisation(steady) < 1:
        assert not ours


def test_full_utilisation_with_deadlines_at_periods() -> None:
    assert isinstance(
        earliest_deadline_first([plain("a", 2, 2, 1), plain("b", 3, 3, 1), plain("c", 6, 6, 1)]), Proved
    )


def test_demand_by_hand() -> None:
    """a is due at 4, 10, 16, ... b at 5, 13, ...: by 5 they need 2 + 3, by 10 2 * 2 + 3, by 13 2 * 2 + 2 * 3."""
    tasks = [plain("a", 6, 4, 2), plain("b", 8, 5, 3)]
    assert [demand_ns(tasks, window) for window in (3, 4, 5, 10, 13)] == [0, 2, 5, 7, 10]
    assert isinstance(earliest_deadline_first(tasks), Proved)
    tighter = [tasks[0], replace(tasks[1], deadline_ns=4)]
    assert earliest_deadline_first(tighter) == Refuted(Excess(4, 5, 4))


def test_jitter_brings_deadlines_closer() -> None:
    """A job released 3 after its arrival has 7 left, enough for b's 4 and its own 3; released 4 after it has
    6.
    """
    tasks = [plain("a", 10, 10, 3, jitter_ns=3), plain("b", 10, 6, 4)]
    assert isinstance(earliest_deadline_first(tasks), Proved)
    later = [replace(tasks[0], jitter_ns=4), tasks[1]]
    assert earliest_deadline_first(later) == Refuted(Excess(6, 7, 6))


def test_identical_tasks_see_each_other() -> None:
    assert earliest_deadline_first([plain("twin", 10, 5, 4)] * 2) == Refuted(Excess(5, 8, 5))


def test_a_deadline_before_the_release_is_refuted() -> None:
    assert isinstance(earliest_deadline_first([plain("a", 10, 5, 1, jitter_ns=6)]), Refuted)


def test_deadlines_beyond_the_period() -> None:
    """Three jobs of b may be pending; a alone would be late by any order but the earliest deadline's."""
    assert isinstance(earliest_deadline_first([plain("a", 4, 2, 2), plain("b", 6, 18, 3)]), Proved)


def test_overload_is_refuted_with_its_exact_sum() -> None:
    match earliest_deadline_first([plain("a", 3, 9, 1), plain("b", 7, 99, 5)]):
        case Refuted(Overload(_, demand, capacity)):
            assert demand * 21 == 7 + 15
            assert capacity == 1
        case verdict:
            pytest.fail(str(verdict))


def coprime_and_full(count: int) -> list[Task]:
    """Utilisation just below 1 with periods whose hyperperiod has thousands of digits."""
    period_ns = 10**15
    return [
        plain(f"t{at}", period_ns + 2 * at + 1, period_ns - at, period_ns // count - 20)
        for at in range(count)
    ]


@pytest.mark.parametrize(
    "tasks",
    [
        coprime_and_full(50),
        coprime_and_full(3000),
        [plain("tick", 2, 1, 1), plain("long", 10**15 + 37, 10**15, 5 * 10**14)],
        [plain("tick", 1, 1, 1), plain("more", 10**18, 10**18, 1)],
        [plain("a", 10**9 - 1, 10**9 - 2, 10**9 - 2), plain("b", 10**18, 10**17, 10**9)],
        [plain("a", 2**89 - 1, 2**88, 2**88 - 1), plain("b", 2**107 - 1, 2**106, 2**105)],
        [plain("a", 3, 10**20 + 3, 1, jitter_ns=10**20), plain("b", 5, 10**25, 1)],
        [plain("a", 2, 1, 1), plain("b", 2**60, 2**59, 2**58), plain("c", 2**61, 2**60, 2**59)],
    ],
)
@pytest.mark.parametrize("supply", [WHOLE_CORE, Server(1000, 999), Linear(Server(10**12, 10**12 - 1))])
def test_time_is_bounded_on_every_input(tasks: list[Task], supply: Supply) -> None:
    started = time.process_time()
    verdict = earliest_deadline_first(tasks, supply)
    assert isinstance(verdict, Proved | Refuted | Undecided)
    assert time.process_time() - started < 3


def test_values_beyond_a_double_are_exact() -> None:
    """2**60 and 2**60 + 1 are one float, and one nanosecond is the difference between proved and refuted."""
    short = plain("a", 2**70, 2**60, 2**59)
    assert isinstance(earliest_deadline_first([short, plain("b", 2**70, 2**60, 2**59)]), Proved)
    assert earliest_deadline_first([short, plain("b", 2**70, 2**60, 2**59 + 1)]) == Refuted(
        Excess(2**60, 2**60 + 1, 2**60)
    )
