"""Designing servers: the published figures, and that what is found is proved and smallest."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k40s.analysis import server
from k40s.analysis.earliest_deadline import earliest_deadline_first
from k40s.analysis.fixed_priority import fixed_priority
from k40s.analysis.server import (
    Sized,
    Terms,
    candidate_periods,
    cheapest_server,
    smallest_budget,
)
from k40s.analysis.supply import Server, ServerKind
from k40s.analysis.task import Task, deadline_monotonic, plain
from k40s.analysis.verdict import Proved, Refuted, Undecided
from k40s.errors import BadInput

US, MS = 1_000, 1_000_000
CELL = deadline_monotonic(
    (
        plain("plan", 100 * MS, 100 * MS, 3 * MS),
        plain("bus", 12 * MS, 12 * MS, 10 * US),
        plain("loop", 2500 * US, 2500 * US, 50 * US),
    )
)


def percent(period_ns: int, kind: ServerKind, by_linear_bound: bool, test: server.Test) -> Fraction:
    sized = smallest_budget(CELL, test, period_ns, Terms(kind, by_linear_bound=by_linear_bound))
    assert isinstance(sized, Sized)
    return Fraction(100 * sized.server.budget_ns, period_ns)


@pytest.mark.parametrize("test", [fixed_priority, earliest_deadline_first])
@pytest.mark.parametrize(
    ("period_us", "kind", "by_linear_bound", "tenths_of_percent"),
    [
        (2500, ServerKind.CONSTANT_BANDWIDTH, True, 520),
        (2500, ServerKind.DEFERRABLE, False, 51),
        (2500, ServerKind.DEFERRABLE, True, 142),
        (1000, ServerKind.CONSTANT_BANDWIDTH, True, 77),
        (500, ServerKind.CONSTANT_BANDWIDTH, True, 52),
        (2500, ServerKind.CONSTANT_BANDWIDTH, False, 510),
        (1000, ServerKind.CONSTANT_BANDWIDTH, False, 52),
    ],
)
def test_figures_of_the_cell(
    period_us: int, kind: ServerKind, by_linear_bound: bool, tenths_of_percent: int, test: server.Test
) -> None:
    """To a tenth of a percent: 52 %, 5.1 %, 14 %, 8 % and 5 % as they are quoted, and two exact ones."""
    assert round(10 * percent(period_us * US, kind, by_linear_bound, test)) == tenths_of_percent


small_tasks = st.builds(
    lambda period, wcet, deadline: plain("t", period, max(wcet, deadline), wcet),
    st.integers(8, 60),
    st.integers(1, 4),
    st.integers(4, 80),
)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(small_tasks, min_size=1, max_size=3),
    st.integers(1, 12),
    st.sampled_from(ServerKind),
    st.booleans(),
    st.sampled_from([fixed_priority, earliest_deadline_first]),
)
def test_budget_is_the_first_that_is_proved(
    tasks: list[Task], period_ns: int, kind: ServerKind, by_linear_bound: bool, test: server.Test
) -> None:
    terms = Terms(kind, grain_ns=1, by_linear_bound=by_linear_bound)
    every = [
        budget_ns
        for budget_ns in range(1, period_ns + 1)
        if isinstance(test(tasks, terms.supply(period_ns, budget_ns)[1]), Proved)
    ]
    match smallest_budget(tasks, test, period_ns, terms):
        case Sized(found, bounds):
            assert found == Server(period_ns, every[0], kind)
            assert len(bounds) == len(tasks)
        case Refuted() | Undecided():
            assert not every


def test_shorter_periods_cost_less_until_switching_does() -> None:
    periods = candidate_periods(CELL)
    assert periods[-1] == 2500 * US
    assert min(periods) >= 100 * US
    free = cheapest_server(CELL, fixed_priority, periods)
    dear = cheapest_server(CELL, fixed_priority, periods, Terms(switch_ns=10 * US))
    assert isinstance(free, Sized)
    assert isinstance(dear, Sized)
    assert free.server.period_ns < dear.server.period_ns < 2500 * US
    for period_ns in periods:
        other = smallest_budget(CELL, fixed_priority, period_ns)
        assert isinstance(other, Sized)
        assert free.server.rate <= other.server.rate


def test_what_no_server_can_do_is_refused_with_a_verdict() -> None:
    assert isinstance(
        smallest_budget([plain("a", 10, 10, 11)], fixed_priority, 10, Terms(grain_ns=1)), Refuted
    )
    assert isinstance(cheapest_server(CELL, fixed_priority, ()), Undecided)
    assert isinstance(
        cheapest_server([plain("a", 10 * US, 9 * US, 10 * US)], fixed_priority, [10 * US]), Refuted
    )


def test_terms_are_checked() -> None:
    with pytest.raises(BadInput, match="grain_ns is 0"):
        Terms(grain_ns=0)
    with pytest.raises(BadInput, match="switch_ns is -1"):
        Terms(switch_ns=-1)
    with pytest.raises(BadInput, match="period_ns is 500"):
        smallest_budget(CELL, fixed_priority, 500)


def test_nothing_to_run_takes_one_grain() -> None:
    assert smallest_budget((), fixed_priority, 10 * US) == Sized(Server(10 * US, US), ())
