"""The daemon killed at random points, fifty times: jobs go on, nothing is lost and nothing is left over.

One HI loop and one NO job that ignores SIGTERM run through all of it; between kills jobs come and go, so that
kills fall into admissions, starts, stops and recoveries. After each restart the world is compared with what is
wanted.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench import report

from k40s import task
from k40s.errors import K40sError, Unreachable
from k40s.local.client import Client
from k40s.node.budgets import free_ppm, read_budget
from k40s.node.cgroups import Controller, LinuxCgroups, all_members

ROOT = "/k40s-chaos"
SEED = 4
PATIENCE_S = 90.0
LOOP = """
from k40s.task import Task
with Task.open("control", period_ns=20_000_000) as task:
    while True:
        task.wait()
        task.begin()
        task.end()
"""
JOB = """
apiVersion: k40s.dev/v1alpha1
kind: CriticalJob
metadata: {{name: {name}}}
spec:
  criticality: "{level}"
  requiredAssurance: 0
  commands:
  - name: main
    command: {command}
    env: {{PYTHONPATH: {folder}/lib}}
    resources: {{requests: {{cpu: 20m, memory: 16Mi}}, limits: {{cpu: 200m, memory: 64Mi}}}}
    tasks: {tasks}
"""
STUBBORN = "[sh, -c, \"trap '' TERM; while :; do sleep 0.05; done\"]"
TASKS = "[{name: control, period: 20ms, wcet: {local: {lo: 1ms}}}]"


@dataclass
class Chaos:
    """The daemon under attack, and what is wanted of it."""

    folder: Path
    chance: random.Random
    process: subprocess.Popen[bytes] | None = None
    wanted: dict[str, str] = field(default_factory=dict)
    """Level of each job that the daemon has said yes to."""
    unsure: set[str] = field(default_factory=set)
    """Jobs whose change was cut off or failed: they may be there or not."""

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "K40S_SOCKET": str(self.folder / "sock")}

    failures: list[str] = field(default_factory=list)
    """What the daemon could not do while it lived; none is expected."""

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
        log = (self.folder / "daemon.log").open("ab")
        self.process = subprocess.Popen(
            [*words, "--cgroup-root", ROOT, "--tick-ms", "50"], env=self.environment, stderr=log
        )

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def client(self) -> Client:
        return Client(self.folder / "sock")

    def wait_for_answer(self) -> None:
        def answers() -> bool:
            assert self.process is not None
            if self.process.poll() is not None:
                raise SystemExit(
                    f"error: the daemon ended: {(self.folder / 'daemon.log').read_text()[-2000:]}"
                )
            try:
                with self.client() as client:
                    return bool(client.health())
            except Unreachable:
                return False

        eventually(answers, "the daemon answers")

    def manifest(self, name: str, level: str) -> str:
        command = f"[/usr/bin/python3, -S, {self.folder}/loop.py]" if level == "HI" else STUBBORN
        tasks = TASKS if level == "HI" else "[]"
        return JOB.format(name=name, level=level, command=command, folder=self.folder, tasks=tasks)

    def change_something(self) -> None:
        """Apply or delete one of the jobs that come and go; a kill may cut it off."""
        name = f"guest{self.chance.randrange(3)}"
        level = self.chance.choice(["HI", "NO"])
        self.unsure.add(name)
        try:
            with self.client() as client:
                if name in self.wanted:
                    client.delete(name)
                    del self.wanted[name]
                elif client.apply(self.manifest(name, level))[0].outcome == "admitted":
                    self.wanted[name] = level
        except Unreachable:
            return  # killed in the middle of it
        except K40sError as error:
            self.failures.append(str(error))
            return
        self.unsure.discard(name)

    def changes_until_killed(self, after_s: float) -> None:
        """Changes, one after the other, and a kill in the middle of one of them."""
        stopping = threading.Event()

        def change() -> None:
            while not stopping.is_set():
                self.change_something()

        changing = threading.Thread(target=change)
        changing.start()
        time.sleep(after_s)
        stopping.set()
        self.kill()
        changing.join()

    def members(self, name: str, level: str) -> frozenset[int]:
        return all_members(LinuxCgroups.open(ROOT), Controller.FREEZER, f"{ROOT}/{level}/{name}")

    def settle(self) -> None:
        """What the daemon says settles what was cut off."""
        with self.client() as client:
            found = {job.metadata.name: job.spec.criticality.name for job in client.jobs()}
        for name in self.unsure:
            self.wanted.pop(name, None)
            if name in found:
                self.wanted[name] = found[name]
        self.unsure.clear()
        if found != self.wanted:
            raise SystemExit(f"error: wanted are {self.wanted}, the daemon has {found}")

    def world_is_right(self) -> bool:
        """Exactly the wanted jobs have groups, processes and, if HI, budgets."""
        files = LinuxCgroups.open(ROOT)
        there = {
            group.rsplit("/", 1)[1]: group.split("/")[2]
            for level in files.children(Controller.CPU, ROOT)
            for group in files.children(Controller.CPU, level)
        }
        budgets = {
            name: read_budget(files, f"{ROOT}/{level}/{name}/main").runtime_us > 0
            for name, level in there.items()
        }
        return (
            there == self.wanted
            and all(self.members(name, level) for name, level in there.items())
            and all(budgets[name] == (level == "HI") for name, level in there.items())
        )


def eventually(condition: Callable[[], bool], what: str) -> float:
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > PATIENCE_S:
            raise SystemExit(f"error: not within {PATIENCE_S:g} s: {what}")
        time.sleep(0.02)
    return time.monotonic() - began


def ran_on(path: Path, seen: int) -> int:
    record = task.read_record(path)
    if record is None or record.ended <= seen:
        raise SystemExit("error: the loop did not go on")
    return record.ended


def attack(chaos: Chaos, kills: int) -> list[dict[str, object]]:
    chaos.start()
    chaos.wait_for_answer()
    with chaos.client() as client:
        for name, level in (("loop", "HI"), ("stubborn", "NO")):
            if client.apply(chaos.manifest(name, level))[0].outcome != "admitted":
                raise SystemExit(f"error: {name} was refused: {client.why_not(name)}")
            chaos.wanted[name] = level
    record = Path("/dev/shm" + ROOT) / "k40s-loop.main" / "control.task"
    eventually(lambda: bool((found := task.read_record(record)) and found.ended), "the loop runs")
    first = {name: chaos.members(name, level) for name, level in chaos.wanted.items()}
    seen, recovered_s = 0, []
    for number in range(kills):
        quick = chaos.chance.random() < 0.3  # while it starts and recovers
        if not quick:
            chaos.wait_for_answer()
            chaos.changes_until_killed(chaos.chance.uniform(0.0, 1.0))
        else:
            time.sleep(chaos.chance.uniform(0.0, 3.0))
            chaos.kill()
        seen = ran_on(record, seen)
        if chaos.members("loop", "HI") != first["loop"]:
            raise SystemExit(f"error: kill {number} reached the loop")
        began = time.monotonic()
        chaos.start()
        if number % 5 == 4:
            chaos.wait_for_answer()
            chaos.settle()
            eventually(chaos.world_is_right, f"the world is as wanted after kill {number}: {chaos.wanted}")
            recovered_s.append(time.monotonic() - began)
        print(
            f"kill {number + 1}: {'while starting' if quick else 'while working'}, jobs {sorted(chaos.wanted)}"
        )
    chaos.wait_for_answer()
    chaos.settle()
    eventually(chaos.world_is_right, "the world is as wanted at the end")
    stubborn_is_the_same = bool(chaos.members("stubborn", "NO") & first["stubborn"])
    print(*chaos.failures, sep="\n")
    return [
        {
            "kills": kills,
            "jobs_lost": 0 if stubborn_is_the_same else 1,
            "periods_of_the_loop": seen,
            "failed_requests": len(chaos.failures),
            "recovered_s_max": round(max(recovered_s, default=0.0), 2),
        }
    ]


def leftovers() -> list[str]:
    return [
        str(path)
        for path in (*Path("/sys/fs/cgroup").glob(f"*{ROOT}"), *Path("/dev/shm").glob(ROOT.strip("/")))
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=50)
    given = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("error: needs root: run it as root")
    folder = Path(tempfile.mkdtemp(prefix="k40s-chaos-"))
    folder.chmod(0o755)
    (folder / "loop.py").write_text(LOOP)
    (folder / "lib/k40s").mkdir(parents=True)
    (folder / "lib/k40s/__init__.py").touch()
    shutil.copy(task.__file__, folder / "lib/k40s/task.py")
    before = free_ppm(LinuxCgroups.open())
    chaos = Chaos(folder, random.Random(SEED))
    try:
        rows = attack(chaos, given.kills)
    finally:
        if chaos.process and chaos.process.poll() is None:
            chaos.kill()
        words = [sys.executable, "-m", "k40s.cli", "uninstall", "--state", str(folder / "state")]
        subprocess.run(
            [*words, "--cgroup-root", ROOT], env=chaos.environment, check=True, stdout=subprocess.DEVNULL
        )
        shutil.rmtree(folder)
    rows[0] |= {"left_over": len(leftovers()), "budget_lost_ppm": before - free_ppm(LinuxCgroups.open())}
    print(rows[0])
    print(report.write("chaos", rows))
    if rows[0]["jobs_lost"] or leftovers() or rows[0]["budget_lost_ppm"]:
        raise SystemExit(f"error: something was lost or left over: {rows[0]} {leftovers()}")


if __name__ == "__main__":
    main()
