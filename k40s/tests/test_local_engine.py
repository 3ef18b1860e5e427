"""The loop over a machine in memory: admission, starts, crashes at any point, disks that are full."""

import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from k40s import api
from k40s.errors import Conflict, EffectFailed, NotFound
from k40s.local.engine import Engine
from k40s.local.fakes import World
from k40s.node.budgets import read_budget
from k40s.node.capabilities import Feature
from k40s.node.cgroups import Controller
from k40s.node.machine import Address
from k40s.node.scheduling import Fifo

LOOP = Address("HI", "loop", "main")
HOG = Address("NO", "hog", "main")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def job(name: str, level: str = "HI", period_ms: int = 5, wcet_us: int = 500, **spec: object) -> str:
    """A manifest with one command and, unless it is a NO job, one task."""
    task = f"[{{name: control, period: {period_ms}ms, wcet: {{local: {{lo: {wcet_us}us}}}}}}]"
    more = "".join(f"  {key}: {value}\n" for key, value in spec.items())
    return (
        "apiVersion: k40s.dev/v1alpha1\nkind: CriticalJob\n"
        f"metadata: {{name: {name}}}\n"
        f'spec:\n  criticality: "{level}"\n{more}'
        "  commands:\n"
        "  - name: main\n"
        "    command: [sleep, '60']\n"
        "    resources: {requests: {cpu: 100m, memory: 16Mi}, limits: {cpu: 200m, memory: 64Mi}}\n"
        f"    tasks: {task if level != 'NO' else '[]'}\n"
    )


def apply(engine: Engine, *texts: str) -> list[str]:
    return [applied.outcome for applied in engine.apply(api.load("\n---\n".join(texts)))]


def phase(engine: Engine, name: str) -> str:
    status = engine.job(name).status
    assert status is not None
    return status.phase.value


def test_an_admitted_job_runs_with_what_was_proved(world: World) -> None:
    engine = world.engine()
    assert apply(engine, job("loop"), job("hog", "NO")) == ["admitted", "admitted"]
    assert world.alive() == {LOOP.id, HOG.id}
    budget = read_budget(world.files, LOOP.group(world.files.root))
    assert 0 < budget.runtime_us < budget.period_us <= 5000
    pid = world.launcher.running[LOOP.id]
    assert isinstance(world.scheduling.policy(pid), Fifo)
    status = engine.job("loop").status
    assert status is not None
    (replica,) = status.replicas
    assert replica.workloads[0].budget_ns == budget.runtime_us * 1000
    assert (world.config.records / LOOP.id / "control.task").exists()


@pytest.mark.parametrize(
    ("text", "because"),
    [
        (job("loop", period_ms=2, wcet_us=1990), "longer than its deadline|does not hold|core"),
        (job("loop", requiredAssurance="0.999"), "assurance"),
        (job("loop").replace("local", "other"), "without WCET"),
        (job("loop").replace("name: control", "name: control, policy: deadline"), "deadline"),
    ],
)
def test_a_refusal_says_why_and_nothing_runs(world: World, text: str, because: str) -> None:
    engine = world.engine()
    (applied,) = engine.apply(api.load(text))
    assert applied.outcome == "refused"
    assert world.alive() == set()
    assert phase(engine, "loop") == "Refused"
    assert any(word in line for line in engine.why_not("loop") for word in because.split("|"))


@pytest.mark.parametrize(
    "missing", [Feature.RT_BUDGETS, Feature.PINNING, Feature.FREEZER, Feature.MEMORY_LIMITS]
)
def test_a_job_that_needs_what_the_machine_lacks_is_refused(world: World, missing: Feature) -> None:
    world.missing = frozenset({missing})
    (applied,) = world.engine().apply(api.load(job("loop")))
    assert applied.outcome == "refused"
    assert "lacks " + missing.value in applied.reasons[0]


def test_budgets_beyond_what_the_kernel_adds_up_are_refused_before_anything_is_set(world: World) -> None:
    engine = world.engine()
    jobs = [job(f"loop{number}", wcet_us=1200) for number in range(6)]
    outcomes = [apply(engine, text)[0] for text in jobs]
    assert "admitted" in outcomes
    assert "refused" in outcomes
    total = sum(read_budget(world.files, wanted.launch.group).share for wanted in engine.all_wanted())
    assert 0 < total <= 0.95
    assert len(world.alive()) == outcomes.count("admitted")


