"""Thresholds do not flap, trends see what comes and ignore noise."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k40s.monitor.detect import Threshold, ThresholdState, Trend

S = 10**9


@given(st.lists(st.integers(51, 99), max_size=30), st.booleans())
def test_between_the_two_levels_nothing_changes(values: list[int], alarmed: bool) -> None:
    threshold, state = Threshold(100, 50), ThresholdState(0 if alarmed else None, alarmed)
    for second, value in enumerate(values):
        state = threshold.step(state, second * S, value)
    assert state.alarmed == alarmed


@given(st.lists(st.integers(0, 200), min_size=1, max_size=40))
def test_an_alarm_means_that_it_lasted(values: list[int]) -> None:
    threshold, state = Threshold(100, 50, hold_ns=3 * S), ThresholdState()
    for second, value in enumerate(values):
        before, state = state, threshold.step(state, second * S, value)
        if state.alarmed and not before.alarmed:
            assert second >= 3
            assert min(values[second - 3 : second + 1]) >= 100
        if value < 50:
            assert not state.alarmed


def test_a_clock_that_goes_back_raises_nothing_early() -> None:
    threshold = Threshold(100, 50, hold_ns=3 * S)
    state = threshold.step(ThresholdState(), 10 * S, 150)
    state = threshold.step(state, 1 * S, 150)
    assert not state.alarmed
    assert threshold.step(state, 4 * S, 150).alarmed


def test_levels_the_wrong_way_round_are_refused() -> None:
    with pytest.raises(ValueError, match="must not exceed"):
        Threshold(10, 20)


@given(st.integers(1, 1000), st.integers(0, 10**6), st.integers(6, 40))
def test_a_line_is_followed_to_its_limit(slope: int, start: int, count: int) -> None:
    samples = [(second * S, start + slope * second) for second in range(count)]
    last = samples[-1][1]
    found = Trend(last + 10 * slope, horizon_ns=11 * S).reaches_limit_in_ns(samples)
    assert found is not None
    assert abs(found - 10 * S) < S // 1000
    assert Trend(last + 10 * slope, horizon_ns=9 * S).reaches_limit_in_ns(samples) is None
    assert Trend(last, horizon_ns=1).reaches_limit_in_ns(samples) == 0


def test_noise_and_falling_numbers_are_no_trend() -> None:
    noise = random.Random(4)
    trend = Trend(10_000, horizon_ns=3600 * S)
    assert trend.reaches_limit_in_ns([(at * S, noise.randrange(1000)) for at in range(40)]) is None
    assert trend.reaches_limit_in_ns([(at * S, 900 - at) for at in range(40)]) is None
    assert trend.reaches_limit_in_ns([(5 * S, 1)] * 10) is None
