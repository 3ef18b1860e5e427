"""Misses, and those that the host explains."""

from hypothesis import given
from hypothesis import strategies as st

from k40s.monitor.deadlines import Misses, judge, spent_budgets, stolen_between
from k40s.task import Period

MS = 10**6


def period(release_ms: int, response_ms: int) -> Period:
    return Period(release_ms * MS, release_ms * MS, (release_ms + response_ms) * MS, MS)


def steal(*readings: tuple[int, int]) -> list[tuple[int, int]]:
    return [(at * MS, stolen * MS) for at, stolen in readings]


def test_hand_worked() -> None:
    taken = steal((0, 0), (1000, 0), (2000, 20), (3000, 20), (4000, 20), (5000, 30))
    cases = {
        "in time": (period(100, 5), 0, 0),
        "late, host took nothing": (period(500, 9), 1, 1),
        "late by 15 ms, host took 20": (period(1500, 20), 1, 0),
        "late by 45 ms, host took 20: not by that alone": (period(1500, 50), 1, 1),
        "late by 15 ms, host took 10 and a step that is not seen": (period(4500, 20), 1, 0),
        "late by 3 ms just before the counter was fed": (period(950, 8), 1, 0),
        "late long after": (period(3500, 8), 1, 1),
    }
    for words, (one, missed, unexplained) in cases.items():
        assert judge([one], 5 * MS, taken) == Misses(1, missed, unexplained), words
    assert judge([period(0, 9)], 5 * MS, []) == Misses(1, 1, 1)


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 50)), max_size=20), st.integers(1, 40))
def test_without_steal_every_miss_is_unexplained(shapes: list[tuple[int, int]], deadline_ms: int) -> None:
    found = judge([period(*shape) for shape in shapes], deadline_ms * MS, steal((0, 7), (2000, 7)))
    assert found.missed == found.unexplained == sum(response > deadline_ms for _, response in shapes)


@given(st.lists(st.integers(0, 100), min_size=2, max_size=20), st.data())
def test_a_wider_window_never_has_less_steal(steps: list[int], data: st.DataObject) -> None:
    total, readings = 0, []
    for index, step in enumerate(steps):
        total += step
        readings.append((index * 10, total))
    start = data.draw(st.integers(0, len(steps) * 10 - 10))
    end = data.draw(st.integers(start, len(steps) * 10 - 10))
    assert (
        stolen_between(start, end, readings)
        <= stolen_between(0, len(steps) * 10 - 10, readings)
        == total - steps[0]
    )


def test_a_container_that_keeps_to_its_budget_has_spent_none() -> None:
    second = 10**9
    assert spent_budgets(int(0.05 * second), second, 1000, 10_000) == 0
    assert spent_budgets(int(0.0995 * second), second, 1000, 10_000) == 99
    assert spent_budgets(second, second, 1000, 10_000) == 100
    assert spent_budgets(second, 0, 1000, 10_000) == 0
