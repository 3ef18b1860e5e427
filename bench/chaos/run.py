"""The daemon killed at random points, fifty times: jobs go on, nothing is lost and nothing is left over.

One HI loop and one NO job that ignores SIGTERM run through all of it; meanwhile jobs come and go (HI with a flow over
a device of this bench's own, LO in a container, NO that ignores SIGTERM), so that kills fall into admissions, starts,
stops and recoveries. The world is compared with what is wanted after restarts. Needs root, runc, busybox, iproute2.
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench import report

from k40s import task
from k40s.errors import K40sError, NotFound, Unreachable
from k40s.local.client import Client
from k40s.node.budgets import free_ppm, read_budget
from k40s.node.cgroups import Controller, LinuxCgroups, all_members
from k40s.node.links import Device, TcLinks

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
  {workload}
    resources: {{requests: {{cpu: 20m, memory: 16Mi}}, limits: {{cpu: 200m, memory: 64Mi}}}}
    {more}
"""
HI = """commands:
  - name: main
    command: [/usr/bin/python3, -S, {folder}/loop.py]
    env: {{PYTHONPATH: {folder}/lib}}"""
HI_MORE = """tasks: [{{name: control, period: 20ms, wcet: {{local: {{lo: 1ms}}}}}}]
  flows: [{{name: out, peer: {{address: 10.99.0.{number}}}, traffic: cyclic-synchronous, rate: 1Mbit}}]"""
LO = """containers:
  - name: main
    rootFs: {folder}/rootfs
    command: [sleep, "600"]"""
NO = """commands:
  - name: main
    command: [sh, -c, "trap '' TERM; while :; do sleep 0.05; done"]"""
WORKLOADS = {"HI": (HI, HI_MORE), "LO": (LO, ""), "NO": (NO, "")}
DEVICE, PEER = "k40s-chaos0", "k40s-chaos1"
NODE_CLASS = f"""
apiVersion: k40s.dev/v1alpha1
kind: NodeClass
metadata: {{name: local}}
spec: {{cores: {os.cpu_count()}, memory: 2Gi, links: [{{name: {DEVICE}, rate: 100Mbit}}]}}
"""


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
        number = 9 if name == "loop" else int(name[-1]) if name[-1].isdigit() else 8
        workload, more = (text.format(folder=self.folder, number=number) for text in WORKLOADS[level])
        return JOB.format(name=name, level=level, workload=workload, more=more)

    def change_something(self) -> None:
        """Apply or delete one of the jobs that come and go; a kill may cut it off."""
        name = f"guest{self.chance.randrange(3)}"
        level = self.chance.choice(["HI", "LO", "NO"])
        was_unsure = name in self.unsure
        self.unsure.add(name)
        try:
            with self.client() as client:
                if name in self.wanted:
                    client.delete(name)
                    del self.wanted[name]
                elif client.apply(self.manifest(name, level))[0].outcome in ("admitted", "unchanged"):
                    self.wanted[name] = level
        except Unreachable:
            return  # killed in the middle of it
        except NotFound as error:
            if not was_unsure:  # else the deletion that a kill cut off was done after all
                self.failures.append(str(error))
            self.wanted.pop(name, None)
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
        """Exactly the wanted jobs have groups, processes and, if HI, budgets and classes on the device."""
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
            and len(TcLinks().sent_bytes(Device(DEVICE))) == 1 + list(there.values()).count("HI")
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


def attack(chaos: Chaos, kills: int) -> dict[str, object]:
    chaos.start()
    chaos.wait_for_answer()
    with chaos.client() as client:
        client.apply(NODE_CLASS)
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
    return {
        "kills": kills,
        "jobs_lost": 0 if stubborn_is_the_same else 1,
        "periods_of_the_loop": seen,
        "failed_requests": len(chaos.failures),
        "recovered_s_max": round(max(recovered_s, default=0.0), 2),
    }


def leftovers(folder: Path) -> list[str]:
    """Groups, records, processes, mounts and queueing of this bench that are still there."""
    paths = (*Path("/sys/fs/cgroup").glob(f"*{ROOT}"), *Path("/dev/shm").glob(ROOT.strip("/")))
    found = [str(path) for path in paths]
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has just ended
            if str(folder) in (words := path.read_bytes().decode(errors="replace").replace("\0", " ")):
                found.append(words)
    found += [line for line in Path("/proc/mounts").read_text().splitlines() if str(folder) in line]
    return [*found, DEVICE] if TcLinks().shaped(Device(DEVICE)) else found


@contextmanager
def own_device() -> Iterator[None]:
    """A pair of devices that lead to each other and nowhere else."""
    add = ["ip", "link", "add", DEVICE, "type", "veth", "peer", "name", PEER]
    subprocess.run(["ip", "link", "del", DEVICE], capture_output=True, check=False)
    subprocess.run(add, check=True)
    try:
        yield
    finally:
        subprocess.run(["ip", "link", "del", DEVICE], check=True)


def root_file_system(folder: Path) -> None:
    for name in ("bin", "proc", "dev", "tmp", "sys", "run"):
        (folder / name).mkdir(parents=True)
    shutil.copy(shutil.which("busybox") or "/bin/busybox", folder / "bin/busybox")
    (folder / "bin/sleep").symlink_to("busybox")


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
    root_file_system(folder / "rootfs")
    before = free_ppm(LinuxCgroups.open())
    with own_device():
        row = survived(Chaos(folder, random.Random(SEED)), given.kills)
        left = leftovers(folder)
    row |= {"left_over": len(left), "budget_lost_ppm": before - free_ppm(LinuxCgroups.open())}
    shutil.rmtree(folder)
    print(row)
    print(report.write("chaos", [row]))
    if row["jobs_lost"] or row["failed_requests"] or left or row["budget_lost_ppm"]:
        raise SystemExit(f"error: something was lost, failed or left over: {row} {left}")


def survived(chaos: Chaos, kills: int) -> dict[str, object]:
    """The attack, and everything undone by `uninstall` after it."""
    try:
        return attack(chaos, kills)
    finally:
        if chaos.process and chaos.process.poll() is None:
            chaos.kill()
        words = [sys.executable, "-m", "k40s.cli", "uninstall", "--state", str(chaos.folder / "state")]
        subprocess.run(
            [*words, "--cgroup-root", ROOT], env=chaos.environment, check=True, stdout=subprocess.DEVNULL
        )
        time.sleep(1)  # the probe looks for the end of its input once a second


if __name__ == "__main__":
    main()
