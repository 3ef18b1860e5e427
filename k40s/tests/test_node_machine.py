"""A whole machine: starts, stops, crashes. One suite for the kernel and for the machine in memory."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from k40s.errors import BadInput, EffectFailed, Unsupported
from k40s.node.budgets import RtBudget, free_ppm, read_budget
from k40s.node.cgroups import Controller, LinuxCgroups
from k40s.node.errors import KernelRefused
from k40s.node.fakes import FakeCgroups, FewerCgroups
from k40s.node.journal import Journal
from k40s.node.launchers import FakeLauncher, Launch, LinuxProcesses, PlainLauncher, RuncLauncher
from k40s.node.links import Device, FakeLinks, FlowClass, TcLinks
from k40s.node.machine import Address, Machine, Reservation
from k40s.node.resctrl import Resctrl
from k40s.node.scheduling import Deadline, FakeScheduling, Fifo, LinuxScheduling, Other, RoundRobin

LOOP = Address("HI", "loop", "main")
HOG = Address("NO", "hog", "main")
BUDGET = RtBudget(1000, 10_000)
REAL_TIME = Reservation(cores=frozenset({0}), budget=BUDGET, policy=Fifo(10), memory_bytes=64 << 20)


@dataclass
class FakeTime:
    now: float = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def clock(self) -> float:
        return self.now


def fake_machine(folder: Path, launcher: FakeLauncher | None = None) -> Machine:
    launcher = launcher or FakeLauncher()
    scheduling = FakeScheduling()
    launcher.born = scheduling.add
    time_of = FakeTime()
    return Machine(
        files=FakeCgroups(alive=launcher.alive),
        scheduling=scheduling,
        links=FakeLinks(),
        resctrl=Resctrl(folder / "resctrl"),
        plain=launcher,
        runc=launcher,
        processes=launcher,
        journal=Journal.load(folder / "journal"),
        sleep=time_of.sleep,
        clock=time_of.clock,
    )


def linux_machine(folder: Path) -> Machine:
    return Machine(
        files=LinuxCgroups.open(f"/k40s-test-{os.getpid()}"),
        scheduling=LinuxScheduling.open(),
        links=TcLinks(),
        resctrl=Resctrl(),
        plain=PlainLauncher(),
        runc=RuncLauncher(folder / "runc"),
        processes=LinuxProcesses(),
        journal=Journal.load(folder / "journal"),
    )


@pytest.fixture(params=["fake", pytest.param("linux", marks=pytest.mark.root)])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Machine]:
    machine = fake_machine(tmp_path) if request.param == "fake" else linux_machine(tmp_path)
    yield machine
    machine.uninstall()
    assert machine.files.children(Controller.CPU, machine.files.root) == ()
    assert machine.journal.outstanding() == ()


@pytest.fixture
def real(tmp_path: Path) -> Iterator[Machine]:
    tmp_path.chmod(0o755)
    machine = linux_machine(tmp_path)
    yield machine
    machine.uninstall()
    assert not Path("/sys/fs/cgroup/cpu" + machine.files.root).exists()


def launch(machine: Machine, address: Address, *argv: str, log: Path = Path("/dev/null")) -> Launch:
    return Launch(address.id, argv or ("sleep", "60"), address.group(machine.files.root), log)


def eventually(condition: Callable[[], bool], patience_s: float = 5.0) -> None:
    until = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < until, "did not come true in time"
        os.sched_yield()


def test_everything_wanted_is_in_force(machine: Machine) -> None:
    pid = machine.start(LOOP, launch(machine, LOOP), REAL_TIME)
    group = LOOP.group(machine.files.root)
    assert machine.members(LOOP) == {pid}
    assert read_budget(machine.files, group) == BUDGET
    assert machine.scheduling.policy(pid) == Fifo(10)
    assert machine.files.read(Controller.CPUSET, group, "cpuset.cpus") == "0"
    assert machine.files.read(Controller.MEMORY, group, "memory.limit_in_bytes") == str(64 << 20)
    assert machine.found() == {LOOP}


def test_nothing_is_left_after_a_stop(machine: Machine) -> None:
    free = free_ppm(machine.files)
    machine.start(LOOP, launch(machine, LOOP), REAL_TIME)
    assert machine.stop(LOOP, grace_s=2) == -signal.SIGTERM
    assert machine.found() == frozenset()
    assert machine.members(LOOP) == frozenset()
    assert free_ppm(machine.files) == free


def test_a_container_runs_once(machine: Machine) -> None:
    machine.start(HOG, launch(machine, HOG), Reservation())
    with pytest.raises(EffectFailed, match="stop it first"):
        machine.start(HOG, launch(machine, HOG), Reservation())
    assert machine.members(HOG)


def test_a_budget_that_does_not_fit_leaves_nothing_and_harms_nobody(machine: Machine) -> None:
    pid = machine.start(LOOP, launch(machine, LOOP), REAL_TIME)
    too_much = Reservation(budget=RtBudget(930, 1000), policy=Fifo(5))
    with pytest.raises(KernelRefused):
        machine.start(HOG, launch(machine, HOG), too_much)
    assert machine.found() == {LOOP}
    assert machine.members(LOOP) == {pid}
    assert read_budget(machine.files, LOOP.group(machine.files.root)) == BUDGET


@pytest.mark.parametrize("policy", [Fifo(1), RoundRobin(1)])
def test_real_time_without_a_budget_is_refused(machine: Machine, policy: Fifo | RoundRobin) -> None:
    with pytest.raises(BadInput, match="needs a budget"):
        machine.start(LOOP, launch(machine, LOOP), Reservation(policy=policy))


def test_a_pinned_deadline_thread_is_refused(machine: Machine) -> None:
    with pytest.raises(Unsupported, match="SCHED_DEADLINE"):
        wants = Reservation(cores=frozenset({0}), policy=Deadline(10**6, 10**7, 10**7))
        machine.start(LOOP, launch(machine, LOOP), wants)


def test_freezing_and_thawing(machine: Machine) -> None:
    machine.start(HOG, launch(machine, HOG), Reservation())
    group = HOG.group(machine.files.root)
    machine.freeze(HOG)
    assert machine.files.read(Controller.FREEZER, group, "freezer.state") == "FROZEN"
    machine.thaw(HOG)
    assert machine.files.read(Controller.FREEZER, group, "freezer.state") == "THAWED"


def test_a_frozen_container_can_be_stopped(machine: Machine) -> None:
    machine.start(HOG, launch(machine, HOG), Reservation())
    machine.freeze(HOG)
    machine.stop(HOG, grace_s=1)
    assert machine.found() == frozenset()


def test_limits_follow(machine: Machine) -> None:
    machine.start(HOG, launch(machine, HOG), Reservation(cpu_milli=500))
    group = HOG.group(machine.files.root)
    assert machine.files.read(Controller.CPU, group, "cpu.cfs_quota_us") == "50000"
    machine.limit_cpu(HOG, 1)
    assert machine.files.read(Controller.CPU, group, "cpu.cfs_quota_us") == "1000"
    machine.limit_cpu(HOG, None)
    assert machine.files.read(Controller.CPU, group, "cpu.cfs_quota_us") == "-1"


def test_recovery_keeps_what_is_wanted_and_undoes_the_rest(machine: Machine) -> None:
    kept = machine.start(LOOP, launch(machine, LOOP), REAL_TIME)
    machine.start(HOG, launch(machine, HOG), Reservation())
    ended = Address("LO", "ended", "main")
    assert machine.recover(frozenset({LOOP, ended})) == {LOOP}
    assert machine.found() == {LOOP}
    assert machine.members(LOOP) == {kept}
    assert read_budget(machine.files, LOOP.group(machine.files.root)) == BUDGET


def test_devices_are_freed_by_recovery_even_when_the_crash_came_in_between(tmp_path: Path) -> None:
    machine = fake_machine(tmp_path)
    device, other = Device("eth0"), Device("eth1")
    flow = FlowClass("loop", 46, 1000, 1000, 1500)
    machine.shape(device, 10_000, [flow])
    machine.shape(other, 10_000, [flow])
    machine.journal = Journal.load(tmp_path / "journal")
    machine.recover(frozenset(), keep_devices=frozenset({other}))
    assert not machine.links.shaped(device)
    assert machine.links.shaped(other)
    machine.shape(other, 10_000, [])
    assert machine.journal.outstanding() == ()


def test_who_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    launcher = FakeLauncher(stubborn=frozenset({HOG.id}))
    machine = fake_machine(tmp_path, launcher)
    machine.start(HOG, launch(machine, HOG), Reservation())
    before = machine.clock()
    assert machine.stop(HOG, grace_s=3) == -signal.SIGKILL
    assert machine.clock() - before >= 3


def test_what_is_not_mounted_is_said_before_anything_is_made(tmp_path: Path) -> None:
    machine = fake_machine(tmp_path)
    machine.files = FewerCgroups()
    with pytest.raises(Unsupported, match="freezer"):
        machine.start(HOG, launch(machine, HOG), Reservation())
    assert machine.found() == frozenset()


def test_a_full_disk_refuses_the_container_and_leaves_nothing(tmp_path: Path) -> None:
    machine = fake_machine(tmp_path)
    machine.journal.path = Path("/dev/full")
    in_image = Launch(HOG.id, ("sh",), HOG.group("/k40s"), Path("/dev/null"), rootfs=tmp_path)
    with pytest.raises(OSError, match="No space"):
        machine.start(HOG, in_image, Reservation())
    assert machine.found() == frozenset()


@pytest.mark.parametrize("name", ["", "a/b", "..", "A", "-a", "x" * 64])
def test_names_cannot_leave_their_group(name: str) -> None:
    with pytest.raises(BadInput):
        Address("HI", name, "main")
    with pytest.raises(BadInput):
        Address("HI", "job", name)
    with pytest.raises(BadInput):
        Address("TOP", "job", "main")


@pytest.mark.root
def test_the_first_instruction_runs_under_the_budget(real: Machine, tmp_path: Path) -> None:
    log = tmp_path / "log"
    look = "cat /proc/self/cgroup; chrt -p $$; id -u"
    real.start(LOOP, launch(real, LOOP, "sh", "-c", look, log=log), REAL_TIME)
    eventually(lambda: not real.members(LOOP))
    assert f"cpu:{LOOP.group(real.files.root)}" in log.read_text()
    assert "SCHED_FIFO" in log.read_text()
    assert log.read_text().splitlines()[-1] == "65534"


@pytest.mark.root
def test_a_job_cannot_raise_its_own_budget(real: Machine, tmp_path: Path) -> None:
    group = f"/sys/fs/cgroup/cpu{LOOP.group(real.files.root)}"
    attempt = f"echo 900000 > {group}/cpu.rt_runtime_us; echo $$ > /sys/fs/cgroup/cpu/cgroup.procs; chrt -f -p 98 $$"
    real.start(LOOP, launch(real, LOOP, "sh", "-c", f"{attempt}; sleep 60", log=tmp_path / "log"), REAL_TIME)
    eventually(lambda: "failed" in (tmp_path / "log").read_text())
    assert read_budget(real.files, LOOP.group(real.files.root)) == BUDGET
    assert len(real.members(LOOP)) >= 1


@pytest.mark.root
def test_a_waiting_process_runs_nothing_when_its_creator_dies(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    launcher = PlainLauncher()
    pid = launcher.create(
        Launch("k40s-x.y", ("touch", str(mark)), "/none", tmp_path / "log", user=0, user_group=0)
    )
    launcher.destroy("k40s-x.y")
    assert not Path(f"/proc/{pid}").exists()
    assert not mark.exists()


@pytest.mark.root
def test_a_fork_bomb_and_a_sigterm_ignorer_are_stopped(real: Machine, tmp_path: Path) -> None:
    bomb = "import os,signal\nsignal.signal(15,signal.SIG_IGN)\nwhile True:\n try: os.fork()\n except OSError: pass\n"
    real.start(
        HOG,
        launch(real, HOG, sys.executable, "-c", bomb, log=tmp_path / "log"),
        Reservation(pids_most=12, cpu_milli=200),
    )
    eventually(lambda: len(real.members(HOG)) == 12)
    real.stop(HOG, grace_s=0.1)
    assert real.found() == frozenset()


@pytest.mark.root
def test_children_spinning_in_real_time_are_stopped(real: Machine, tmp_path: Path) -> None:
    spin = "s() { while :; do :; done; }; s & s & s & s"
    wants = Reservation(cores=frozenset({0}), budget=RtBudget(5000, 100_000), policy=Fifo(5))
    real.start(LOOP, launch(real, LOOP, "sh", "-c", spin, log=tmp_path / "log"), wants)
    eventually(lambda: len(real.members(LOOP)) == 4)
    real.stop(LOOP, grace_s=0)
    assert real.found() == frozenset()


@pytest.fixture(scope="module")
def rootfs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rootfs")
    folder.chmod(0o755)
    for name in ("bin", "proc", "dev", "tmp", "sys"):
        (folder / name).mkdir()
    subprocess.run(["cp", "/bin/busybox", str(folder / "bin")], check=True)
    for name in ("sh", "cat", "sleep", "id", "cut"):
        (folder / "bin" / name).symlink_to("busybox")
    return folder


@pytest.mark.root
def test_a_container_of_runc_has_its_budget_from_the_first_instruction(
    real: Machine, tmp_path: Path, rootfs: Path
) -> None:
    look = "cat /proc/self/cgroup; cut -d' ' -f41 /proc/self/stat; id -u; sleep 60"
    log = tmp_path / "log"
    in_root = Launch(LOOP.id, ("sh", "-c", look), LOOP.group(real.files.root), log, rootfs=rootfs)
    real.start(LOOP, in_root, REAL_TIME)
    eventually(lambda: "65534" in log.read_text())
    assert f":cpu:{LOOP.group(real.files.root)}" in log.read_text()
    assert log.read_text().splitlines()[-2] == "1", "policy, the 41st field of stat: SCHED_FIFO"
    assert read_budget(real.files, LOOP.group(real.files.root)) == BUDGET
    # As after a crash: another machine object, the same journal.
    again = linux_machine(tmp_path)
    assert again.recover(frozenset({LOOP})) == {LOOP}
    again.stop(LOOP, grace_s=0)
    assert again.found() == frozenset()
    assert again.journal.outstanding() == ()
    real.journal = again.journal


@pytest.mark.root
def test_a_container_that_a_crash_left_waiting_is_not_taken_for_running(
    real: Machine, tmp_path: Path, rootfs: Path
) -> None:
    in_root = Launch(LOOP.id, ("sleep", "60"), LOOP.group(real.files.root), tmp_path / "log", rootfs=rootfs)

    class Crash(BaseException):
        pass

    class Crashing(RuncLauncher):
        def release(self, launch_id: str) -> None:
            raise Crash

    real.runc = Crashing(tmp_path / "runc")
    with pytest.raises(Crash):
        real.start(LOOP, in_root, REAL_TIME)
    assert real.members(LOOP), "it waits"
    again = linux_machine(tmp_path)
    assert again.recover(frozenset({LOOP})) == frozenset()
    assert again.found() == frozenset()
    real.journal = again.journal


@pytest.mark.root
def test_a_missing_program_leaves_nothing(real: Machine, tmp_path: Path, rootfs: Path) -> None:
    in_root = Launch(LOOP.id, ("nonesuch",), LOOP.group(real.files.root), tmp_path / "log", rootfs=rootfs)
    with pytest.raises(EffectFailed, match="nonesuch"):
        real.start(LOOP, in_root, REAL_TIME)
    assert real.found() == frozenset()
    real.start(HOG, launch(real, HOG, "nonesuch", log=tmp_path / "plain"), Reservation())
    eventually(lambda: real.exit_status(HOG) == 127)
    assert "nonesuch" in (tmp_path / "plain").read_text()


@pytest.mark.root
def test_an_overrunning_container_is_held_to_its_budget(real: Machine, tmp_path: Path) -> None:
    wants = Reservation(cores=frozenset({1}), budget=RtBudget(10_000, 100_000), policy=Fifo(5))
    real.start(LOOP, launch(real, LOOP, "sh", "-c", "while :; do :; done", log=tmp_path / "log"), wants)
    group = LOOP.group(real.files.root)

    def usage_ns() -> int:
        return int(real.files.read(Controller.CPUACCT, group, "cpuacct.usage"))

    eventually(lambda: usage_ns() > 30_000_000)
    began, used = time.monotonic_ns(), usage_ns()
    eventually(lambda: time.monotonic_ns() - began > 2_000_000_000)
    share = (usage_ns() - used) / (time.monotonic_ns() - began)
    assert 0.08 <= share <= 0.11, "one period more or less in twenty"
    assert Other() not in {real.scheduling.policy(pid) for pid in real.members(LOOP)}