def test_applying_again_changes_nothing_and_a_change_restarts(world: World) -> None:
    engine = world.engine()
    apply(engine, job("loop"))
    pid = world.launcher.running[LOOP.id]
    assert apply(engine, job("loop")) == ["unchanged"]
    assert world.launcher.running[LOOP.id] == pid
    assert apply(engine, job("loop", wcet_us=700)) == ["admitted"]
    assert world.launcher.running[LOOP.id] != pid
    assert engine.job("loop").metadata.generation == 2


def test_a_change_that_is_refused_leaves_the_job_as_it_runs(world: World) -> None:
    engine = world.engine()
    apply(engine, job("loop"))
    pid = world.launcher.running[LOOP.id]
    assert apply(engine, job("loop", requiredAssurance="0.999")) == ["refused"]
    engine.tick()
    assert world.launcher.running[LOOP.id] == pid
    assert phase(engine, "loop") == "Running"


def test_deleting_leaves_nothing(world: World) -> None:
    engine = world.engine()
    apply(engine, job("loop"))
    engine.delete("loop")
    assert world.alive() == set()
    assert engine.machine.found() == frozenset()
    assert not (world.config.records / LOOP.id).exists()
    with pytest.raises(NotFound, match="k40s get"):
        engine.job("loop")
    assert world.engine().jobs == {}


@pytest.mark.parametrize(
    ("restart", "status", "expected"),
    [
        ("always", 0, "Running"),
        ("on-failure", 1, "Running"),
        ("on-failure", 0, "Succeeded"),
        ("never", 3, "Failed"),
    ],
)
def test_who_ends_is_restarted_as_the_job_says(
    world: World, restart: str, status: int, expected: str
) -> None:
    engine = world.engine()
    apply(engine, job("loop", restart=restart))
    world.launcher.running.pop(LOOP.id)
    world.launcher.ended[LOOP.id] = status
    for _ in range(3):
        world.sleep(2)
        engine.tick()
    assert phase(engine, "loop") == expected
    assert (LOOP.id in world.alive()) == (expected == "Running")


def test_failing_in_a_loop_backs_off(world: World) -> None:
    engine = world.engine()
    apply(engine, job("loop"))
    for _ in range(300):
        if LOOP.id in world.launcher.running:
            world.launcher.running.pop(LOOP.id)
            world.launcher.ended[LOOP.id] = 1
        world.sleep(0.25)
        engine.tick()
    assert (
        5
        <= len(world.launcher.launched) + sum(1 for e in engine.events(0, 1000) if e.reason == "Started")
        <= 25
    )


def test_a_job_that_must_run_once_does_not_run_twice_over_a_crash(world: World) -> None:
    engine = world.engine()
    apply(engine, job("once", "NO", restart="never"))
    address = Address("NO", "once", "main")
    world.launcher.running.pop(address.id)  # ended while the daemon was away: nobody knows its status
    again = world.engine()
    for _ in range(3):
        again.tick()
    assert world.alive() == set()
    assert phase(again, "once") == "Succeeded"


def test_a_crash_keeps_jobs_and_recovery_undoes_what_was_half_done(world: World) -> None:
    engine = world.engine()
    apply(engine, job("loop"), job("hog", "NO"))
    pids = dict(world.launcher.running)
    budget = read_budget(world.files, LOOP.group(world.files.root))
    engine.store.remove_object(
        "CriticalJob", "default/hog"
    )  # crashed after it was forgotten, before it was stopped
    again = world.engine()
    again.tick()
    assert world.launcher.running == {LOOP.id: pids[LOOP.id]}
    assert read_budget(world.files, LOOP.group(world.files.root)) == budget
    assert again.machine.found() == {LOOP}


