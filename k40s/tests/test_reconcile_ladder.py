"""Invariants of the reaction ladder, over random worlds and random alarms."""

from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k40s.api import AssurancePolicySpec, Level, Rung, Step
from k40s.reconcile import (
    Alarm,
    DesiredJob,
    Memory,
    Move,
    ObservedNode,
    Outcome,
    SetMode,
    Start,
    Stop,
    Treat,
    Treatment,
    Watch,
    isolated,
    reconcile,
)

SECOND = 10**9
POLICY = AssurancePolicySpec()
NODE = "n1"


@dataclass(frozen=True)
class World:
    """A world that does what it is told."""

    desired: dict[str, DesiredJob]
    nodes: dict[str, ObservedNode]

    def apply(self, outcome: Outcome) -> "World":
        desired, nodes = dict(self.desired), dict(self.nodes)
        for action in outcome.actions:
            node = nodes[action.node]
            jobs = dict(node.jobs)
            match action:
                case Watch(closely=closely):
                    node = replace(node, watched_closely=closely)
                case SetMode(mode=mode):
                    node = replace(node, mode=mode)
                case Treat(job=job, treatment=Treatment.EVICTED):
                    del jobs[job]
                case Treat(job=job, treatment=treatment) | Start(job=job, treatment=treatment):
                    jobs[job] = treatment
                case Stop(job=job):
                    del jobs[job]
                case Move(job=job, target=target):
                    jobs.pop(job, None)
                    target_node = nodes[target]
                    nodes[target] = replace(target_node, jobs={**target_node.jobs, job: Treatment.FREE})
                    desired[job] = replace(desired[job], node=target)
            nodes[action.node] = replace(node, jobs=jobs)
        return World(desired, nodes)

    def with_alarms(self, alarms: tuple[Alarm, ...]) -> "World":
        return World(self.desired, {**self.nodes, NODE: replace(self.nodes[NODE], alarms=alarms)})


def world_of(jobs: list[DesiredJob]) -> World:
    running = {job.name: Treatment.FREE for job in jobs if job.node == NODE}
    return World({job.name: job for job in jobs}, {NODE: ObservedNode(running), "n2": ObservedNode()})


@st.composite
def jobs(draw: st.DrawFn) -> list[DesiredJob]:
    count = draw(st.integers(1, 6))
    return [
        DesiredJob(
            name=f"j{number}",
            node=NODE,
            criticality=draw(st.sampled_from(list(Level))),
            may_preempt=draw(st.booleans()),
            preemptable=draw(st.booleans()),
            priority=draw(st.integers(1, 15)),
        )
        for number in range(count)
    ]


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[DesiredJob], list[tuple[int, tuple[Alarm, ...]]]]:
    """Jobs, and (time step, alarms) for each pass."""
    given_jobs = draw(jobs())
    names = [job.name for job in given_jobs]
    alarm = st.builds(
        Alarm,
        victim=st.sampled_from(names),
        reason=st.just("late"),
        culprit=st.none() | st.sampled_from(names),
        overrun=st.booleans(),
    )
    steps = st.tuples(st.integers(0, 15 * SECOND), st.lists(alarm, max_size=2).map(tuple))
    return given_jobs, draw(st.lists(steps, min_size=1, max_size=25))


def play(given_jobs, steps, check) -> None:
    """Passes over a history; `check(before, outcome, now_ns)` after each."""
    world, memory, now_ns = world_of(given_jobs), Memory(), 0
    for step_ns, alarms in steps:
        now_ns += step_ns
        world = world.with_alarms(alarms)
        outcome = reconcile(world.desired, world.nodes, POLICY, memory, now_ns, lambda job, node: "n2")
        check(world, outcome, now_ns)
        world, memory = world.apply(outcome), outcome.memory


