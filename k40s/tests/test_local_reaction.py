"""Trouble on one machine: an alarm, a culprit by name, the ladder up and down, and a crash in between."""

from pathlib import Path

import pytest

from k40s import api
from k40s.api import Level
from k40s.local.engine import Engine
from k40s.local.fakes import World
from k40s.local.measure import Alarm
from k40s.local.reaction import ADJUSTMENT, TREATMENT, Reaction, alarms_of, desired_of
from k40s.local.state import Adjustment
from k40s.node.cgroups import Controller
from k40s.node.machine import Address
from k40s.reconcile import Treatment

LOOP, WEB, HOG = Address("HI", "loop", "main"), Address("LO", "web", "main"), Address("NO", "hog", "main")
CELL = """
apiVersion: k40s.dev/v1alpha1
kind: CriticalJob
metadata: {name: loop}
spec:
  criticality: HI
  commands:
  - name: main
    command: [sleep, '60']
    resources: {requests: {cpu: 200m, memory: 16Mi}, limits: {cpu: 300m, memory: 64Mi}}
    tasks: [{name: control, period: 5ms, wcet: {local: {lo: 500us}}}]
---
apiVersion: k40s.dev/v1alpha1
kind: CriticalJob
metadata: {name: web}
spec:
  criticality: LO
  commands:
  - name: main
    command: [sleep, '60']
    resources: {requests: {cpu: 100m, memory: 16Mi}, limits: {cpu: 300m, memory: 64Mi}}
---
apiVersion: k40s.dev/v1alpha1
kind: CriticalJob
metadata: {name: hog}
spec:
  criticality: NO
  commands:
  - name: main
    command: [sleep, '60']
    resources: {requests: {cpu: 50m, memory: 16Mi}, limits: {cpu: 200m, memory: 64Mi}}
"""


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def run(world: World, engine: Engine, seconds: float, hog_milli: int, *, stalled: bool = False) -> None:
    """Time passes while the hog uses this much, unless it is limited to less; `stalled`: for want of memory."""
    for _ in range(int(seconds * 4)):
        world.sleep(0.25)
        world.wake()
        if stalled:
            total = f"some avg10=0 avg60=0 avg300=0 total={world.now_ns // 1000}\n"
            (world.folder / "root/proc/pressure/memory").write_text(total)
        group = HOG.group(world.files.root)
        if (Controller.CPUACCT, group) in world.files.groups and HOG.id in world.alive():
            quota_us = int(world.files.read(Controller.CPU, group, "cpu.cfs_quota_us"))
            allowed = hog_milli if quota_us < 0 else min(hog_milli, quota_us // 100)
            files = world.files.groups[Controller.CPUACCT, group]
            files["cpuacct.usage"] = str(int(files["cpuacct.usage"]) + allowed * 250_000)
        engine.tick()


def adjustment(engine: Engine, name: str) -> Adjustment:
    return engine.states[f"default/{name}"].adjustment


def test_who_breaks_its_limit_is_named_throttled_and_freed_again(world: World) -> None:
    engine = world.engine()
    assert [one.outcome for one in engine.apply(api.load(CELL))] == ["admitted"] * 3
    run(world, engine, 5, hog_milli=200)
    assert not engine.measurements.alarms
    world.files.write(
        Controller.CPU, HOG.group(world.files.root), "cpu.cfs_quota_us", "-1"
    )  # somebody takes its limit away
    run(world, engine, 5, hog_milli=1000)
    alarm = next(event for event in engine.events(0, 1000) if event.severity == "alarm")
    assert "hog/main (NO) uses" in alarm.message
    assert adjustment(engine, "hog") is Adjustment.THROTTLED
    assert world.files.read(Controller.CPU, HOG.group(world.files.root), "cpu.cfs_quota_us") == "5000", (
        "a quarter of 200m"
    )
    assert adjustment(engine, "loop") is adjustment(engine, "web") is Adjustment.NONE
    again = world.engine()
    assert adjustment(again, "hog") is Adjustment.THROTTLED, "a crash forgets nothing"
    assert again.reaction == engine.reaction
    run(world, again, 120, hog_milli=200)
    assert adjustment(again, "hog") is Adjustment.NONE
    assert world.files.read(Controller.CPU, HOG.group(world.files.root), "cpu.cfs_quota_us") == "20000"
    assert {LOOP.id, WEB.id, HOG.id} == world.alive()


def test_trouble_that_lasts_climbs_and_never_reaches_the_most_critical(world: World) -> None:
    engine = world.engine()
    engine.apply(api.load(CELL))
    seen: list[tuple[Adjustment, Adjustment]] = []
    for _ in range(80):
        run(world, engine, 0.5, hog_milli=100, stalled=True)
        now = (adjustment(engine, "hog"), adjustment(engine, "web"))
        if not seen or seen[-1] != now:
            seen.append(now)
        assert adjustment(engine, "loop") is Adjustment.NONE
        assert LOOP.id in world.alive()
    order = [hog for hog, _ in seen]
    assert (
        order.index(Adjustment.THROTTLED) < order.index(Adjustment.FROZEN) < order.index(Adjustment.EVICTED)
    )
    assert seen[-1] == (Adjustment.EVICTED, Adjustment.EVICTED)
    assert world.alive() == {LOOP.id}
    status = engine.job("web").status
    assert status is not None
    assert status.phase is api.JobPhase.EVICTED
    assert "for the sake of more critical jobs" in engine.why_not("web")[0]


def test_where_no_container_is_to_blame_the_probe_is_quoted(world: World) -> None:
    engine = world.engine()
    engine.apply(api.load(CELL))
    for _ in range(40):
        world.wake(late_ns=40_000_000)
        run(world, engine, 0.25, hog_milli=0)
    alarms = [event.message for event in engine.events(0, 1000) if event.message.startswith("wakeup-latency")]
    assert alarms
    assert "no container stands out, the probe above all jobs woke up to 40.0 ms late" in alarms[0]


def test_an_evicted_job_comes_back_when_it_is_calm(world: World) -> None:
    engine = world.engine()
    engine.apply(api.load(CELL))
    engine._treat("default/hog", Adjustment.EVICTED, "test")
    assert HOG.id not in world.alive()
    run(world, engine, 3, hog_milli=0)
    assert HOG.id in world.alive()
    assert adjustment(engine, "hog") is Adjustment.NONE


def test_treatments_and_adjustments_are_one_to_one() -> None:
    assert set(TREATMENT) == set(Adjustment)
    assert set(ADJUSTMENT) == set(Treatment)


def test_the_victim_of_an_alarm_without_one_is_the_most_critical_that_did_not_cause_it() -> None:
    jobs = {job.metadata.name: job for job in api.load(CELL) if isinstance(job, api.CriticalJob)}
    desired = {name: desired_of(name, "n", job.spec) for name, job in jobs.items()}
    alarm = Alarm("memory-pressure", 0, 1, None, "loop", (), overrun=False)
    assert [one.victim for one in alarms_of(alarm, desired)] == ["web"]
    assert list(alarms_of(alarm, {"loop": desired["loop"]})) == []


@pytest.mark.parametrize("text", ["", "{}", '{"mode": "TOP"}'])
def test_a_damaged_memory_is_forgotten(text: str) -> None:
    assert Reaction.from_json(text) == Reaction()
    assert Reaction.from_json(Reaction(Level.HI, watched_closely=True).to_json()).mode is Level.HI
