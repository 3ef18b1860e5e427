"""The oracle itself: runs worked by hand, and laws that any run must keep."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from k40s.analysis.simulate import (
    Deferrable,
    Job,
    Late,
    by_deadline,
    by_priority,
    critical_instant,
    offset_jobs,
    random_jobs,
    simulate,
    worst_slices,
)
from k40s.analysis.supply import Server, ServerKind
from k40s.analysis.task import Task, plain

A, B = plain("a", 5, 5, 2, priority=2), plain("b", 10, 10, 4, priority=1)

tasks_and_jitter = st.lists(
    st.builds(
        lambda period, wcet, jitter, priority: plain(
            "t", period, period, wcet, jitter_ns=jitter, priority=priority
        ),
        st.integers(2, 20),
        st.integers(1, 9),
        st.integers(0, 25),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=150, deadline=None)
@given(tasks_and_jitter, st.integers(0, 2**32).map(Random))
def test_random_runs_are_legal(tasks: list[Task], random: Random) -> None:
    last: dict[int, Job] = {}
    for job in random_jobs(tasks, 200, random):
        task = tasks[job.task]
        assert job.arrival_ns <= job.release_ns <= job.arrival_ns + task.jitter_ns
        assert job.release_ns >= 0
        assert 1 <= job.work_ns <= task.wcet_ns
        if job.task in last:
            assert job.arrival_ns - last[job.task].arrival_ns >= task.period_ns
            assert job.release_ns >= last[job.task].release_ns
        last[job.task] = job


@settings(max_examples=150, deadline=None)
@given(tasks_and_jitter)
def test_the_core_idles_only_when_nothing_is_ready(tasks: list[Task]) -> None:
    """Any work-conserving order ends the same busy window at the same time."""
    jobs = critical_instant(tasks, 100)
    ends = {simulate(tasks, jobs, policy).ended_ns for policy in (by_priority(tasks), by_deadline(tasks))}
    assert len(ends) == 1
    work_ns = sum(job.work_ns for job in jobs)
    assert ends.pop() >= work_ns


def test_preemption_by_hand() -> None:
    """a runs 0-2 and 5-7, b 2-5 and 7-8."""
    run = simulate((A, B), critical_instant((A, B), 10), by_priority((A, B)))
    assert run.worst_response_ns == {0: 2, 1: 8}
    assert run.ended_ns == 8


def test_earliest_deadline_by_hand() -> None:
    """b, due at 6, goes before a's first job, due at 7, though a has the higher priority."""
    tasks = (plain("a", 7, 7, 3, priority=2), plain("b", 12, 6, 3, priority=1))
    assert simulate(tasks, critical_instant(tasks, 7), by_deadline(tasks)).worst_response_ns == {0: 6, 1: 3}
    assert simulate(tasks, critical_instant(tasks, 7), by_priority(tasks)).worst_response_ns == {0: 3, 1: 6}


def test_late_jobs_are_told_with_their_times() -> None:
    tasks = (plain("a", 5, 3, 3, priority=2), plain("b", 10, 4, 2, priority=1))
    assert simulate(tasks, critical_instant(tasks, 5), by_priority(tasks)).late == [Late(1, 4, 5)]


def test_stopping_at_the_first_late_job() -> None:
    tasks = (plain("a", 2, 2, 3),)
    run = simulate(tasks, critical_instant(tasks, 1000), by_priority(tasks), stop_when_late=True)
    assert run.late == [Late(0, 2, 3)]


def test_ties_go_to_whoever_is_not_the_loser() -> None:
    twins = (plain("a", 9, 9, 2), plain("b", 9, 9, 3))
    jobs = critical_instant(twins, 9)
    assert simulate(twins, jobs, by_priority(twins, loser=0)).worst_response_ns == {0: 5, 1: 3}
    assert simulate(twins, jobs, by_priority(twins, loser=1)).worst_response_ns == {0: 2, 1: 5}


def test_offsets_are_kept() -> None:
    assert [job.arrival_ns for job in offset_jobs((A,), (3,), 14)] == [3, 8, 13]


def test_jitter_holds_the_first_job_back() -> None:
    jobs = critical_instant((plain("a", 5, 5, 1, jitter_ns=7),), 6)
    assert [(job.arrival_ns, job.release_ns) for job in jobs] == [(-7, 0), (-2, 0), (3, 3)]


def test_behind_a_server_by_hand() -> None:
    """Q = 2 of P = 5: nothing for 6, then 6-8, 11-13: a's 3 are done at 12. Deferrable: 3-5 and 8-9."""
    a = (plain("a", 50, 50, 3),)
    jobs = critical_instant(a, 1)
    assert simulate(a, jobs, by_priority(a), worst_slices(Server(5, 2))).ended_ns == 12
    kept = Server(5, 2, ServerKind.DEFERRABLE)
    assert simulate(a, jobs, by_priority(a), worst_slices(kept)).ended_ns == 9


def test_a_deferrable_server_keeps_its_budget() -> None:
    """Full at 0; a at 2 runs 2-4 at once, a at 4 waits for the budget of 5."""
    a = (plain("a", 2, 9, 2),)
    jobs = [Job(0, 2, 2, 2), Job(0, 4, 4, 1)]
    run = simulate(a, jobs, by_priority(a), Deferrable(Server(5, 2, ServerKind.DEFERRABLE), 5, 0))
    assert run.worst_response_ns == {0: 2}
    assert run.ended_ns == 6
