"""Counters into rates: whatever counters and clocks do, a reading is in range or unknown."""

from hypothesis import given
from hypothesis import strategies as st

from k40s.assurance.evidence import Measured, Unknown
from k40s.monitor.readings import Counted, count, rate

counted = st.builds(
    Counted, st.integers(0, 10**12), st.dictionaries(st.sampled_from(["0", "1", "2"]), st.integers(0, 10**15))
)


@given(st.none() | counted, st.none() | counted)
def test_a_rate_is_in_range_or_unknown(before: Counted | None, now: Counted | None) -> None:
    for reading in (rate(before, now, 1000, "x", 2), count(before, now, "x")):
        match reading:
            case Measured(value):
                assert value >= 0
            case Unknown(reason):
                assert "not read twice" in reason
    found = rate(before, now, 1000, "x")
    assert not isinstance(found, Measured) or found.value <= 1_000_000


def test_hand_worked() -> None:
    before, now = Counted(0, {"0": 5, "1": 5}), Counted(10**9, {"0": 5, "1": 50_005})
    assert rate(before, now, 1000, "steal", shares=2) == Measured(25_000, "2.50 % of 1.0 s")
    assert count(before, now, "errors") == Measured(50_000, "50000 in 1.0 s")


def test_a_counter_that_began_anew_counts_from_zero_and_a_new_one_not_at_all() -> None:
    assert count(Counted(0, {"0": 100}), Counted(1, {"0": 3}), "x") == Measured(3, "3 in 0.0 s")
    assert count(Counted(0, {}), Counted(1, {"0": 3}), "x") == Measured(0, "0 in 0.0 s")