@given(histories())
@settings(max_examples=60, deadline=None)
def test_nothing_is_restrained_for_something_less_or_equally_critical(history) -> None:
    given_jobs, steps = history
    worst = {"level": Level.NO}

    def check(world, outcome, now_ns) -> None:
        for alarm in world.nodes[NODE].alarms:
            if alarm.victim in world.desired and world.desired[alarm.victim].node == NODE:
                worst["level"] = max(worst["level"], world.desired[alarm.victim].criticality)
        for action in outcome.actions:
            if isinstance(action, Treat) and action.treatment > world.nodes[NODE].jobs[action.job]:
                assert world.desired[action.job].criticality < worst["level"]

    play(given_jobs, steps, check)


@given(histories())
@settings(max_examples=60, deadline=None)
def test_hi_jobs_and_those_that_may_not_be_preempted_keep_their_place(history) -> None:
    given_jobs, steps = history

    def check(world, outcome, now_ns) -> None:
        for action in outcome.actions:
            assert not isinstance(action, Stop)
            if isinstance(action, Treat):
                job = world.desired[action.job]
                assert job.criticality is not Level.HI or action.treatment is Treatment.FREE
                assert job.preemptable or action.treatment <= Treatment.DEGRADED
            if isinstance(action, Move):
                assert world.desired[action.job].criticality is Level.HI

    play(given_jobs, steps, check)


@given(histories())
@settings(max_examples=60, deadline=None)
def test_a_pass_repeated_after_its_actions_orders_nothing(history) -> None:
    given_jobs, steps = history

    def check(world, outcome, now_ns) -> None:
        done = world.apply(outcome)
        again = reconcile(done.desired, done.nodes, POLICY, outcome.memory, now_ns, lambda job, node: "n2")
        zero_patience_left = again.memory.nodes[NODE].rung == outcome.memory.nodes[NODE].rung
        assert zero_patience_left
        assert again.actions == ()

    play(given_jobs, steps, check)


@given(histories())
@settings(max_examples=60, deadline=None)
def test_lo_is_never_worse_off_while_a_preemptable_no_job_runs_free(history) -> None:
    given_jobs, steps = history

    def check(world, outcome, now_ns) -> None:
        after = world.apply(outcome)
        treated = after.nodes[NODE].jobs
        here = [job for job in after.desired.values() if job.node == NODE]
        if any(
            j.criticality is Level.LO and treated.get(j.name, Treatment.EVICTED) >= Treatment.DEGRADED
            for j in here
        ):
            for job in here:
                if job.criticality is Level.NO:
                    assert treated.get(job.name, Treatment.EVICTED) >= Treatment.THROTTLED

    play(given_jobs, steps, check)


