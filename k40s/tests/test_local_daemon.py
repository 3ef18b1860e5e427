"""The daemon as a process, with real cgroups: killed at random points, its jobs run on and nothing is left over."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import k40s.task
from k40s.errors import Unreachable
from k40s.local.client import Client
from k40s.node.budgets import free_ppm
from k40s.node.cgroups import Controller, LinuxCgroups, all_members

pytestmark = pytest.mark.root

LOOP = """
from k40s.task import Task
with Task.open("control", period_ns=20_000_000) as task:
    while True:
        task.wait()
        task.begin()
        task.end()
"""
CELL = """
apiVersion: k40s.dev/v1alpha1
kind: CriticalJob
metadata: {{name: loop}}
spec:
  criticality: HI
  requiredAssurance: 0.01
  commands:
  - name: main
    command: [/usr/bin/python3, -S, {folder}/loop.py]
    env: {{PYTHONPATH: {folder}/lib}}
    resources: {{requests: {{cpu: 200m, memory: 32Mi}}, limits: {{cpu: 200m, memory: 64Mi}}}}
    tasks: [{{name: control, period: 20ms, wcet: {{local: {{lo: 1ms}}}}}}]
---
apiVersion: k40s.dev/v1alpha1
kind: CriticalJob
metadata: {{name: hog}}
spec:
  criticality: NO
  commands:
  - name: main
    command: [sh, -c, "trap '' TERM; while :; do sleep 0.02; done"]
    resources: {{requests: {{cpu: 10m, memory: 16Mi}}, limits: {{cpu: 50m, memory: 64Mi}}}}
"""


@dataclass
class Daemon:
    folder: Path
    root: str
    process: subprocess.Popen[bytes] | None = None

    @property
    def client(self) -> Client:
        return Client(self.folder / "sock")

    def start(self) -> None:
        words = [
            sys.executable,
            "-m",
            "k40s.cli",
            "up",
            "--foreground",
            "--state",
            str(self.folder / "state"),
        ]
        self.process = subprocess.Popen(
            [*words, "--cgroup-root", self.root, "--tick-ms", "50"],
            env={**os.environ, "K40S_SOCKET": str(self.folder / "sock")},
            stderr=(self.folder / "daemon.log").open("ab"),
        )

    def answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.folder / "daemon.log").read_text()
        try:
            with self.client as client:
                return bool(client.health())
        except Unreachable:
            return False

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def pids(self) -> dict[str, frozenset[int]]:
        files = LinuxCgroups.open(self.root)
        groups = {"loop": f"{self.root}/HI/loop/main", "hog": f"{self.root}/NO/hog/main"}
        return {name: all_members(files, Controller.FREEZER, group) for name, group in groups.items()}


def eventually(condition: Callable[[], bool], patience_s: float = 60.0) -> None:
    until = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < until, "did not come true in time"
        time.sleep(0.02)


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    folder = Path(tempfile.mkdtemp(prefix="k40s-test-"))
    folder.chmod(0o755)
    (folder / "loop.py").write_text(LOOP)
    (folder / "lib/k40s").mkdir(parents=True)
    (folder / "lib/k40s/__init__.py").touch()
    shutil.copy(k40s.task.__file__, folder / "lib/k40s/task.py")
    daemon = Daemon(folder, f"/k40s-test-d{os.getpid()}")
    before = free_ppm(LinuxCgroups.open())
    yield daemon
    if daemon.process and daemon.process.poll() is None:
        daemon.kill()
    words = [sys.executable, "-m", "k40s.cli", "uninstall", "--state", str(folder / "state")]
    environment = {**os.environ, "K40S_SOCKET": str(folder / "sock")}
    subprocess.run([*words, "--cgroup-root", daemon.root], env=environment, check=True, timeout=60)
    left = list(Path("/sys/fs/cgroup").glob(f"*{daemon.root}"))
    shutil.rmtree(folder)
    assert left == []
    assert free_ppm(LinuxCgroups.open()) == before


def test_jobs_outlive_kills_at_random_points(daemon: Daemon) -> None:
    chance = random.Random(4)
    daemon.start()
    eventually(daemon.answers)
    with daemon.client as client:
        outcomes = {one.name: one.outcome for one in client.apply(CELL.format(folder=daemon.folder))}
    assert outcomes == {"default/loop": "admitted", "default/hog": "admitted"}
    first = daemon.pids()
    assert all(first.values())
    for _ in range(3):
        time.sleep(chance.uniform(0.0, 0.4))
        daemon.kill()
        assert daemon.pids()["loop"] == first["loop"], "the loop does not notice"
        daemon.start()
        time.sleep(chance.uniform(0.0, 1.0))
        if chance.random() < 0.5:
            daemon.kill()  # while it recovers
            daemon.start()
        eventually(daemon.answers)
    assert daemon.pids()["loop"] == first["loop"]
    assert daemon.pids()["hog"] & first["hog"], "the hog's shell is the same"
    with daemon.client as client:
        assert {job.metadata.name for job in client.jobs()} == {"loop", "hog"}
        before = client.top().containers[0]

        def counts_on() -> bool:
            now = next(one for one in client.top().containers if one.job == "default/loop")
            return sum(task.periods for task in now.tasks) > sum(task.periods for task in before.tasks)

        eventually(counts_on)
        client.delete("hog")
        assert daemon.pids()["hog"] == frozenset(), "though it ignores SIGTERM"
        client.down(everything=True)
    assert daemon.process is not None
    assert daemon.process.wait(timeout=60) == 0
    assert not (daemon.folder / "state").exists()


def test_only_root_and_the_group_may_talk_to_it(daemon: Daemon) -> None:
    daemon.start()
    eventually(daemon.answers)
    (daemon.folder / "sock").chmod(0o666)  # even when somebody opens the file to all
    ask = f"import socket; s = socket.socket(socket.AF_UNIX); s.connect('{daemon.folder / 'sock'}'); print(s.recv(99))"
    answer = subprocess.run(
        ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "/usr/bin/python3", "-c", ask],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert "403" in answer.stdout
    with daemon.client as client:
        assert client.jobs() == []


def test_a_second_daemon_is_refused_and_the_first_goes_on(daemon: Daemon) -> None:
    daemon.start()
    eventually(daemon.answers)
    words = [sys.executable, "-m", "k40s.cli", "up", "--foreground", "--state", str(daemon.folder / "state")]
    second = subprocess.run(
        [*words, "--cgroup-root", daemon.root],
        env={**os.environ, "K40S_SOCKET": str(daemon.folder / "other")},
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
    daemon.start()
    eventually(daemon.answers)
    with daemon.client as client:
        client.apply(CELL.format(folder=daemon.folder))
        time.sleep(5)
        top = client.top()
    assert 0 < top.monitor_cpu_ppm < 10_000, json.dumps(top.model_dump())
