"""What is measured on a machine in memory: misses are told apart by who caused them."""

from pathlib import Path

import pytest

from k40s import api
from k40s.local.engine import Engine
from k40s.local.fakes import World
from k40s.task import _COUNTERS, _COUNTERS_AT, _RECORD, FILE_BYTES, RING_AT, empty_record

SECOND = 10**9
PERIOD_NS = 5_000_000
LOOP = """
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
"""


def tick(world: World, engine: Engine, seconds: float, still_s: int = 0) -> None:
    for _ in range(int(seconds * 4)):
        world.sleep(0.25)
        world.wake(still_ns=still_s * SECOND)
        still_s = 0
        engine.tick()


def tell_a_late_period(engine: Engine, release_ns: int, end_ns: int) -> int:
    """The loop's record holds one period that took so long, and the releases that went by; how many those were."""
    (wanted,) = engine.all_wanted()
    skipped = (end_ns - release_ns) // PERIOD_NS
    record = bytearray(empty_record("control", PERIOD_NS, PERIOD_NS).ljust(FILE_BYTES, b"\0"))
    _COUNTERS.pack_into(record, _COUNTERS_AT, 1, 1, skipped, skipped + 1, end_ns - release_ns, 0, 100_000)
    _RECORD.pack_into(record, RING_AT, release_ns, release_ns, end_ns, 100_000)
    wanted.tasks[0].record.write_bytes(record)
    return skipped + 1


@pytest.mark.parametrize("probe_saw_it", [True, False])
def test_misses_of_a_machine_that_stood_still_are_its_hosts(tmp_path: Path, probe_saw_it: bool) -> None:
    world = World(tmp_path)
    engine = world.engine()
    engine.apply(api.load(LOOP))
    tick(world, engine, 3)
    stopped_ns = world.now_ns
    world.now_ns += 100 * SECOND
    missed = tell_a_late_period(engine, stopped_ns, world.now_ns)
    tick(world, engine, 3, still_s=100 if probe_saw_it else 0)
    (history,) = engine.measurements.tasks.values()
    assert history.total.missed == missed
    assert history.total.unexplained == (0 if probe_saw_it else missed)
    told = [event.reason for event in engine.events(0, 100)]
    assert ("Standstill" in told) is probe_saw_it
    assert ("Alarm" in told) is not probe_saw_it, "nobody here is to pay for what the host did"


def test_what_a_daemon_finds_in_a_record_was_judged_by_the_one_before(tmp_path: Path) -> None:
    world = World(tmp_path)
    engine = world.engine()
    engine.apply(api.load(LOOP))
    tick(world, engine, 3)
    began_ns = world.now_ns
    world.now_ns += SECOND
    missed = tell_a_late_period(engine, began_ns, world.now_ns)
    tick(world, engine, 3)
    (history,) = engine.measurements.tasks.values()
    assert history.total.missed == missed
    world.now_ns += SECOND
    again = world.engine()
    tick(world, again, 3)
    (history,) = again.measurements.tasks.values()
    assert history.total.missed == 0
    assert not again.measurements.alarms
