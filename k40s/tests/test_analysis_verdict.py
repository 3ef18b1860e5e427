"""Verdicts speak in whole sentences, with every number that they rest on."""

from fractions import Fraction

import pytest

from k40s.analysis.load import DEFAULT_EFFORT, Effort, EffortSpent, long_run, share_down, share_up
from k40s.analysis.supply import WHOLE_CORE, Server
from k40s.analysis.task import plain
from k40s.analysis.verdict import Bound, DeadlineMiss, Excess, Overload, Proved, Refuted, TooFar, Undecided


@pytest.mark.parametrize(
    ("verdict", "told"),
    [
        (Proved((Bound("loop", 3, 5, "HI"),)), ("loop", "3 ns", "5 ns", "HI")),
        (Proved(()), ("nothing",)),
        (Refuted(Overload("core", Fraction(5, 4), Fraction(1))), ("core", "1.250000", "1.000000")),
        (Refuted(DeadlineMiss("loop", 0, 12)), ("loop", "12 ns", "LO")),
        (Refuted(Excess(7, 9, 6, "HI")), ("7 ns", "9 ns", "6 ns", "HI")),
        (Refuted(TooFar("video", 90, 80)), ("video", "90 ns", "80 ns")),
        (Undecided("the effort was spent"), ("the effort was spent",)),
    ],
)
def test_verdicts_in_words(verdict: Proved | Refuted | Undecided, told: tuple[str, ...]) -> None:
    assert all(word in str(verdict) for word in told)


def test_utilisation_is_compared_exactly() -> None:
    whole = [plain("a", 3, 3, 1), plain("b", 3, 3, 1), plain("c", 3, 3, 1)]
    assert isinstance(long_run(whole, WHOLE_CORE), Proved)
    one_more = [*whole, plain("d", 2**200, 2**200, 1)]
    assert isinstance(long_run(one_more, WHOLE_CORE), Refuted)


def test_too_long_to_sum_exactly_is_said() -> None:
    tasks = [plain(f"t{at}", 2**400 - 2 * at - 1, 1, (2**400) // 100 - at) for at in range(100)]
    fits = [*tasks[:-1], plain("last", 10**9, 1, 1)]
    assert isinstance(long_run(fits, WHOLE_CORE), Proved)
    level = [plain(f"t{at}", 100 * (2**300 + at), 1, 2**300 + at) for at in range(100)]
    assert isinstance(long_run(level, WHOLE_CORE), Undecided)
    assert isinstance(long_run(level, Server(100, 99)), Refuted)


def test_shares_are_rounded_to_their_side() -> None:
    assert share_down(1, 3) * 3 < 1 << 256 < share_up(1, 3) * 3
    assert share_down(1, 4) == share_up(1, 4)


def test_effort_runs_out() -> None:
    meter = Effort(10)
    meter.spend(10)
    with pytest.raises(EffortSpent):
        meter.spend(1)
    assert DEFAULT_EFFORT > 10
