"""Groups of cgroup v1, as a tree of our own that nobody else's groups belong to.

A group is named by its path below the mount of each controller, `/k40s/HI/loop/main`. Reading is free
anywhere; making, writing, attaching and removing are refused outside the root that the tree was opened
with: groups that we did not make are left alone. This module knows files and errors of the kernel, not what
the values mean.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol, TypeVar

from k40s.errors import Conflict, Unsupported
from k40s.node.errors import KernelRefused

T = TypeVar("T")


class Controller(StrEnum):
    """Hierarchies that a container of k4.0s is a member of; in the last three only because runc puts it there."""

    CPU = "cpu"
    CPUACCT = "cpuacct"
    CPUSET = "cpuset"
    MEMORY = "memory"
    FREEZER = "freezer"
    PIDS = "pids"
    BLKIO = "blkio"
    DEVICES = "devices"
    NAMED = "name=systemd"
    UNIFIED = "cgroup2"


class CgroupFiles(Protocol):
    """What is done to groups.

    Errors: `KernelRefused` with the kernel's errno, `Conflict` outside the root.
    """

    @property
    def root(self) -> str:
        """The group that all of ours lie below, `/k40s`."""

    def controllers(self) -> frozenset[Controller]:
        """Controllers that are mounted."""

    def make(self, controller: Controller, group: str) -> None:
        """Make a group and its parents; nothing happens when they exist."""

    def remove(self, controller: Controller, group: str) -> None:
        """Remove an empty group; nothing happens when it is gone. EBUSY when it has members or children."""

    def read(self, controller: Controller, group: str, file: str) -> str:
        """Content of a file of a group, stripped."""

    def write(self, controller: Controller, group: str, file: str, value: str) -> None:
        """Set a file of a group."""

    def attach(self, controller: Controller, group: str, pid: int) -> None:
        """Move a whole process. ESRCH when it is gone."""

    def members(self, controller: Controller, group: str) -> frozenset[int]:
        """Process ids in the group itself; empty when the group is gone."""

    def children(self, controller: Controller, group: str) -> tuple[str, ...]:
        """Full names of the groups right below, sorted; empty when the group is gone."""


def parents(group: str) -> tuple[str, ...]:
    """Groups above, outermost first: `/a/b/c` gives `/a`, `/a/b`."""
    parts = group.strip("/").split("/")
    return tuple("/" + "/".join(parts[:count]) for count in range(1, len(parts)))


def subtree(files: CgroupFiles, controller: Controller, group: str) -> tuple[str, ...]:
    """The group and all below it, innermost first, as they must be removed."""
    below = [
        name for child in files.children(controller, group) for name in subtree(files, controller, child)
    ]
    return (*below, group)


def all_members(files: CgroupFiles, controller: Controller, group: str) -> frozenset[int]:
    """Process ids in the group and in all groups below it."""
    return frozenset(
        pid for name in subtree(files, controller, group) for pid in files.members(controller, name)
    )


def guard(root: str, group: str) -> None:
    """Refuse a group that is not the root's or below it."""
    inside = group == root or group.startswith(root + "/")
    if not inside or ".." in group.split("/") or "//" in group:
        raise Conflict(f"group {group!r} is not below {root!r}, and k4.0s leaves other groups alone")


def mounted_controllers(mounts: str) -> dict[Controller, Path]:
    """Where each hierarchy is mounted, from the text of `/proc/mounts`."""
    known = {controller.value for controller in Controller}
    found: dict[Controller, Path] = {}
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) < 4 or fields[2] not in ("cgroup", "cgroup2"):
            continue
        names = [Controller.UNIFIED.value] if fields[2] == "cgroup2" else fields[3].split(",")
        for name in known.intersection(names):
            found.setdefault(Controller(name), Path(fields[1]))
    return found


@dataclass(frozen=True, slots=True)
class LinuxCgroups:
    """The kernel's own groups, through the file system."""

    mounts: Mapping[Controller, Path]
    root: str = "/k40s"

    @staticmethod
    def open(root: str = "/k40s", mounts_file: Path = Path("/proc/mounts")) -> LinuxCgroups:
        """Find the mounted controllers. `Unsupported` when there is none of version 1."""
        mounts = mounted_controllers(mounts_file.read_text())
        if Controller.CPU not in mounts:
            raise Unsupported(
                "cgroup v1 with its cpu controller is not mounted: mount it or use another node"
            )
        return LinuxCgroups(mounts, root)

    def controllers(self) -> frozenset[Controller]:
        return frozenset(self.mounts)

    def _path(self, controller: Controller, group: str) -> Path:
        if controller not in self.mounts:
            raise Unsupported(f"cgroup controller {controller.value!r} is not mounted on this machine")
        return self.mounts[controller] / group.strip("/")

    def make(self, controller: Controller, group: str) -> None:
        guard(self.root, group)
        for name in (*parents(group), group):
            path = self._path(controller, name)
            if path.is_dir():
                continue
            _asking(f"make group {controller}:{name}", path.mkdir)
            if controller is Controller.CPUSET:
                # A new cpuset has no CPUs and no memory nodes, and takes no process until it has both.
                for file in ("cpuset.cpus", "cpuset.mems"):
                    self.write(controller, name, file, (path.parent / file).read_text().strip())

    def remove(self, controller: Controller, group: str) -> None:
        guard(self.root, group)
        path = self._path(controller, group)
        if path.is_dir():
            _asking(f"remove group {controller}:{group}", path.rmdir)

    def read(self, controller: Controller, group: str, file: str) -> str:
        path = self._path(controller, group) / file
        return _asking(f"read {controller}:{group}/{file}", path.read_text).strip()

    def write(self, controller: Controller, group: str, file: str, value: str) -> None:
        guard(self.root, group)
        path = self._path(controller, group) / file
        _asking(f"write {value!r} to {controller}:{group}/{file}", lambda: _put(path, value))

    def attach(self, controller: Controller, group: str, pid: int) -> None:
        self.write(controller, group, "cgroup.procs", str(pid))

    def members(self, controller: Controller, group: str) -> frozenset[int]:
        path = self._path(controller, group) / "cgroup.procs"
        try:
            return frozenset(int(line) for line in path.read_text().split())
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENODEV):  # gone before or while it was read
                return frozenset()
            raise KernelRefused(f"read {controller}:{group}/cgroup.procs", error.errno or 0) from error

    def children(self, controller: Controller, group: str) -> tuple[str, ...]:
        path = self._path(controller, group)
        if not path.is_dir():
            return ()
        return tuple(
            sorted(f"{group.rstrip('/')}/{entry.name}" for entry in path.iterdir() if entry.is_dir())
        )


def _put(path: Path, value: str) -> None:
    # One write call, no truncation: cgroup files take a value whole or not at all, and O_CREAT must not be
    # tried.
    handle = os.open(path, os.O_WRONLY)
    try:
        os.write(handle, value.encode())
    finally:
        os.close(handle)


def _asking(what: str, act: Callable[[], T]) -> T:
    try:
        return act()
    except OSError as error:
        raise KernelRefused(what, error.errno or 0) from error
