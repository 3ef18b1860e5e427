"""A daemon as a process of its own, with real cgroups, in a folder of its own. When a test is done with it, nothing of
it may be left on the machine: no group, no budget, no process, no record."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import k40s.task
from k40s.errors import Unreachable
from k40s.local.client import Client
from k40s.node.budgets import free_ppm
from k40s.node.cgroups import Controller, LinuxCgroups, all_members

LOOP = """
import sys, time
from k40s.task import Task
period_ns, work_ns = int(sys.argv[1]) * 1_000_000, int(sys.argv[2]) * 1_000
with Task.open("control", period_ns=period_ns) as task:
    while True:
        task.wait()
        task.begin()
        began_ns = time.thread_time_ns()
        while time.thread_time_ns() - began_ns < work_ns:
            pass
        task.end()
"""


def eventually(condition: Callable[[], bool], patience_s: float = 60.0) -> None:
    until = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < until, "did not come true in time"
        time.sleep(0.02)


@dataclass
class Daemon:
    """`folder` also holds what its jobs run: `loop.py PERIOD_MS WORK_US`, with `lib` on their path."""

    folder: Path
    state: Path
    root: str
    before: tuple[str, ...] = ()
    """Words before the command that starts it."""
    process: subprocess.Popen[bytes] | None = None

    @property
    def socket(self) -> Path:
        return self.folder / "sock"

    @property
    def client(self) -> Client:
        return Client(self.socket)

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "K40S_SOCKET": str(self.socket)}

    def words(self, verb: str, *more: str) -> list[str]:
        """A command of `k40s` that is about this daemon."""
        options = ["--state", str(self.state), "--cgroup-root", self.root]
        return [sys.executable, "-m", "k40s.cli", verb, *options, *more]

    def start(self, *options: str) -> None:
        with (self.folder / "daemon.log").open("ab") as log:
            words = self.words("up", "--foreground", "--tick-ms", "50", *options)
            self.process = subprocess.Popen([*self.before, *words], env=self.environment, stderr=log)

    def answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.folder / "daemon.log").read_text()
        try:
            with self.client as client:
                return bool(client.health())
        except Unreachable:
            return False

    def start_and_wait(self, *options: str) -> None:
        self.start(*options)
        eventually(self.answers)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        eventually(lambda: not any("k40s.cli" in words for words in self.processes()), 10)

    def group(self, controller: Controller, container: str) -> Path:
        """Folder of a container's group; `container` is LEVEL/JOB/CONTAINER."""
        return LinuxCgroups.open().mounts[controller] / self.root.strip("/") / container

    def pids(self, container: str) -> frozenset[int]:
        return all_members(LinuxCgroups.open(self.root), Controller.FREEZER, f"{self.root}/{container}")

    def job(
        self, name: str, level: str, command: list[str], *, limit: str = "200m", tasks: str = "[]"
    ) -> str:
        """A manifest with one command."""
        return (
            f"---\napiVersion: k40s.dev/v1alpha1\nkind: CriticalJob\nmetadata: {{name: {name}}}\n"
            f'spec:\n  criticality: "{level}"\n  requiredAssurance: 0\n  commands:\n  - name: main\n'
            f"    command: {command}\n    env: {{PYTHONPATH: {self.folder}/lib}}\n"
            f"    resources: {{requests: {{cpu: 20m, memory: 16Mi}}, limits: {{cpu: {limit}, memory: 64Mi}}}}\n"
            f"    tasks: {tasks}\n"
        )

    def loop(self, period_ms: int = 20, work_us: int = 0, wcet: str = "1ms") -> str:
        """The manifest of a HI loop that tells when it works."""
        command = ["/usr/bin/python3", "-S", f"{self.folder}/loop.py", str(period_ms), str(work_us)]
        tasks = f"[{{name: control, period: {period_ms}ms, wcet: {{local: {{lo: {wcet}}}}}}}]"
        return self.job("loop", "HI", command, tasks=tasks)

    def periods(self) -> int:
        """Periods that the loop has told of so far."""
        record = k40s.task.read_record(Path("/dev/shm", self.root.strip("/"), "k40s-loop.main/control.task"))
        return record.ended if record else 0

    def goes_on(self) -> None:
        """The loop works, now."""
        before = self.periods()
        eventually(lambda: self.periods() > before, 5)

    def log(self, job: str) -> str:
        """What a job has printed."""
        return (self.state / f"logs/k40s-{job}.main.log").read_text()

    def processes(self) -> list[str]:
        """Command lines of all processes that have to do with the folder."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = path.read_bytes().decode(errors="replace").replace("\0", " ")
            except OSError:
                continue
            if str(self.folder) in words:
                found.append(words)
        return found


@contextmanager
def live_daemon(name: str) -> Iterator[Daemon]:
    """A folder, and at the end proof that nothing is left."""
    folder = Path(tempfile.mkdtemp(prefix=f"k40s-{name}-"))
    folder.chmod(0o755)
    (folder / "loop.py").write_text(LOOP)
    (folder / "lib/k40s").mkdir(parents=True)
    (folder / "lib/k40s/__init__.py").touch()
    shutil.copy(k40s.task.__file__, folder / "lib/k40s/task.py")
    daemon = Daemon(folder, folder / "state", f"/k40s-{name}-{os.getpid()}")
    before_ppm = free_ppm(LinuxCgroups.open())
    try:
        yield daemon
    finally:
        if daemon.process and daemon.process.poll() is None:
            daemon.kill()
        words = daemon.words("uninstall")
        subprocess.run(words, env=daemon.environment, check=True, timeout=60, stdout=subprocess.DEVNULL)
        groups = list(Path("/sys/fs/cgroup").glob(f"*{daemon.root}"))
        eventually(lambda: not daemon.processes(), 5)
        shutil.rmtree(folder)
    assert groups == []
    assert free_ppm(LinuxCgroups.open()) == before_ppm
    assert not Path("/dev/shm", daemon.root.strip("/")).exists()
    assert str(folder) not in Path("/proc/mounts").read_text()
