"""A machine in memory:

the ports that have state in the kernel, under the rules of the kernel that callers meet.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, field

from k40s.errors import Unsupported
from k40s.node.cgroups import Controller, guard, parents
from k40s.node.errors import KernelRefused

DEFAULTS: dict[Controller, dict[str, str]] = {
    Controller.CPU: {
        "cpu.rt_runtime_us": "0",
        "cpu.rt_period_us": "1000000",
        "cpu.shares": "1024",
        "cpu.cfs_quota_us": "-1",
        "cpu.cfs_period_us": "100000",
        "cpu.stat": "nr_periods 0\nnr_throttled 0\nthrottled_time 0",
    },
    Controller.CPUACCT: {"cpuacct.usage": "0"},
    Controller.CPUSET: {"cpuset.cpus": "", "cpuset.mems": ""},
    Controller.MEMORY: {
        "memory.limit_in_bytes": "9223372036854771712",
        "memory.usage_in_bytes": "0",
        "memory.failcnt": "0",
    },
    Controller.FREEZER: {"freezer.state": "THAWED"},
    Controller.PIDS: {"pids.max": "max", "pids.current": "0"},
    Controller.BLKIO: {},
    Controller.DEVICES: {},
    Controller.NAMED: {},
    Controller.UNIFIED: {},
}
WHOLE_MACHINE: dict[Controller, dict[str, str]] = {
    Controller.CPU: {"cpu.rt_runtime_us": "950000", "cpu.rt_period_us": "1000000"},
    Controller.CPUSET: {"cpuset.cpus": "0-1", "cpuset.mems": "0"},
}
KNOWN_PIDS_FROM = 1


@dataclass(slots=True)
class FakeCgroups:
    """Groups in memory. `alive` tells which process ids exist."""

    root: str = "/k40s"
    alive: Callable[[int], bool] = lambda pid: pid >= KNOWN_PIDS_FROM
    groups: dict[tuple[Controller, str], dict[str, str]] = field(default_factory=dict)
    where: dict[tuple[Controller, int], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for controller in Controller:
            self.groups[controller, "/"] = {**DEFAULTS[controller], **WHOLE_MACHINE.get(controller, {})}

    def controllers(self) -> frozenset[Controller]:
        return frozenset(Controller)

    def make(self, controller: Controller, group: str) -> None:
        guard(self.root, group)
        for name in (*parents(group), group):
            if (controller, name) in self.groups:
                continue
            files = dict(DEFAULTS[controller])
            if controller is Controller.CPUSET:
                above = self.groups[controller, self._above(name)]
                files |= {key: above[key] for key in ("cpuset.cpus", "cpuset.mems")}
            self.groups[controller, name] = files

    @staticmethod
    def _above(group: str) -> str:
        return group.rsplit("/", 1)[0] or "/"

    def remove(self, controller: Controller, group: str) -> None:
        guard(self.root, group)
        if (controller, group) not in self.groups:
            return
        if self.children(controller, group) or self.members(controller, group):
            raise KernelRefused(f"remove group {controller}:{group}", errno.EBUSY)
        del self.groups[controller, group]

    def _files(self, controller: Controller, group: str, file: str) -> dict[str, str]:
        files = self.groups.get((controller, group))
        if files is None or (file not in files and file != "cgroup.procs"):
            raise KernelRefused(f"{controller}:{group}/{file}", errno.ENOENT)
        return files

    def read(self, controller: Controller, group: str, file: str) -> str:
        files = self._files(controller, group, file)
        if file == "cgroup.procs":
            return "\n".join(str(pid) for pid in sorted(self.members(controller, group)))
        return files[file]

    def write(self, controller: Controller, group: str, file: str, value: str) -> None:
        guard(self.root, group)
        files = self._files(controller, group, file)
        if file == "cgroup.procs":
            self.attach(controller, group, int(value))
            return
        old, files[file] = files[file], value
        if file.startswith("cpu.rt_") and not self._rt_fits():
            files[file] = old
            raise KernelRefused(f"write {value!r} to {controller}:{group}/{file}", errno.EINVAL)
        if file == "freezer.state":
            self._freeze(group, value)

    def _freeze(self, group: str, state: str) -> None:
        for child in self.children(Controller.FREEZER, group):
            self.groups[Controller.FREEZER, child]["freezer.state"] = state
            self._freeze(child, state)

    def _ratio(self, group: str) -> int:
        files = self.groups[Controller.CPU, group]
        return (int(files["cpu.rt_runtime_us"]) << 20) // int(files["cpu.rt_period_us"])

    def _rt_fits(self) -> bool:
        groups = [name for controller, name in self.groups if controller is Controller.CPU]
        return all(
            sum(self._ratio(child) for child in self.children(Controller.CPU, name))
            <= self._ratio(name)
            <= 1 << 20
            for name in groups
        )

    def attach(self, controller: Controller, group: str, pid: int) -> None:
        guard(self.root, group)
        self._files(controller, group, "cgroup.procs")
        if not self.alive(pid):
            raise KernelRefused(f"attach {pid} to {controller}:{group}", errno.ESRCH)
        if controller is Controller.CPUSET and not self.groups[controller, group]["cpuset.cpus"]:
            raise KernelRefused(f"attach {pid} to {controller}:{group}", errno.ENOSPC)
        self.where[controller, pid] = group

    def members(self, controller: Controller, group: str) -> frozenset[int]:
        return frozenset(
            pid
            for (kind, pid), name in self.where.items()
            if (kind, name) == (controller, group) and self.alive(pid)
        )

    def children(self, controller: Controller, group: str) -> tuple[str, ...]:
        return tuple(
            sorted(
                n for kind, n in self.groups if kind is controller and n != "/" and self._above(n) == group
            )
        )


@dataclass(slots=True)
class FewerCgroups(FakeCgroups):
    """A machine where some controllers are not mounted."""

    mounted: frozenset[Controller] = frozenset({Controller.CPU})

    def controllers(self) -> frozenset[Controller]:
        return self.mounted

    def make(self, controller: Controller, group: str) -> None:
        if controller not in self.mounted:
            raise Unsupported(f"cgroup controller {controller.value!r} is not mounted on this machine")
        FakeCgroups.make(self, controller, group)
