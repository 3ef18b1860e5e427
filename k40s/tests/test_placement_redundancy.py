"""How likely enough replicas are good: against the published figures and against counting all cases."""

from fractions import Fraction
from itertools import product
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k40s.api.job import RedundancyMode
from k40s.placement import at_least, dependability
from k40s.placement.redundancy import needed_of

chances = st.lists(st.fractions(0, 1, max_denominator=50), max_size=6)


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [((0.75, 0.9), 0.675), ((0.75,) * 3, 0.84375), ((0.9,) * 3, 0.972), ((0.9,) * 5, 0.99144)],
)
def test_strict_majority_as_published(nodes: tuple[float, ...], expected: float) -> None:
    exact = [Fraction(str(p)) for p in nodes]
    assert dependability(RedundancyMode.MAJORITY, exact) == Fraction(str(expected))


@given(chances, st.integers(-1, 7))
def test_it_is_the_sum_over_all_cases(nodes: list[Fraction], needed: int) -> None:
    cases = product((False, True), repeat=len(nodes))
    total = sum(
        (prod((p if good else 1 - p for p, good in zip(nodes, case, strict=True)), start=Fraction(1)))
        for case in cases
        if sum(case) >= needed
    )
    assert at_least(needed, nodes) == total


@given(chances)
def test_a_standby_is_good_unless_all_fail(nodes: list[Fraction]) -> None:
    expected = 1 - prod((1 - p for p in nodes), start=Fraction(1))
    assert dependability(RedundancyMode.HOT_STANDBY, nodes) == expected


def test_needed_replicas() -> None:
    assert [needed_of(RedundancyMode.MAJORITY, n) for n in range(1, 6)] == [1, 2, 2, 3, 3]
    assert [needed_of(RedundancyMode.HOT_STANDBY, n) for n in range(1, 6)] == [1] * 5
