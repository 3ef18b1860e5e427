"""Scores: by hand, bounded, explained to the last point, quick to fall, slow to rise."""

from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k40s.api import AssurancePolicySpec, Level
from k40s.assurance import (
    Absent,
    Amounts,
    Assurance,
    Evidence,
    Load,
    Measured,
    Memory,
    Present,
    Unknown,
    assess,
    explain,
    gamma_millipoints,
    millipoints_for,
    overcommit_points,
    rules_held,
    to_status,
)

POLICY = AssurancePolicySpec()
SECOND = 10**9
CAPACITY = Amounts(10_000, 10 * 2**30)
GOOD = {name: Measured(0) for name in POLICY.signals}


def load(requests: tuple[int, int, int], limits: tuple[int, int, int]) -> Load:
    """Sums for NO, LO, HI in thousandths of a core; memory is no matter."""
    no, lo, hi = (Amounts(milli) for milli in requests)
    limit_no, limit_lo, limit_hi = (Amounts(milli) for milli in limits)
    return Load((no, lo, hi), (limit_no, limit_lo, limit_hi))


def capable(count: int | None = None) -> dict[str, Present]:
    names = [*POLICY.weights.alpha, *POLICY.weights.beta]
    return {name: Present("seen") for name in names[:count]}


milli = st.integers(0, 15_000)
loads = st.builds(load, st.tuples(milli, milli, milli), st.tuples(milli, milli, milli))
readings = st.fixed_dictionaries(
    {},
    optional={
        name: st.integers(0, 2 * signal.bad).map(Measured) | st.just(Unknown("no probe"))
        for name, signal in POLICY.signals.items()
    },
)


@pytest.mark.parametrize(
    ("requests", "limits", "points"),
    [
        ((0, 0, 0), (0, 0, 0), 10),  # an empty node has promised nothing
        ((4000, 3000, 3000), (4000, 3000, 3000), 10),  # all limits fit, to the last
        ((4000, 3000, 3000), (4001, 3000, 3000), 8),  # NO jobs may use a little more
        ((4001, 3000, 3000), (9000, 3000, 3000), 5),  # NO was promised more than LO and HI leave of it
        ((1000, 3000, 3000), (9000, 8000, 3000), 5),  # LO limits do not fit, but what was promised does
        ((5000, 3000, 3000), (9000, 8000, 3000), 4),
        ((0, 8000, 3000), (0, 8000, 3000), 2),  # LO was promised more than HI leaves of it
        ((0, 0, 9000), (0, 0, 11_000), 0),
    ],
)
def test_overcommit_by_hand(
    requests: tuple[int, int, int], limits: tuple[int, int, int], points: int
) -> None:
    assert overcommit_points(load(requests, limits), CAPACITY) == points


def test_a_rule_must_hold_for_memory_too() -> None:
    much = Load(limits=(Amounts(), Amounts(), Amounts(1, 11 * 2**30)))
    assert overcommit_points(much, CAPACITY) == 0


@given(loads, st.sampled_from(list(Level)), milli, milli)
def test_one_job_more_never_gives_points(before: Load, level: Level, request: int, limit: int) -> None:
    after = before.with_job(level, Amounts(request), Amounts(limit))
    assert overcommit_points(after, CAPACITY) <= overcommit_points(before, CAPACITY)
    assert after.without_job(level, Amounts(request), Amounts(limit)) == before
    assert all(
        b or not a for a, b in zip(rules_held(after, CAPACITY), rules_held(before, CAPACITY), strict=True)
    )


@given(loads, readings, st.integers(0, 12))
def test_a_score_is_the_sum_of_what_its_lines_say(commit: Load, measured: dict, capabilities: int) -> None:
    found, _ = assess(Evidence(capable(capabilities), measured), commit, CAPACITY, POLICY)
    parts = {
        part: sum(line.points for line in found.lines if line.part == part)
        for part in ("alpha", "beta", "gamma")
    }
    assert (found.alpha, found.beta, found.overcommit) == (parts["alpha"], parts["beta"], parts["gamma"])
    assert found.gamma == gamma_millipoints(overcommit_points(commit, CAPACITY), found.scale_ppm)
    assert 0 <= found.score <= 1
    assert all(0 <= line.points <= line.most for line in found.lines)
    assert len(explain(found)) == 2 + len(found.lines)
    thresholds = POLICY.thresholds
    assert found.level is (
        Level.HI if found.score >= thresholds.hi else Level.LO if found.score >= thresholds.lo else Level.NO
    )
    status = to_status(found)
    assert status.alpha.points + status.beta.points + status.gamma.points == pytest.approx(20 * status.score)


