"""The plan of measurement: closer for more critical jobs, less where the node guarantees, never nothing."""

from hypothesis import given
from hypothesis import strategies as st

from k40s.api.level import Level
from k40s.monitor.plan import ALARM_NS, FAR_NS, PER_CONTAINER, UNLESS, Guarantee, Metric, make_plan

levels = st.frozensets(st.sampled_from(Level))
guarantees = st.frozensets(st.sampled_from(Guarantee))


@given(levels, guarantees, st.booleans())
def test_every_metric_is_read_and_every_rule_is_said(
    levels: frozenset[Level], guarantees: frozenset[Guarantee], alarmed: bool
) -> None:
    plan = make_plan(levels, guarantees, alarmed)
    assert set(plan.period_ns) == set(plan.why) == set(Metric)
    assert all(ALARM_NS <= period <= FAR_NS for period in plan.period_ns.values())


@given(levels, st.sampled_from(Level), guarantees)
def test_a_more_critical_job_never_makes_anything_rarer(
    levels: frozenset[Level], more: Level, guarantees: frozenset[Guarantee]
) -> None:
    before, after = make_plan(levels, guarantees), make_plan(levels | {more}, guarantees)
    assert all(after.period_ns[metric] <= before.period_ns[metric] for metric in Metric)


@given(st.sampled_from(Level), guarantees, st.sampled_from(sorted(UNLESS)))
def test_what_the_node_guarantees_is_watched_less(
    level: Level, guarantees: frozenset[Guarantee], metric: Metric
) -> None:
    without = make_plan({level}, guarantees - {UNLESS[metric]})
    with_it = make_plan({level}, guarantees | {UNLESS[metric]})
    assert without.period_ns[metric] < with_it.period_ns[metric]


def test_an_alarm_looks_into_the_containers() -> None:
    plan = make_plan({Level.HI}, frozenset(Guarantee), alarmed=True)
    assert {plan.period_ns[metric] for metric in PER_CONTAINER} == {ALARM_NS}


def test_what_is_due_survives_a_clock_that_jumps() -> None:
    plan = make_plan({Level.HI}, frozenset())
    now = 10**12
    assert plan.due({}, now) == set(Metric)
    assert plan.due(dict.fromkeys(Metric, now), now + 1) == frozenset()
    assert plan.due(dict.fromkeys(Metric, now), now - 10**11) == set(Metric)
    assert plan.due(dict.fromkeys(Metric, now), now + FAR_NS) == set(Metric)
