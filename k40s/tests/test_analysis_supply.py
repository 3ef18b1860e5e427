"""Supplies: bound and inverse belong together, and no legal supply gives less."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k40s.analysis.simulate import Deferrable, FixedSlices, Slices, random_slices, worst_slices
from k40s.analysis.supply import WHOLE_CORE, Linear, Server, ServerKind, Supply
from k40s.errors import BadInput


@st.composite
def servers(draw: st.DrawFn, largest_ns: int = 30) -> Server:
    period_ns = draw(st.integers(1, largest_ns))
    return Server(period_ns, draw(st.integers(1, period_ns)), draw(st.sampled_from(ServerKind)))


supplies = st.one_of(st.just(WHOLE_CORE), servers(), servers(10**30), servers().map(Linear))


def given_within(slices: Slices, start_ns: int, window_ns: int) -> int:
    """What is supplied to something that is ready throughout."""
    supplied_ns, now_ns = 0, start_ns
    while True:
        begin_ns, end_ns = slices.next_slice(now_ns)
        end_ns = min(end_ns, start_ns + window_ns)
        if begin_ns >= end_ns:
            return supplied_ns
        slices.use(begin_ns, end_ns)
        supplied_ns, now_ns = supplied_ns + end_ns - begin_ns, end_ns


@given(supplies, st.integers(1, 10**31))
def test_window_is_the_shortest_that_supplies_the_work(supply: Supply, work_ns: int) -> None:
    window_ns = supply.window_ns(work_ns)
    assert supply.supplied_ns(window_ns) >= work_ns > supply.supplied_ns(window_ns - 1)


@given(supplies, st.integers(0, 500), st.integers(0, 500))
def test_supply_is_superadditive(supply: Supply, first_ns: int, second_ns: int) -> None:
    both_ns = supply.supplied_ns(first_ns + second_ns)
    assert both_ns >= supply.supplied_ns(first_ns) + supply.supplied_ns(second_ns)


@given(servers(), st.integers(0, 300))
def test_linear_bound_is_below_the_exact_one_and_both_below_the_rate(server: Server, window_ns: int) -> None:
    assert Linear(server).supplied_ns(window_ns) <= server.supplied_ns(window_ns) <= window_ns * server.rate


@given(servers(), st.integers(0, 300))
def test_worst_slices_give_exactly_the_bound(server: Server, window_ns: int) -> None:
    assert given_within(worst_slices(server), 0, window_ns) == server.supplied_ns(window_ns)


@given(servers(), st.integers(0, 2**32).map(Random), st.integers(0, 60), st.integers(0, 200))
def test_no_placement_of_slices_gives_less(server: Server, random: Random, start: int, window: int) -> None:
    constant = Server(server.period_ns, server.budget_ns)
    assert given_within(random_slices(constant, random), start, window) >= constant.supplied_ns(window)


@given(servers(), st.data(), st.integers(0, 60), st.integers(0, 200))
def test_no_deferrable_server_gives_less(
    server: Server, data: st.DataObject, start_ns: int, window_ns: int
) -> None:
    deferrable = Server(server.period_ns, server.budget_ns, ServerKind.DEFERRABLE)
    phase_ns = data.draw(st.integers(1, server.period_ns))
    spent_ns = data.draw(st.integers(0, min(server.budget_ns, server.period_ns - phase_ns)))
    slices = Deferrable(deferrable, phase_ns, spent_ns)
    assert given_within(slices, start_ns, window_ns) >= deferrable.supplied_ns(window_ns)


def test_gap_of_two_and_of_one() -> None:
    assert Server(10, 4).gap_ns == 12
    assert Server(10, 4, ServerKind.DEFERRABLE).gap_ns == 6
    assert [Server(10, 4).supplied_ns(window) for window in (12, 13, 16, 17, 22, 23, 26)] == [
        0,
        1,
        4,
        4,
        4,
        5,
        8,
    ]


def test_a_slice_at_the_start_then_at_the_end_makes_the_double_gap() -> None:
    slices = FixedSlices(Server(10, 4), 0, lambda number: 0 if number == 0 else 6)
    assert slices.next_slice(4) == (16, 20)


@pytest.mark.parametrize("budget_ns", [0, 11, -1])
def test_impossible_budgets_are_refused(budget_ns: int) -> None:
    with pytest.raises(BadInput, match="budget_ns"):
        Server(10, budget_ns)