def test_everything_present_and_quiet_is_a_score_of_one() -> None:
    found, _ = assess(Evidence(capable(), GOOD), Load(), CAPACITY, POLICY)
    assert (found.score, found.level) == (1, Level.HI)


def test_what_is_not_known_counts_as_absent_and_as_bad() -> None:
    nothing, _ = assess(Evidence(), Load(), CAPACITY, POLICY)
    assert nothing.score == 0
    unknown = Evidence(
        {name: Unknown("no probe") for name in capable()}, {name: Unknown("no probe") for name in GOOD}
    )
    absent = Evidence({name: Absent("not there") for name in capable()}, {})
    assert assess(unknown, Load(), CAPACITY, POLICY)[0].score == 0
    assert assess(absent, Load(), CAPACITY, POLICY)[0].score == 0
    assert any("unknown" in line for line in explain(nothing))


@given(st.sampled_from(sorted(POLICY.signals)), st.integers(0, 10_000_000), st.integers(0, 10_000_000))
def test_worse_readings_never_give_a_better_score(name: str, value: int, more: int) -> None:
    def score(reading: int) -> int:
        return assess(Evidence(capable(), {**GOOD, name: Measured(reading)}), Load(), CAPACITY, POLICY)[
            0
        ].gamma

    assert score(value + more) <= score(value)
    signal = POLICY.signals[name]
    assert score(signal.good) == 10_000
    # half-way between good and bad half of the severity is taken off
    middle = (signal.good + signal.bad) // 2
    assert score(middle) == pytest.approx(10_000 * (1 - float(signal.severity) / 2), rel=0.01)
    assert score(signal.bad) == 10_000 * (1 - signal.severity)


def series(values: list[int], step_ns: int) -> list[Assurance]:
    """Deadline misses over time, in parts per million."""
    found, memory = [], Memory()
    for number, value in enumerate(values):
        evidence = Evidence(capable(), {**GOOD, "deadline-misses": Measured(value)})
        one, memory = assess(evidence, Load(), CAPACITY, POLICY, memory, number * step_ns)
        found.append(one)
    return found


def test_harm_acts_at_once_and_is_forgotten_by_halves() -> None:
    half_life_ns = POLICY.hysteresis.half_life_ns
    gammas = [one.gamma for one in series([0, 1000, 0, 0, 0], half_life_ns)]
    assert gammas == [10_000, 0, 5_000, 7_500, 8_750]


def test_a_level_falls_at_once_and_rises_after_it_has_held() -> None:
    levels = [one.level for one in series([0, 1000, *[0] * 60], SECOND)]
    assert levels[:2] == [Level.HI, Level.LO]
    back = levels.index(Level.HI, 1)
    # 10 + 10 x (1 - 2**(-t/30)) points reach 2/3 and the rise after t = 13.4 s, then hold for 10 s
    scores = [one.score for one in series([0, 1000, *[0] * 60], SECOND)]
    clear = next(n for n in range(2, 60) if scores[n] >= POLICY.thresholds.hi + POLICY.hysteresis.rise)
    assert back == clear + 10
    assert set(levels[2:back]) == {Level.LO}


def test_a_flickering_signal_does_not_make_a_level_flap() -> None:
    levels = [one.level for one in series([0, *[1000, 0] * 60], SECOND)]
    assert levels[0] is Level.HI
    assert set(levels[1:]) == {Level.LO}


def test_a_step_back_of_the_clock_is_no_time() -> None:
    evidence = Evidence(capable(), {**GOOD, "deadline-misses": Measured(1000)})
    _, memory = assess(evidence, Load(), CAPACITY, POLICY, Memory(), 100 * SECOND)
    after, _ = assess(Evidence(capable(), GOOD), Load(), CAPACITY, POLICY, memory, 0)
    assert after.gamma == 0


@given(st.fractions(0, 1))
def test_a_floor_in_points_is_the_fewest_that_reach_it(floor: Fraction) -> None:
    points = millipoints_for(floor)
    assert Fraction(points, 20_000) >= floor
    assert points == 0 or Fraction(points - 1, 20_000) < floor


def test_points_grow_with_the_scale() -> None:
    for points, scale in product(range(11), (0, 250_000, 500_000, 1_000_000)):
        assert gamma_millipoints(points, scale) == points * scale // 1000
