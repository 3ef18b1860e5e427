"""Groups: one suite for the kernel's and the fake ones."""

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from k40s.errors import Conflict, Unsupported
from k40s.node.cgroups import CgroupFiles, Controller, LinuxCgroups, mounted_controllers, parents, subtree
from k40s.node.errors import KernelRefused
from k40s.node.fakes import FakeCgroups

ROOT = f"/k40s-test-{os.getpid()}"


def remove_all(files: CgroupFiles) -> None:
    for controller in files.controllers():
        for name in subtree(files, controller, files.root):
            files.remove(controller, name)


@pytest.fixture(params=["fake", pytest.param("linux", marks=pytest.mark.root)])
def files(request: pytest.FixtureRequest) -> Iterator[CgroupFiles]:
    files: CgroupFiles = FakeCgroups(ROOT) if request.param == "fake" else LinuxCgroups.open(ROOT)
    yield files
    remove_all(files)


@pytest.fixture
def sleeper() -> Iterator[int]:
    process = subprocess.Popen(["sleep", "60"])
    yield process.pid
    process.kill()
    process.wait()


def test_a_group_is_made_with_its_parents_and_made_twice(files: CgroupFiles) -> None:
    for _ in range(2):
        files.make(Controller.CPU, f"{ROOT}/HI/job")
    assert files.children(Controller.CPU, ROOT) == (f"{ROOT}/HI",)
    assert files.children(Controller.CPU, f"{ROOT}/HI") == (f"{ROOT}/HI/job",)


def test_what_is_written_is_read(files: CgroupFiles) -> None:
    files.make(Controller.CPU, ROOT)
    files.write(Controller.CPU, ROOT, "cpu.shares", "512")
    assert files.read(Controller.CPU, ROOT, "cpu.shares") == "512"


def test_a_new_cpuset_takes_processes_at_once(files: CgroupFiles, sleeper: int) -> None:
    group = f"{ROOT}/HI"
    files.make(Controller.CPUSET, group)
    files.attach(Controller.CPUSET, group, sleeper)
    assert files.members(Controller.CPUSET, group) == {sleeper}
    with pytest.raises(KernelRefused) as refused:
        files.remove(Controller.CPUSET, group)
    assert refused.value.code == errno.EBUSY
    if isinstance(files, FakeCgroups):
        files.where.clear()
    else:
        Path("/sys/fs/cgroup/cpuset/cgroup.procs").write_text(str(sleeper))


def test_removing_what_is_gone_is_nothing_and_what_has_children_is_refused(files: CgroupFiles) -> None:
    files.make(Controller.PIDS, f"{ROOT}/HI/job")
    with pytest.raises(KernelRefused):
        files.remove(Controller.PIDS, f"{ROOT}/HI")
    files.remove(Controller.PIDS, f"{ROOT}/HI/job")
    files.remove(Controller.PIDS, f"{ROOT}/HI/job")
    assert files.members(Controller.PIDS, f"{ROOT}/HI/job") == frozenset()


@pytest.mark.parametrize("group", ["/", "/other", "/k40s-testament", f"{ROOT}/../other", f"{ROOT}//x"])
@pytest.mark.parametrize(
    "act",
    [
        lambda files, group: files.make(Controller.CPU, group),
        lambda files, group: files.remove(Controller.CPU, group),
        lambda files, group: files.write(Controller.CPU, group, "cpu.shares", "2"),
        lambda files, group: files.attach(Controller.CPU, group, os.getpid()),
    ],
)
def test_groups_of_others_are_left_alone(
    files: CgroupFiles, group: str, act: Callable[[CgroupFiles, str], None]
) -> None:
    with pytest.raises(Conflict):
        act(files, group)


def test_a_dead_process_cannot_be_attached(files: CgroupFiles) -> None:
    files.make(Controller.CPU, ROOT)
    gone = subprocess.Popen(["true"])
    gone.wait()
    if isinstance(files, FakeCgroups):
        files.alive = lambda pid: pid != gone.pid
    with pytest.raises(KernelRefused) as refused:
        files.attach(Controller.CPU, ROOT, gone.pid)
    assert refused.value.code == errno.ESRCH


def test_missing_groups_and_files_are_said(files: CgroupFiles) -> None:
    with pytest.raises(KernelRefused) as refused:
        files.read(Controller.CPU, f"{ROOT}/none", "cpu.shares")
    assert refused.value.code == errno.ENOENT


def test_mounts_are_read_and_their_absence_said(tmp_path: Path) -> None:
    table = "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu,cpuacct 0 0\ncgroup2 /x cgroup2 rw 0 0\nproc /proc proc rw 0 0\n"
    assert mounted_controllers(table) == {
        Controller.CPU: Path("/sys/fs/cgroup/cpu"),
        Controller.CPUACCT: Path("/sys/fs/cgroup/cpu"),
        Controller.UNIFIED: Path("/x"),
    }
    (tmp_path / "mounts").write_text("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n")
    with pytest.raises(Unsupported, match="cgroup v1"):
        LinuxCgroups.open(ROOT, tmp_path / "mounts")


def test_parents_come_outermost_first() -> None:
    assert parents("/a/b/c") == ("/a", "/a/b")
    assert parents("/a") == ()
