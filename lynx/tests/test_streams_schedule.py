"""Who sends next: order, starvation, deadlines that cannot be met."""

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lynx.codec.interface import Plane
from lynx.errors import BadInput
from lynx.streams import Late, Objective, OnTime, Policy, Schedule

A, R = Plane.ANCHOR, Plane.RESIDUAL
MS = 1_000_000
OBJECTIVE = Objective(ttft_ns=100 * MS, token_ns=10 * MS, drafts=64)


def ready(schedule: Schedule, plane: Plane, at_ns: int, size: int = 1000) -> int:
    stream = schedule.open(plane, OBJECTIVE, at_ns, size)
    schedule.set_ready(stream, True)
    return stream


@pytest.mark.parametrize("policy", get_args(Policy))
def test_nothing_ready_is_nobodys_turn(policy: Policy) -> None:
    schedule = Schedule(policy)
    assert schedule.next() is None
    stream = schedule.open(A, OBJECTIVE, 0, 10)
    assert schedule.next() is None
    schedule.set_ready(stream, True)
    assert schedule.next() == stream
    schedule.close(stream)
    schedule.close(stream)
    assert schedule.next() is None and len(schedule) == 0


@pytest.mark.parametrize("policy", get_args(Policy))
@given(st.lists(st.tuples(st.sampled_from(Plane), st.integers(0, 10**12)), min_size=1))
def test_ready_is_a_total_order_of_the_ready(policy: Policy, streams: list[tuple[Plane, int]]) -> None:
    schedule = Schedule(policy)
    opened = [ready(schedule, plane, at) for plane, at in streams]
    order = schedule.ready()
    assert sorted(order) == sorted(opened) and schedule.next() == order[0]
    assert list(schedule.order()) == order


def test_strict_sends_anchors_first_oldest_first() -> None:
    schedule = Schedule("strict")
    residual, old, new = ready(schedule, R, 0), ready(schedule, A, 9 * MS), ready(schedule, A, 0)
    assert schedule.ready() == [old, new, residual]


def test_edf_deadlines() -> None:
    schedule = Schedule("edf")
    anchor, residual = ready(schedule, A, 5), ready(schedule, R, 5)
    assert schedule.deadline_ns(anchor) == 5 + 100 * MS
    assert schedule.deadline_ns(residual) == 5 + 100 * MS + 640 * MS
    schedule.anchor_arrived(residual, 40 * MS)
    assert schedule.deadline_ns(residual) == 40 * MS + 640 * MS
    schedule.anchor_arrived(residual, 40 * MS, drafts_left=2)
    assert schedule.deadline_ns(residual) == 60 * MS
    assert schedule.ready() == [residual, anchor]


def serve_with_steady_anchors(policy: Policy, rounds: int) -> int | None:
    """One residual under a load of anchors that never pauses: the round in which it is first served."""
    schedule = Schedule(policy)
    residual = ready(schedule, R, 0)
    for round_ in range(rounds):
        now_ns = round_ * 10 * MS
        anchor = ready(schedule, A, now_ns)
        chosen = schedule.next()
        if chosen == residual:
            return round_
        assert chosen is not None
        schedule.close(chosen)
        assert anchor  # one comes, one goes: the link is full with anchors alone
    return None


def test_strict_starves_a_residual_and_edf_does_not() -> None:
    assert serve_with_steady_anchors("strict", 10_000) is None
    served = serve_with_steady_anchors("edf", 10_000)
    # Anchors offered more than 640 ms after the residual's own are due after it.
    assert served == 65


@given(
    st.lists(
        st.tuples(st.integers(1, 1000), st.integers(0, 1000), st.integers(1, 5)), min_size=1, max_size=30
    )
)
def test_edf_starves_nobody(anchors: list[tuple[int, int, int]]) -> None:
    """Whatever arrives, a stream waits only for streams due before it, and those are finitely many."""
    schedule = Schedule("edf")
    victim = ready(schedule, R, 0)
    due = schedule.deadline_ns(victim)
    for gap, ttft, count in anchors * 5:
        for _ in range(count):
            stream = schedule.open(A, Objective(ttft_ns=ttft * MS), gap * MS, 1)
            schedule.set_ready(stream, True)
        chosen = schedule.next()
        assert chosen is not None
        if chosen == victim:
            break
        assert schedule.deadline_ns(chosen) <= due
        schedule.close(chosen)
    while (chosen := schedule.next()) not in (victim, None):
        assert chosen is not None and schedule.deadline_ns(chosen) <= due
        schedule.close(chosen)
    assert chosen == victim


def test_objective_that_cannot_be_met_is_a_value() -> None:
    schedule = Schedule("edf")
    first = schedule.open(A, OBJECTIVE, 0, 1_000_000)
    assert schedule.forecast(0, 80_000_000) == OnTime()  # 8 Mbit at 80 Mbit/s: exactly 100 ms
    second = schedule.open(A, OBJECTIVE, 0, 1_000_000)
    assert schedule.forecast(0, 80_000_000) == Late(second, A, 100 * MS, 200 * MS)
    schedule.sent(first, 1_000_000)
    assert schedule.forecast(0, 80_000_000) == OnTime()
    assert schedule.forecast(1, 80_000_000) == Late(second, A, 100 * MS, 100 * MS + 1)


def test_strict_is_late_where_edf_is_on_time() -> None:
    verdicts = {}
    for policy in get_args(Policy):
        schedule = Schedule(policy)
        residual = schedule.open(R, OBJECTIVE, 0, 1_000_000)
        schedule.anchor_arrived(residual, 0, drafts_left=10)
        schedule.open(A, Objective(ttft_ns=1000 * MS), 0, 1_000_000)
        verdicts[policy] = type(schedule.forecast(0, 80_000_000))
    assert verdicts == {"strict": Late, "edf": OnTime}


def test_unknown_policy() -> None:
    with pytest.raises(BadInput, match="strict, edf"):
        Schedule("fifo")  # type: ignore[arg-type]  # that is the point