class Crash(BaseException):
    """The daemon is gone at this instruction."""


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    at=st.integers(1, 120),
    steps=st.lists(st.sampled_from(["loop", "hog", "-loop", "-hog", "tick"]), min_size=1, max_size=6),
)
def test_a_crash_at_any_write_is_repaired(
    at: int, steps: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    world = World(tmp_path_factory.mktemp("world"))
    writes = 0
    engine = world.engine()
    original = engine.machine.files

    class Files:
        """The kernel's groups, which stop answering at the chosen write."""

        def __getattr__(self, name: str) -> object:
            found = getattr(original, name)
            if name not in ("write", "make", "attach", "remove"):
                return found

            def counted(*arguments: object) -> object:
                nonlocal writes
                writes += 1
                if writes == at:
                    raise Crash
                return found(*arguments)

            return counted

    engine.machine.files = Files()  # type: ignore[assignment]  # every method of the port by getattr
    try:
        for step in steps:
            match step:
                case "tick":
                    engine.tick()
                case "-loop" | "-hog":
                    if f"default/{step[1:]}" in engine.jobs:
                        engine.delete(step[1:])
                case "loop":
                    apply(engine, job("loop"))
                case _:
                    apply(engine, job("hog", "NO"))
    except Crash:
        pass
    engine.store.close()
    again = world.engine()
    for _ in range(3):
        world.sleep(40)
        again.tick()
    wanted = {wanted.address for wanted in again.all_wanted()}
    assert again.machine.found() == wanted
    assert world.alive() == {address.id for address in wanted}
    assert world.launcher.waiting == {}
    for container in again.all_wanted():
        if container.reservation.budget is not None:
            assert read_budget(world.files, container.launch.group) == container.reservation.budget


def test_a_full_disk_refuses_new_jobs_and_keeps_old_ones(world: World) -> None:
    engine = world.engine()
    apply(engine, job("loop"))
    pages = engine.store._database.execute("pragma page_count").fetchone()[0]
    engine.store._database.execute(f"pragma max_page_count = {pages}")
    with pytest.raises(EffectFailed, match="disk space"):
        for number in range(400):
            apply(engine, job(f"hog{number}", "NO"))
    engine.tick()
    assert LOOP.id in world.alive()
    stored = set(engine.store.objects("CriticalJob"))
    assert {key for key, _ in engine.jobs.items()} == stored, "what runs is what is stored"


def test_an_unreadable_group_is_told_once_and_keeps_nobody_else_waiting(world: World) -> None:
    engine = world.engine()
    apply(engine, job("hog", "NO"))
    del world.files.groups[Controller.CPU, HOG.group(world.files.root)]
    engine.containers.in_force.clear()
    for _ in range(3):
        engine.tick()
    told = [event for event in engine.events(0, 100) if event.reason == "EffectFailed"]
    assert len(told) == 1
    assert apply(engine, job("loop")) == ["admitted"]
    assert LOOP.id in world.alive()


def test_a_clock_that_jumps_changes_nothing(world: World) -> None:
    engine = world.engine()
    apply(engine, job("loop"), job("hog", "NO"))
    before = dict(world.launcher.running)
    for jump_s in (-5_000, 10_000_000, -9_999_999, 1):
        world.now_ns = max(0, world.now_ns + jump_s * 10**9)
        engine.tick()
    assert world.launcher.running == before


def test_a_start_that_fails_is_said_and_tried_again(world: World) -> None:
    engine = world.engine()
    world.launcher.failing = "no such program"
    assert apply(engine, job("loop")) == ["admitted"]
    assert phase(engine, "loop") == "Pending"
    assert engine.why_not("loop") == ("no such program",)
    world.launcher.failing = ""
    world.sleep(60)
    engine.tick()
    assert LOOP.id in world.alive()
    assert phase(engine, "loop") == "Running"


def test_flows_are_guaranteed_and_taken_away(world: World) -> None:
    engine = world.engine()
    node_class = (
        "apiVersion: k40s.dev/v1alpha1\nkind: NodeClass\nmetadata: {name: local}\n"
        "spec: {cores: 2, memory: 8Gi, links: [{name: eth9, rate: 100Mbit}]}\n"
    )
    flows = "[{name: out, peer: {address: 10.0.0.7}, traffic: cyclic-synchronous, rate: 20Mbit}]"
    assert apply(engine, node_class, job("loop", flows=flows)) == ["stored", "admitted"]
    (shaped,) = world.links.on.values()
    assert [flow.rate_bps for flow in shaped[1]] == [20_000_000]
    with pytest.raises(Conflict, match="delete them first"):
        apply(engine, node_class)
    again = world.engine()
    again.tick()
    assert len(world.links.on) == 1
    again.delete("loop")
    assert world.links.on == {}


def test_all_is_undone_on_down_with_jobs(world: World) -> None:
    engine = world.engine()
    apply(engine, job("loop"), job("hog", "NO"))
    engine.stop_all()
    assert world.alive() == set()
    assert world.files.children(Controller.CPU, "/") == ()
    assert world.launcher.ended.get(LOOP.id) in (None, -signal.SIGTERM)
