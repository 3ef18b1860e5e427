"""The paper's experiment: two HI control loops beside a LO job that overruns, and CPU, memory, I/O and network stress.

Four ways to run the same programs, in turns within one run:

* plain: cgroups with CPU weights by request, as a stock node would;
* rt-blind: the loops and the LO job under SCHED_FIFO by rate, with no budget and no admission;
* no-reaction: admitted with a proof by the daemon, budgets enforced, stress as a NO job, a ladder that only watches;
* k40s: the same with its whole ladder, which restrains stress when the loops suffer or the host takes time for it.

A miss is explained when a witness above all jobs could not run either for as long as the deadline was missed by.
Needs root, gcc, stress-ng, iproute2. Further rows: an overrunning HI container against its budget, and a
guaranteed flow beside a saturating one.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench import report
from bench.assurance import draw, traffic

from k40s.errors import Unreachable
from k40s.local.client import Client
from k40s.local.config import Config
from k40s.local.daemon import linux_machine
from k40s.monitor.deadlines import Misses
from k40s.node.budgets import RtBudget
from k40s.node.cgroups import Controller, LinuxCgroups
from k40s.node.errors import KernelRefused
from k40s.node.launchers import Launch
from k40s.node.links import Device, FlowClass, TcLinks, class_ids
from k40s.node.machine import Address, Machine, Reservation
from k40s.node.sample import steal_ns
from k40s.node.scheduling import Fifo
from k40s.task import FILE_BYTES, Period, empty_record, read_record

HERE = Path(__file__).resolve().parent
INCLUDE = HERE.parents[1] / "k40s" / "include"
ROOT = "/k40s-bench"
MODES = ("plain", "rt-blind", "no-reaction", "k40s")
WARM_UP_S = 3.0
log = logging.getLogger("assurance")
PAIR = struct.Struct("<QQ")
STRESS = ("--cpu", "2", "--vm", "1", "--vm-bytes", "128M", "--io", "1", "--hdd", "1", "--hdd-bytes", "64M")
STRESS_REQUEST_MILLI = 1000


@dataclass(frozen=True, slots=True)
class Loop:
    """One program; times in microseconds. Every `overrun_every`-th period takes `overrun_us`."""

    name: str
    level: str
    period_us: int
    work_us: int
    wcet_us: int
    priority: int
    overrun_every: int = 0
    overrun_us: int = 0

    def argv(self, program: Path) -> list[str]:
        words = [str(program), self.name, str(self.period_us), str(self.work_us)]
        return [*words, str(self.overrun_every), str(self.overrun_us)] if self.overrun_every else words


LOOPS = (
    # A WCET bounds what was seen under stress: on a virtual machine 300 us of work took up to 1.7 ms of thread time,
    # since time that the host takes in small pieces counts as the thread's own.
    Loop("fast", "HI", 5_000, 300, 2_000, 60),
    Loop("slow", "HI", 20_000, 1_200, 4_000, 50),
    # Rate-monotonic as it seems, 12 ms lying between the two; one period in 25 it runs for 25 ms, not for 300 us.
    Loop("vision", "LO", 12_000, 300, 1_000, 55, overrun_every=25, overrun_us=25_000),
)
JUDGED = ("fast", "slow")


@dataclass
class Witness:
    """Gaps of each core in which nothing of this machine ran, found by a program on each; see `witness.c`."""

    folder: Path
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)
    steal_before_ns: dict[str, int] = field(default_factory=steal_ns)

    def start(self) -> None:
        program = compiled(self.folder, "witness")
        for core in sorted(self.steal_before_ns):
            self.started.append(subprocess.Popen([str(program), core, str(self._file(core))]))

    def stop(self) -> None:
        for process in self.started:
            process.kill()
            process.wait()

    def _file(self, core: str) -> Path:
        return self.folder / f"gaps-{core}"

    def gaps(self, core: int | None) -> list[tuple[int, int]]:
        """Of one core, or of all for a thread that may run anywhere."""
        files = [self._file(str(core))] if core is not None else list(self.folder.glob("gaps-*"))
        found = []
        for file in files:
            data = file.read_bytes()
            found += [PAIR.unpack_from(data, at) for at in range(0, len(data) - PAIR.size + 1, PAIR.size)]
        return sorted(found)

    def rows(self) -> list[dict[str, object]]:
        """Gaps beside what the kernel says the host took: that they agree is why gaps count as the host's."""
        stolen = steal_ns()
        return [
            {
                "mode": "all",
                "what": f"core {core}: gaps beside steal",
                "gaps_ms": round(sum(to - since for since, to in self.gaps(int(core))) / 1e6, 1),
                "steal_ms": round((stolen[core] - before) / 1e6, 1),
            }
            for core, before in sorted(self.steal_before_ns.items())
        ]


