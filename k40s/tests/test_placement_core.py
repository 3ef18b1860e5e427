"""Servers of one core: sized so that their tasks keep deadlines, admitted only if all of them get their budgets."""

from fractions import Fraction
from random import Random

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from k40s import api
from k40s.analysis.simulate import Job, Policy, critical_instant, offset_jobs, random_jobs, simulate
from k40s.analysis.task import Task
from k40s.analysis.verdict import Proved, Refuted
from k40s.placement import NotSized, Reservation, core_verdict
from k40s.placement.reservation import Need, octave_of, reserve_for

MS = 10**6
some = settings(max_examples=60, deadline=None)


@st.composite
def needs(draw: st.DrawFn) -> tuple[tuple[Need, ...], api.Level]:
    level = draw(st.sampled_from([api.Level.LO, api.Level.HI]))
    tasks = []
    for number in range(draw(st.integers(1, 2))):
        period_ns = draw(st.sampled_from([2, 5, 10, 20])) * MS
        lo_ns = period_ns * draw(st.integers(2, 25)) // 100
        hi_ns = lo_ns * 3 // 2 if level is api.Level.HI else lo_ns // 2
        deadline_ns = draw(st.sampled_from([period_ns, period_ns * 4 // 5]))
        by_deadline = draw(st.booleans())
        tasks.append(Need(f"t{number}", by_deadline, period_ns, deadline_ns, 0, lo_ns, hi_ns))
    return tuple(tasks), level


@st.composite
def cores(draw: st.DrawFn) -> list[Reservation]:
    found = [reserve_for(*one, 0) for one in draw(st.lists(needs(), min_size=1, max_size=3))]
    assume(all(isinstance(one, Reservation) for one in found))
    return [one for one in found if isinstance(one, Reservation)]


@given(cores(), st.integers(0, 1000))
@some
def test_in_an_admitted_core_every_server_gets_its_budget_in_time(held: list[Reservation], seed: int) -> None:
    """Played: deadline servers first, earliest deadline first, then group servers by period; all spend all they have,
    in random phases, early, late and seldom."""
    if not isinstance(core_verdict(held, Fraction(1)), Proved):
        return
    servers = [server for reservation in held for server in reservation.servers]
    tasks = [
        Task(server.name, server.period_ns, server.due_ns, server.budget_ns, server.budget_ns)
        for server in servers
    ]

    def rank(_mode: str, job: Job) -> tuple[int, ...]:
        server = servers[job.task]
        if server.by_deadline:
            return (0, job.arrival_ns + server.due_ns, job.task)
        return (1, octave_of(server.period_ns), job.task, job.arrival_ns)

    random = Random(seed)
    until_ns = 4 * max(task.period_ns for task in tasks)
    phases = [random.randrange(task.period_ns) for task in tasks]
    for jobs in (
        critical_instant(tasks, until_ns),
        offset_jobs(tasks, phases, until_ns),
        random_jobs(tasks, until_ns, random),
    ):
        assert not simulate(tasks, jobs, Policy(rank)).late


@given(cores())
@some
def test_one_server_more_never_makes_a_core_better(held: list[Reservation]) -> None:
    if isinstance(core_verdict(held, Fraction(19, 20)), Proved):
        for at in range(len(held)):
            assert isinstance(core_verdict(held[:at] + held[at + 1 :], Fraction(19, 20)), Proved)
    assert core_verdict(held, Fraction(19, 20)) == core_verdict(held[::-1], Fraction(19, 20))


@given(needs(), needs())
@some
def test_a_share_is_a_share(
    one: tuple[tuple[Need, ...], api.Level], other: tuple[tuple[Need, ...], api.Level]
) -> None:
    found = [reserve_for(*need, 0) for need in (one, other)]
    held = [reservation for reservation in found if isinstance(reservation, Reservation)]
    taken = sum((reservation.share for reservation in held), Fraction(0))
    if taken > 0:
        assert isinstance(core_verdict(held, taken - Fraction(1, 10**9)), Refuted)
    for reservation in held:
        assert reservation.share_ppb == reservation.share * 10**9 // 1


@given(needs(), st.integers(0, 3 * MS))
@some
def test_what_is_too_much_stays_too_much_with_wake_up_latency(
    need: tuple[tuple[Need, ...], api.Level], wakeup_ns: int
) -> None:
    quick, slow = reserve_for(*need, 0), reserve_for(*need, wakeup_ns)
    if isinstance(quick, NotSized):
        assert isinstance(slow, NotSized)


def test_equal_content_is_the_same_object() -> None:
    need = Need("t", True, 10 * MS, 10 * MS, 0, MS, MS)
    assert reserve_for((need,), api.Level.HI, 0) is reserve_for((need,), api.Level.HI, 0)
    too_late = Need("t", False, 10 * MS, MS, 0, MS, 2 * MS)
    found = reserve_for((too_late,), api.Level.HI, 0)
    assert isinstance(found, NotSized)
    assert "deadline" in found.reason