@given(jobs(), st.integers(1, 5), st.data())
@settings(max_examples=20, deadline=None)
def test_it_does_not_flap_under_flickering_alarms(given_jobs, period, data) -> None:
    """An alarm that comes and goes for five minutes does not start and evict a job with every flicker."""
    victim = data.draw(st.sampled_from([job.name for job in given_jobs]))
    steps = [(SECOND, (Alarm(victim, "late"),) if at // period % 2 == 0 else ()) for at in range(300)]
    starts: dict[str, int] = {}

    def check(world, outcome, now_ns) -> None:
        for action in outcome.actions:
            if isinstance(action, Start):
                starts[action.job] = starts.get(action.job, 0) + 1

    play(given_jobs, steps, check)
    assert all(count <= 1 for count in starts.values())


def test_patience_doubles_when_trouble_returns_soon() -> None:
    """Alarms that come back as soon as a hog returns: each return takes longer than the one before."""
    world = world_of([DesiredJob("loop", NODE, Level.HI), DesiredJob("hog", NODE, Level.NO)])
    memory, starts = Memory(), []
    for second in range(800):
        hurts = world.nodes[NODE].jobs.get("hog") is Treatment.FREE
        world = world.with_alarms((Alarm("loop", "late", "hog"),) if hurts else ())
        outcome = reconcile(world.desired, world.nodes, POLICY, memory, second * SECOND)
        relieved = [a for a in outcome.actions if isinstance(a, Treat) and a.treatment is Treatment.FREE]
        starts += [second] * len(relieved)
        world, memory = world.apply(outcome), outcome.memory
    gaps = [after - before for before, after in pairwise(starts)]
    assert len(starts) >= 3
    assert gaps == sorted(gaps)
    assert gaps[-1] >= 8 * gaps[0]


def climb(world: World, alarms: tuple[Alarm, ...], passes: int, policy=POLICY) -> list[list[object]]:
    memory, orders = Memory(), []
    for second in range(passes):
        world = world.with_alarms(alarms)
        outcome = reconcile(
            world.desired, world.nodes, policy, memory, second * SECOND, lambda job, node: "n2"
        )
        orders.append(list(outcome.actions))
        world, memory = world.apply(outcome), outcome.memory
    return orders


def test_the_ladder_is_climbed_in_order_culprit_first() -> None:
    world = world_of(
        [
            DesiredJob("loop", NODE, Level.HI),
            DesiredJob("service", NODE, Level.LO),
            DesiredJob("hog", NODE, Level.NO),
            DesiredJob("batch", NODE, Level.NO),
        ]
    )
    orders = climb(world, (Alarm("loop", "late", "hog"),), 8)
    treated = [[(a.job, a.treatment.name) for a in pass_ if isinstance(a, Treat)] for pass_ in orders]
    assert [a for a in orders[0] if isinstance(a, Watch)]
    assert treated[:6] == [
        [],
        [("hog", "THROTTLED")],
        [("hog", "FROZEN"), ("batch", "THROTTLED")],
        [("hog", "EVICTED"), ("batch", "FROZEN")],
        [("batch", "EVICTED"), ("service", "DEGRADED")],
        [("service", "EVICTED")],
    ]
    assert [a for a in orders[4] if isinstance(a, SetMode)] == [
        SetMode(NODE, Level.HI, "degrade-lo: loop: late (caused by hog)")
    ]
    assert [a for a in orders[6] if isinstance(a, Move)] == [Move(NODE, "loop", "n2", "late")]


def test_rungs_that_change_nothing_are_passed_at_once() -> None:
    orders = climb(
        world_of([DesiredJob("loop", NODE, Level.HI), DesiredJob("service", NODE, Level.LO)]),
        (Alarm("loop", "late"),),
        2,
    )
    assert [(a.job, a.treatment) for a in orders[1] if isinstance(a, Treat)] == [
        ("service", Treatment.DEGRADED)
    ]


def test_a_hi_job_stays_where_no_target_is_proved() -> None:
    world, memory = world_of([DesiredJob("loop", NODE, Level.HI)]), Memory()
    for second in range(10):
        world = world.with_alarms((Alarm("loop", "late"),))
        outcome = reconcile(world.desired, world.nodes, POLICY, memory, second * SECOND)
        assert not [a for a in outcome.actions if isinstance(a, Move | Stop | Treat)]
        world, memory = world.apply(outcome), outcome.memory


def test_an_overrun_changes_the_mode_at_once_and_a_calm_time_changes_it_back() -> None:
    world = world_of(
        [
            DesiredJob("loop", NODE, Level.HI),
            DesiredJob("service", NODE, Level.LO),
            DesiredJob("hog", NODE, Level.NO),
        ]
    )
    world = world.with_alarms((Alarm("loop", "beyond C(LO)", overrun=True),))
    outcome = reconcile(world.desired, world.nodes, POLICY, Memory(), 0)
    assert [(a.job, a.treatment) for a in outcome.actions if isinstance(a, Treat)] == [
        ("hog", Treatment.FROZEN),
        ("service", Treatment.DEGRADED),
    ]
    assert SetMode in {type(a) for a in outcome.actions}
    world, memory = world.apply(outcome).with_alarms(()), outcome.memory
    for second in range(1, 60):
        outcome = reconcile(world.desired, world.nodes, POLICY, memory, second * SECOND)
        world, memory = world.apply(outcome), outcome.memory
    assert world.nodes[NODE] == ObservedNode(
        {"loop": Treatment.FREE, "service": Treatment.FREE, "hog": Treatment.FREE}
    )


@pytest.mark.parametrize("steps", [[], [Step.WATCH], [Step.WATCH, Step.THROTTLE_NO]])
def test_a_ladder_that_gets_shorter_is_stepped_down(steps: list[Step]) -> None:
    world = world_of([DesiredJob("loop", NODE, Level.HI), DesiredJob("hog", NODE, Level.NO)])
    world, memory = world.with_alarms((Alarm("loop", "late", "hog"),)), Memory()
    for second in range(4):
        outcome = reconcile(world.desired, world.nodes, POLICY, memory, second * SECOND)
        world, memory = world.apply(outcome), outcome.memory
    shorter = AssurancePolicySpec(ladder=tuple(Rung(step=step) for step in steps))
    outcome = reconcile(world.desired, world.nodes, shorter, memory, 5 * SECOND)
    allowed = Treatment.THROTTLED if Step.THROTTLE_NO in steps else Treatment.FREE
    assert world.apply(outcome).nodes[NODE].jobs["hog"] is allowed


def test_what_mode_hi_freezes_is_not_evicted_before_its_rung_was_tried() -> None:
    """Overruns that go on: frozen at once, and evicted only after watching, throttling and freezing had their time."""
    world = world_of([DesiredJob("loop", NODE, Level.HI), DesiredJob("hog", NODE, Level.NO)])
    orders = climb(world, (Alarm("loop", "beyond C(LO)", "hog", overrun=True),), 5)
    treated = [[(a.job, a.treatment.name) for a in pass_ if isinstance(a, Treat)] for pass_ in orders]
    assert treated == [[("hog", "FROZEN")], [], [], [("hog", "EVICTED")], []]


def test_a_partition_leaves_keep_jobs_alone_and_replaces_stop_jobs_after_two_leases() -> None:
    lease_ns = POLICY.partition_lease_ns
    given_jobs = [
        DesiredJob("io", NODE, Level.HI, on_partition="keep"),
        DesiredJob("web", NODE, Level.LO, on_partition="stop"),
    ]
    world, memory = world_of(given_jobs), Memory()
    cut_off = {**world.nodes, NODE: replace(world.nodes[NODE], reachable=False)}
    moved_at = None
    for now_ns in range(0, 4 * lease_ns, lease_ns // 4):
        outcome = reconcile(world.desired, cut_off, POLICY, memory, now_ns, lambda job, node: "n2")
        memory = outcome.memory
        assert {a.job for a in outcome.actions} <= {"web"}
        if outcome.actions and moved_at is None:
            moved_at = now_ns
    assert moved_at == 2 * lease_ns
    seen = world.nodes[NODE]
    assert isolated(world.desired, NODE, seen, POLICY, lease_ns - 1) == ()
    assert [stop.job for stop in isolated(world.desired, NODE, seen, POLICY, lease_ns)] == ["web"]


@pytest.mark.parametrize("steps", [[], [Step.WATCH], [Step.EVICT_NO], [Step.FREEZE_NO, Step.MOVE_HI]])
def test_a_shorter_ladder_is_climbed_no_further(steps: list[Step]) -> None:
    policy = AssurancePolicySpec(ladder=tuple(Rung(step=step) for step in steps))
    world = world_of([DesiredJob("loop", NODE, Level.HI), DesiredJob("hog", NODE, Level.NO)])
    orders = climb(world, (Alarm("loop", "late"),), 6, policy)
    worst = max(
        (a.treatment for pass_ in orders for a in pass_ if isinstance(a, Treat)), default=Treatment.FREE
    )
    allowed = {Step.FREEZE_NO: Treatment.FROZEN, Step.EVICT_NO: Treatment.EVICTED}
    assert worst == max((allowed.get(step, Treatment.FREE) for step in steps), default=Treatment.FREE)