@dataclass(frozen=True, slots=True)
class Followed:
    """A loop that is followed: its record, its core (None: any), and its budget's share of that (1: no budget)."""

    loop: Loop
    record: Path
    core: int | None = None
    share: float = 1.0


def judged(followed: Followed, periods: Sequence[Period], gaps: Sequence[tuple[int, int]]) -> Misses:
    """A miss is explained when gaps cost at least the time by which it was late, counted from when its backlog began.

    The backlog began at the first release since which there was always work left over for the next period: what a
    gap delays, it delays for the periods behind it too. A gap that the host does not count as steal is charged to
    whoever ran: a loop whose work is constant then executed longer than its work, and its budget waits for 1/share
    of that. No more is taken for charged than the gaps were long.
    """
    missed = unexplained = 0
    since_ns, end_before_ns, charged_ns = 0, 0, 0
    deadline_ns, work_ns = followed.loop.period_us * 1000, followed.loop.work_us * 1000
    for period in periods:
        if period.release_ns >= end_before_ns:
            since_ns, charged_ns = period.release_ns, 0
        end_before_ns = period.end_ns
        charged_ns += max(0, period.execution_ns - work_ns)
        late_ns = period.response_ns - deadline_ns
        if late_ns > 0:
            missed += 1
            overlap_ns = sum(max(0, min(to, period.end_ns) - max(since, since_ns)) for since, to in gaps)
            waited_ns = min(overlap_ns, charged_ns) * (1 / followed.share - 1)
            if overlap_ns + waited_ns < late_ns:
                unexplained += 1
                log.log(
                    logging.WARNING if followed.share < 1 else logging.INFO,
                    "%s late by %.2f ms, gaps %.2f, budget waited for %.2f, executed %.2f",
                    followed.loop.name,
                    *(ns / 1e6 for ns in (late_ns, overlap_ns, waited_ns, period.execution_ns)),
                )
    return Misses(len(periods), missed, unexplained)


@dataclass
class Result:
    """What one loop did in one mode."""

    misses: Misses = field(default_factory=Misses)
    responses_ns: list[int] = field(default_factory=list)
    last_turn_s: list[tuple[float, float]] = field(default_factory=list)
    """(release, response) of the last turn, in seconds since it began."""


@dataclass
class Experiment:
    """Folder, program and results."""

    folder: Path
    records: Path
    """Of the modes without k4.0s; on a file system without a disk, as with it."""
    program: Path
    seconds: float
    """Of one turn."""
    turns: int
    witness: Witness
    results: dict[tuple[str, str], Result] = field(default_factory=dict)
    stress_ns: dict[str, int] = field(default_factory=dict)
    """Processor time that stress got in each mode."""
    marks: list[draw.Mark] = field(default_factory=list)
    """What k4.0s did in its last turn."""

    def follow(self, mode: str, loops: Sequence[Followed], stress_ns: Callable[[], int]) -> None:
        """Read what the loops tell, for as long as a turn lasts, and judge it. `stress_ns`: what stress has used."""
        time.sleep(WARM_UP_S)
        first = {one.loop.name: read_record(one.record) for one in loops}
        seen = {name: record.ended if record else 0 for name, record in first.items()}
        periods: dict[str, list[Period]] = {name: [] for name in seen}
        began_ns, used_ns = time.monotonic_ns(), stress_ns()
        while time.monotonic_ns() < began_ns + self.seconds * 1e9:
            time.sleep(0.5)
            before_ns, used_ns = used_ns, stress_ns()
            self.stress_ns[mode] = self.stress_ns.get(mode, 0) + max(0, used_ns - before_ns)
            for one in loops:
                if record := read_record(one.record, seen[one.loop.name]):
                    periods[one.loop.name] += record.periods
                    seen[one.loop.name] = record.ended
        time.sleep(0.1)
        for one in loops:
            name, last, start = one.loop.name, read_record(one.record), first[one.loop.name]
            log.info("%s, %s:", mode, name)
            found = judged(one, periods[name], self.witness.gaps(one.core))
            lost = (last.skipped if last else 0) - (start.skipped if start else 0)
            # A skipped release follows a late period and shares its verdict; on average if there are several.
            blamed = round(lost * found.unexplained / found.missed) if found.missed else lost
            result = self.results.setdefault((mode, name), Result())
            result.misses = result.misses + found + Misses(lost, lost, blamed)
            result.responses_ns += [period.response_ns for period in periods[name]]
            result.last_turn_s = [
                ((period.release_ns - began_ns) / 1e9, period.response_ns / 1e9) for period in periods[name]
            ]


