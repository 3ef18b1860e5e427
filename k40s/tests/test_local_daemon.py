"""The daemon as a process, with real cgroups: killed at random points, its jobs run on and nothing is left over."""

import json
import random
import signal
import subprocess
import time

import pytest
from live import Daemon, eventually

pytestmark = pytest.mark.root

AHEAD = ("unshare", "--time", "--fork", "--kill-child", "--monotonic", "1000000", "--boottime", "1000000")
STUBBORN = ["sh", "-c", "trap '' TERM; while :; do sleep 0.02; done"]


def cell(daemon: Daemon) -> str:
    """A HI loop and a NO job that ignores SIGTERM."""
    return daemon.loop() + daemon.job("hog", "NO", STUBBORN, limit="50m")


def pids(daemon: Daemon) -> dict[str, frozenset[int]]:
    return {"loop": daemon.pids("HI/loop"), "hog": daemon.pids("NO/hog")}


def test_jobs_outlive_kills_at_random_points_and_clocks_that_jump(daemon: Daemon) -> None:
    """Every other daemon lives days ahead of the jobs, in a time namespace, as after a migration."""
    chance = random.Random(4)
    daemon.start_and_wait()
    with daemon.client as client:
        outcomes = {one.name: one.outcome for one in client.apply(cell(daemon))}
    assert outcomes == {"default/loop": "admitted", "default/hog": "admitted"}
    first = pids(daemon)
    assert all(first.values())
    for number in range(5):
        time.sleep(chance.uniform(0.0, 0.4))
        daemon.kill()
        assert pids(daemon)["loop"] == first["loop"], "the loop does not notice"
        daemon.goes_on()
        daemon.before = AHEAD if number % 2 == 0 else ()
        daemon.start()
        time.sleep(chance.uniform(0.0, 1.0))
        if chance.random() < 0.5:
            daemon.kill()  # while it recovers
            daemon.start()
        eventually(daemon.answers)
    assert pids(daemon)["loop"] == first["loop"]
    assert pids(daemon)["hog"] & first["hog"], "the hog's shell is the same"
    with daemon.client as client:
        assert {job.metadata.name for job in client.jobs()} == {"loop", "hog"}
        before = client.top().containers[0]

        def counts_on() -> bool:
            now = next(one for one in client.top().containers if one.job == "default/loop")
            return sum(task.periods for task in now.tasks) > sum(task.periods for task in before.tasks)

        eventually(counts_on)
        client.delete("hog")
        assert pids(daemon)["hog"] == frozenset(), "though it ignores SIGTERM"
        client.down(everything=True)
    assert daemon.process is not None
    assert daemon.process.wait(timeout=60) == 0
    assert not daemon.state.exists()


def test_a_second_daemon_is_refused_and_the_first_goes_on(daemon: Daemon) -> None:
    daemon.start_and_wait()
    second = subprocess.run(
        daemon.words("up", "--foreground"),
        env={**daemon.environment, "K40S_SOCKET": str(daemon.folder / "other")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert second.returncode == 1
    assert "another daemon uses it" in second.stderr
    assert daemon.answers()
    assert daemon.process is not None
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.wait(timeout=30) in (0, -signal.SIGTERM)


def test_measuring_costs_less_than_a_hundredth_of_a_core_at_rest(daemon: Daemon) -> None:
    daemon.start_and_wait()
    with daemon.client as client:
        client.apply(cell(daemon))
        time.sleep(5)
        top = client.top()
    assert 0 < top.monitor_cpu_ppm < 10_000, json.dumps(top.model_dump())