def compiled(folder: Path, name: str) -> Path:
    program = folder / name
    flags = ["-std=c11", "-O2", "-Wall", "-Werror", f"-I{INCLUDE}"]
    subprocess.run(["gcc", *flags, str(HERE / f"{name}.c"), "-o", str(program)], check=True)
    return program


def prepared(folder: Path, loop: Loop) -> Path:
    path = folder / f"{loop.name}.task"
    head = empty_record(loop.name, loop.period_us * 1000, loop.period_us * 1000)
    path.write_bytes(head + bytes(FILE_BYTES - len(head)))
    return path


def stress_words(folder: Path, seconds: float) -> list[str]:
    place = folder / "stress"
    place.mkdir(exist_ok=True)
    place.chmod(0o777)
    return ["stress-ng", "--quiet", *STRESS, "--temp-path", str(place), "--timeout", str(int(seconds) + 1)]


@dataclass
class PlainGroups:
    """Groups with weights, for the modes that do without k4.0s; what is started in one is in it from the beginning."""

    files: LinuxCgroups
    environment: dict[str, str]
    started: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str, milli: int, words: Sequence[str]) -> None:
        waiting = ["sh", "-c", 'read -r go && exec "$@" </dev/null', "waiting", *words]
        process = subprocess.Popen(
            waiting,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.started[name] = process
        for controller in (Controller.CPU, Controller.CPUACCT):
            self.files.make(controller, self._group(name))
            self.files.attach(controller, self._group(name), process.pid)
        self.files.write(Controller.CPU, self._group(name), "cpu.shares", str(max(2, milli * 1024 // 1000)))
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.close()

    def used_ns(self, name: str) -> int:
        return int(self.files.read(Controller.CPUACCT, self._group(name), "cpuacct.usage"))

    def _group(self, name: str) -> str:
        return f"{self.files.root}/{name}"

    def end(self) -> None:
        for process in self.started.values():
            _end(process)
        for controller in (Controller.CPU, Controller.CPUACCT):
            for group in (*map(self._group, self.started), self.files.root):
                until = time.monotonic() + 5
                while self.files.members(controller, group) and time.monotonic() < until:
                    time.sleep(0.01)
                self.files.remove(controller, group)


def turn_without(experiment: Experiment, *, real_time: bool) -> None:
    """One turn of plain or rt-blind; the real-time threads stay in the root group, which has a budget."""
    total_s = WARM_UP_S + experiment.seconds + 5
    environment = {**os.environ, "K40S_TASK_DIR": str(experiment.records)}
    groups = PlainGroups(LinuxCgroups.open("/k40s-bench-plain"), environment)
    with ExitStack() as ending:
        ending.callback(groups.end)
        groups.start("stress", STRESS_REQUEST_MILLI, stress_words(experiment.folder, total_s))
        followed = []
        for loop in LOOPS:
            followed.append(Followed(loop, prepared(experiment.records, loop)))
            words = ["timeout", str(int(total_s)), *loop.argv(experiment.program)]
            if real_time:
                words = ["chrt", "-f", str(loop.priority), *words]
                process = subprocess.Popen(
                    words, env=environment, stdout=subprocess.DEVNULL, start_new_session=True
                )
                ending.callback(_end, process)
            else:
                groups.start(loop.name, 2 * loop.wcet_us * 1000 // loop.period_us, words)
        judged_ones = [one for one in followed if one.loop.name in JUDGED]
        with traffic.flows(total_s, 0):
            mode = "rt-blind" if real_time else "plain"
            experiment.follow(mode, judged_ones, lambda: groups.used_ns("stress"))


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


JOB = """
apiVersion: k40s.dev/v1alpha1
kind: CriticalJob
metadata: {{name: {name}}}
spec:
  criticality: "{level}"
  requiredAssurance: 0
  restart: never
  commands:
  - name: main
    command: {command}
    resources: {{requests: {{cpu: {cpu}m, memory: 32Mi}}, limits: {{cpu: {limit}m, memory: 512Mi}}}}
    tasks: {tasks}
"""


def manifests(experiment: Experiment) -> str:
    jobs = []
    for loop in LOOPS:
        tasks = (
            f"[{{name: {loop.name}, period: {loop.period_us}us, wcet: {{local: {{lo: {loop.wcet_us}us}}}}}}]"
        )
        share = 1000 * loop.wcet_us // loop.period_us
        command = str(loop.argv(experiment.program)).replace("'", '"')
        jobs.append(
            JOB.format(
                name=loop.name, level=loop.level, command=command, cpu=share, limit=2 * share, tasks=tasks
            )
        )
    words = str(stress_words(experiment.folder, WARM_UP_S + experiment.seconds + 5)).replace("'", '"')
    jobs.append(JOB.format(name="stress", level="NO", command=words, cpu=100, limit=2000, tasks="[]"))
    return "---".join(jobs)


@contextmanager
def daemon(folder: Path) -> Iterator[Client]:
    """k4.0s itself, with its own state, socket and groups."""
    state, sock = folder / "state", folder / "sock"
    words = [
        sys.executable,
        "-m",
        "k40s.cli",
        "up",
        "--foreground",
        "--state",
        str(state),
        "--cgroup-root",
        ROOT,
    ]
    environment = {**os.environ, "K40S_SOCKET": str(sock)}
    process = subprocess.Popen(words, env=environment)
    client = Client(sock)
    try:
        until = time.monotonic() + 60
        while True:
            try:
                client.health()
                break
            except Unreachable:
                if process.poll() is not None or time.monotonic() > until:
                    raise
                time.sleep(0.1)
        yield client
    finally:
        _end(process)
        subprocess.run(
            [
                sys.executable,
                "-m",
                "k40s.cli",
                "uninstall",
                "--state",
                str(state),
                "--cgroup-root",
                ROOT,
            ],
            env=environment,
            check=True,
            stdout=subprocess.DEVNULL,
        )


POLICY = """
apiVersion: k40s.dev/v1alpha1
kind: AssurancePolicy
metadata: {{name: default}}
spec: {{{ladder}}}
"""


def turn_with(experiment: Experiment, client: Client, *, reacting: bool) -> None:
    """One turn of no-reaction or k40s."""
    client.apply(POLICY.format(ladder="" if reacting else "ladder: [{step: watch-closer}]"))
    with traffic.flows(WARM_UP_S + experiment.seconds + 5, 0):
        for one in client.apply(manifests(experiment)):
            if one.outcome not in ("admitted", "unchanged"):
                raise SystemExit(f"job {one.name} was {one.outcome}: {'; '.join(one.reasons)}")
        followed = []
        for container in client.top().containers:
            loop = next((one for one in LOOPS if f"default/{one.name}" == container.job), None)
            if loop is not None and loop.name in JUDGED and container.budget_us and container.period_us:
                path = Path("/dev/shm", ROOT.strip("/"), f"k40s-{loop.name}.main", f"{loop.name}.task")
                followed.append(
                    Followed(loop, path, container.core, container.budget_us / container.period_us)
                )
        began_s = time.time() + WARM_UP_S
        experiment.follow("k40s" if reacting else "no-reaction", followed, _stress_ns)
        experiment.marks = _told(client, began_s)
        for job in client.jobs():
            client.delete(job.metadata.name)


def _stress_ns() -> int:
    """Of the NO job; 0 once it was evicted."""
    try:
        return int(
            LinuxCgroups.open(ROOT).read(Controller.CPUACCT, f"{ROOT}/NO/stress/main", "cpuacct.usage")
        )
    except KernelRefused:
        return 0


def _told(client: Client, began_s: float) -> list[draw.Mark]:
    """What k4.0s said and did since the turn began; `began_s` is of the wall clock."""
    return [
        draw.Mark(
            at_s, f"{event.subject.removeprefix('default/')} {event.reason.lower()}: {event.message}"[:110]
        )
        for event in client.events(most=1000)
        if event.reason in ("Alarm", "Reaction", "Mode", "Standstill")
        and (at_s := datetime.fromisoformat(event.at).timestamp() - began_s) > 0
    ]


def held_budget(folder: Path, program: Path, seconds: float) -> dict[str, object]:
    """A HI container that runs away, against its budget of a fifth of a core."""
    config = Config(state=folder / "budget", cgroup_root="/k40s-bench-budget")
    config.state.mkdir()
    machine: Machine = linux_machine(config)
    budget = RtBudget(20_000, 100_000)
    address = Address("HI", "runaway", "main")
    launch = Launch(
        address.id, (str(program), "runaway", "0", "0"), address.group(config.cgroup_root), folder / "log"
    )
    try:
        machine.start(address, launch, Reservation(frozenset({0}), budget, Fifo(20)))
        time.sleep(1)
        began_ns, used_ns = time.monotonic_ns(), _usage_ns(machine, address)
        time.sleep(seconds)
        used_ns = _usage_ns(machine, address) - used_ns
        passed_ns = time.monotonic_ns() - began_ns
    finally:
        machine.uninstall()
    share = used_ns / passed_ns
    return {
        "mode": "k40s",
        "what": "overrunning HI container",
        "budget_share": float(budget.share),
        "used_share": round(share, 5),
        "error_percent": round(100 * abs(share / float(budget.share) - 1), 3),
    }


def _usage_ns(machine: Machine, address: Address) -> int:
    return int(machine.files.read(Controller.CPUACCT, address.group(machine.files.root), "cpuacct.usage"))


def guaranteed_flow(seconds: float) -> dict[str, object]:
    """A flow with a guaranteed rate beside one that saturates the link."""
    links, device = TcLinks(), Device(traffic.DEVICE, traffic.NEAR)
    flow = FlowClass("guaranteed", 46, 120_000_000, 120_000_000, 30_000)
    links.shape(device, 200_000_000, [flow])
    try:
        with traffic.flows(seconds + 5, 46, 0):
            traffic.settle(2)
            began_ns, before = time.monotonic_ns(), links.sent_bytes(device)
            time.sleep(seconds)
            after, passed_ns = links.sent_bytes(device), time.monotonic_ns() - began_ns
    finally:
        links.unshape(device)
    mine = class_ids([flow])["guaranteed"]
    rate_bps, rest_bps = ((after[name] - before[name]) * 8e9 / passed_ns for name in (mine, "fff"))
    return {
        "mode": "k40s",
        "what": "guaranteed flow beside a saturating one",
        "guaranteed_bps": flow.rate_bps,
        "reached_bps": round(rate_bps),
        "rest_bps": round(rest_bps),
        "error_percent": round(100 * abs(rate_bps / flow.rate_bps - 1), 3),
    }


def rows_of(experiment: Experiment) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for mode in MODES:
        for name in JUDGED:
            result = experiment.results[mode, name]
            ordered = sorted(result.responses_ns)
            row: dict[str, object] = {
                "mode": mode,
                "loop": name,
                "periods": result.misses.periods,
                "misses": result.misses.missed,
                "misses_unexplained": result.misses.unexplained,
            }
            for label, fraction in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999), ("max", 1.0)):
                at = min(len(ordered) - 1, int(len(ordered) * fraction))
                row[f"response_{label}_us"] = round(ordered[at] / 1000, 1)
            row["stress_cores"] = round(
                experiment.stress_ns[mode] / (experiment.seconds * experiment.turns) / 1e9, 3
            )
            rows.append(row)
    return rows


def picture(experiment: Experiment) -> Path:
    curves = [
        draw.Curve(
            mode,
            name,
            next(loop.period_us for loop in LOOPS if loop.name == name) / 1e6,
            experiment.results[mode, name].misses.missed / experiment.results[mode, name].misses.periods,
            [ns / 1e9 for ns in experiment.results[mode, name].responses_ns],
            experiment.results[mode, name].last_turn_s,
        )
        for mode in MODES
        for name in JUDGED
    ]
    report.FOLDER.mkdir(parents=True, exist_ok=True)
    path = report.FOLDER / "assurance.png"
    title = "Two HI loops beside CPU, memory, I/O and network stress and a LO job that overruns"
    draw.draw(path, curves, experiment.marks, title)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60, help="of each mode, in turns")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--verbose", action="store_true", help="say why each miss was not explained")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO if given.verbose else logging.WARNING, format="%(message)s")
    lacking = [name for name in ("gcc", "stress-ng", "tc", "ip", "chrt") if shutil.which(name) is None]
    if os.geteuid() != 0 or lacking:
        raise SystemExit(
            f"error: needs root and {', '.join(lacking) or 'nothing else'}: run as root, install what lacks"
        )
    folder = Path(tempfile.mkdtemp(prefix="k40s-bench-"))
    folder.chmod(0o755)
    records = Path(tempfile.mkdtemp(prefix="k40s-bench-", dir="/dev/shm"))
    witness = Witness(folder)
    experiment = Experiment(
        folder, records, compiled(folder, "loop"), given.seconds / given.turns, given.turns, witness
    )
    witness.start()
    try:
        with traffic.namespaces(), daemon(folder) as client:
            for _ in range(given.turns):
                turn_without(experiment, real_time=False)
                turn_without(experiment, real_time=True)
                turn_with(experiment, client, reacting=False)
                turn_with(experiment, client, reacting=True)
            further = [held_budget(folder, experiment.program, 10), guaranteed_flow(10), *witness.rows()]
    finally:
        witness.stop()
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(records)
    rows = [*rows_of(experiment), *further]
    for row in rows:
        print("  ".join(f"{key}={value}" for key, value in row.items()))
    print(report.write("assurance", rows, picture(experiment)))


if __name__ == "__main__":
    main()
