"""One machine: containers started with their guarantees in force, stopped without a trace, recovered after
a crash.

    /k40s                      our root, in every controller
    ├─ HI  ├─ LO  └─ NO        a level: CPU weight, one switch to freeze them all
    │  └─ loop                 a job
    │     └─ main              a container: budget, cores, limits

Order at a start: groups, limits, budgets (top down), a process that waits, its groups, its policy; only
then its first instruction. Order at a stop: SIGTERM, patience, then no more forks, freeze, SIGKILL, thaw,
until nothing is left. What carries no mark of ours is in the journal before it is set. Verbs raise the
errors of `k40s.errors`.
"""

from __future__ import annotations

import contextlib
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from k40s.errors import BadInput, EffectFailed, Unsupported
from k40s.node.budgets import RtBudget, free_ppm, known_budget, read_budget, set_budgets, with_parents
from k40s.node.cgroups import CgroupFiles, Controller, all_members, subtree
from k40s.node.errors import KernelRefused
from k40s.node.journal import Journal, ResctrlGroup, RuncContainer, ShapedDevice
from k40s.node.launchers import Launch, Launcher, Processes
from k40s.node.links import Device, FlowClass, Links
from k40s.node.resctrl import Resctrl
from k40s.node.scheduling import Deadline, Fifo, Other, Policy, RoundRobin, Scheduling, set_policy_of_all

CPU_SHARES: Final[Mapping[str, int]] = {"HI": 10240, "LO": 1024, "NO": 102}
"""Weight of each level in the fair class, where no real-time budget decides:

ten to one from level to level.
"""
OOM_SCORES: Final[Mapping[str, int]] = {"HI": 0, "LO": 500, "NO": 1000}
FAIR: Final = Other()
CFS_PERIOD_US = 100_000
LEAST_QUOTA_US = 1000
POLL_S = 0.005
RELEASE_PATIENCE_S = 1.0
KILL_PATIENCE_S = 10.0
_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})?")


@dataclass(frozen=True, slots=True)
class Address:
    """Which container: level `"HI" | "LO" | "NO"`, job, container. The last two are DNS labels, or two with a dot."""

    level: str
    job: str
    container: str

    def __post_init__(self) -> None:
        if self.level not in CPU_SHARES:
            raise BadInput(f"level {self.level!r}: use one of {', '.join(CPU_SHARES)}")
        for name in (self.job, self.container):
            if not _NAME.fullmatch(name):
                raise BadInput(f"name {name!r}: use 1 to 63 of a-z, 0-9 and '-'")

    @property
    def id(self) -> str:
        """Unique on the machine; also the container's name for runc."""
        return f"k40s-{self.job}.{self.container}"

    def group(self, root: str) -> str:
        """Its cgroup."""
        return f"{root}/{self.level}/{self.job}/{self.container}"


@dataclass(frozen=True, slots=True)
class Reservation:
    """What a container gets and may use.

    `cores`: empty means all. `budget`: real-time bandwidth on each of them. `cpu_milli`: thousandths of a
    core that its fair threads may use at most. `memory_bytes`, `pids_most`: hard limits.
    """

    cores: frozenset[int] = frozenset()
    budget: RtBudget | None = None
    policy: Policy = FAIR
    cpu_milli: int | None = None
    weight_milli: int = 1000
    memory_bytes: int | None = None
    pids_most: int = 256
    schemata: tuple[tuple[str, str], ...] = ()
    """Cache allocation, as (resource, masks); see `resctrl`."""


@dataclass(slots=True)
class Machine:
    """The ports of one machine, together. Not for several threads at a time."""

    files: CgroupFiles
    scheduling: Scheduling
    links: Links
    resctrl: Resctrl
    plain: Launcher
    runc: Launcher
    processes: Processes
    journal: Journal
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic

    def start(self, address: Address, launch: Launch, wants: Reservation) -> int:
        """Start a container with its guarantees in force;

        its process id. On failure nothing is left of it.
        """
        group = address.group(self.files.root)
        self._must_be_able(wants)
        if self.members(address):
            raise EffectFailed(f"container {address.id}: group {group} has processes already, stop it first")
        try:
            self._prepare(address, wants)
            return self._launch(address, launch, wants)
        except Exception:
            self._undo_start(address)
            raise

    def _must_be_able(self, wants: Reservation) -> None:
        mounted = self.files.controllers()
        needs = {
            Controller.CPUSET: bool(wants.cores),
            Controller.MEMORY: wants.memory_bytes is not None,
            Controller.FREEZER: True,
            Controller.PIDS: True,
        }
        for controller, needed in needs.items():
            if needed and controller not in mounted:
                raise Unsupported(f"cgroup controller {controller.value!r} is not mounted on this machine")
        if isinstance(wants.policy, Fifo | RoundRobin) and wants.budget is None:
            raise BadInput(f"policy {wants.policy} needs a budget: without one it could take the whole core")
        if isinstance(wants.policy, Deadline) and wants.cores:
            raise Unsupported(
                "SCHED_DEADLINE cannot be pinned to a core without a cpuset of its own: use fifo"
            )

    def _prepare(self, address: Address, wants: Reservation) -> None:
        files, group = self.files, address.group(self.files.root)
        for controller in sorted(files.controllers()):
            files.make(controller, group)
        level_group = f"{files.root}/{address.level}"
        files.write(Controller.CPU, level_group, "cpu.shares", str(CPU_SHARES[address.level]))
        files.write(Controller.CPU, group, "cpu.shares", str(max(2, wants.weight_milli * 1024 // 1000)))
        if wants.cores:
            files.write(Controller.CPUSET, group, "cpuset.cpus", ",".join(map(str, sorted(wants.cores))))
        if wants.memory_bytes is not None:
            files.write(Controller.MEMORY, group, "memory.limit_in_bytes", str(wants.memory_bytes))
        files.write(Controller.PIDS, group, "pids.max", str(wants.pids_most))
        self.limit_cpu(address, wants.cpu_milli)
        self.set_budgets({address: wants.budget})

    def _launch(self, address: Address, launch: Launch, wants: Reservation) -> int:
        group = address.group(self.files.root)
        launcher = self.plain
        if launch.rootfs is not None:
            launcher = self.runc
            self.journal.note(RuncContainer(address.id, str(launch.rootfs)))
        pid = launcher.create(launch)
        for controller in sorted(self.files.controllers()):
            self.files.attach(controller, group, pid)
        if score := OOM_SCORES[address.level]:
            self.processes.offer_to_oom(pid, score)
        if wants.schemata:
            self.journal.note(ResctrlGroup(address.id))
            self.resctrl.allocate(address.id, dict(wants.schemata), [pid])
        if wants.policy != FAIR:
            set_policy_of_all(self.scheduling, [pid], wants.policy)
        launcher.release(launch.id)
        return pid

    def _undo_start(self, address: Address) -> None:
        # The first error is the one to tell; what cannot be undone now is undone at the next start.
        with contextlib.suppress(EffectFailed, Unsupported):
            self.stop(address, grace_s=0)

    def stop(self, address: Address, grace_s: float) -> int | None:
        """End a container and remove what was set for it; its exit status where it can be known."""
        group = address.group(self.files.root)
        if grace_s > 0 and self.members(address):
            self.thaw(address)
            for pid in self.members(address):
                self.processes.send(pid, signal.SIGTERM)
            self._wait_until_empty(group, grace_s)
        self._kill(group)
        status = self.exit_status(address)
        self._forget(address)
        return status

    def _wait_until_empty(self, group: str, patience_s: float) -> bool:
        until = self.clock() + patience_s
        while all_members(self.files, Controller.FREEZER, group):
            if self.clock() >= until:
                return False
            self.sleep(POLL_S)
        return True

    def _kill(self, group: str) -> None:
        """SIGKILL all of a group, forks and real-time spinners included.

        No new process, all frozen so that none escapes by forking, out of the real-time class so that a
        spinner cannot keep its siblings from taking the signal, then killed and thawed. Without a CPU limit: to freeze
        and to die takes time on a core, and hundreds of processes would wait for it under a limit.
        """
        until = self.clock() + KILL_PATIENCE_S
        while members := all_members(self.files, Controller.FREEZER, group):
            if self.clock() >= until:
                raise EffectFailed(f"group {group}: processes {sorted(members)[:5]} do not die")
            for name in subtree(self.files, Controller.PIDS, group):
                with contextlib.suppress(KernelRefused):
                    self.files.write(Controller.PIDS, name, "pids.max", "0")
                    self.files.write(Controller.CPU, name, "cpu.cfs_quota_us", "-1")
            self._set_frozen(group, frozen=True)
            members = all_members(self.files, Controller.FREEZER, group)
            with contextlib.suppress(KernelRefused):
                set_policy_of_all(self.scheduling, members, FAIR)
            for pid in members:
                self.processes.send(pid, signal.SIGKILL)
            self._set_frozen(group, frozen=False)
            if self._wait_until_empty(group, 0.2):
                return

    def _forget(self, address: Address) -> None:
        group = address.group(self.files.root)
        # Before its groups go: a removed group's budget counts until the kernel has let go of it.
        self.set_budgets({address: None})
        self.plain.destroy(address.id)
        for effect in self.journal.outstanding():
            match effect:
                case RuncContainer(id=name) if name == address.id:
                    self.runc.destroy(name)
                    self.journal.strike(effect)
                case ResctrlGroup(name=name) if name == address.id:
                    self.resctrl.release(name)
                    self.journal.strike(effect)
                case _:
                    pass
        self._remove_groups(group)
        self._remove_groups(group.rsplit("/", 1)[0], only_when_empty=True)

    def _remove_groups(self, group: str, *, only_when_empty: bool = False) -> None:
        for controller in sorted(self.files.controllers()):
            if only_when_empty and self.files.children(controller, group):
                continue
            for name in subtree(self.files, controller, group):
                self._remove_group(controller, name)

    def _remove_group(self, controller: Controller, name: str) -> None:
        # A process that has just died keeps its group busy until it is reaped.
        until = self.clock() + 2.0
        while True:
            try:
                self.files.remove(controller, name)
            except KernelRefused:
                if self.clock() >= until:
                    raise
                self.sleep(POLL_S)
            else:
                return

    def members(self, address: Address) -> frozenset[int]:
        """Process ids of a container; empty when it has ended or never was."""
        return all_members(self.files, Controller.FREEZER, address.group(self.files.root))

    def exit_status(self, address: Address) -> int | None:
        """Exit status of a container that ended, where it can be known."""
        return self.plain.exit_status(address.id)

    def freeze(self, address: Address) -> None:
        """Stop all threads of a container where they are."""
        self._set_frozen(address.group(self.files.root), frozen=True)

    def thaw(self, address: Address) -> None:
        """Let a frozen container go on."""
        self._set_frozen(address.group(self.files.root), frozen=False)

    def _set_frozen(self, group: str, *, frozen: bool) -> None:
        wanted = "FROZEN" if frozen else "THAWED"
        until = self.clock() + 2.0
        with contextlib.suppress(KernelRefused):  # gone meanwhile
            self.files.write(Controller.FREEZER, group, "freezer.state", wanted)
            while self.files.read(Controller.FREEZER, group, "freezer.state") != wanted:
                if self.clock() >= until:
                    return  # a thread inside the kernel takes its time; it will get there
                self.sleep(POLL_S)

    def limit_cpu(self, address: Address, milli: int | None) -> None:
        """Thousandths of a core for the fair threads of a container; None for no limit."""
        quota_us = -1 if milli is None else max(milli * CFS_PERIOD_US // 1000, LEAST_QUOTA_US)
        group = address.group(self.files.root)
        self.files.write(Controller.CPU, group, "cpu.cfs_period_us", str(CFS_PERIOD_US))
        self.files.write(Controller.CPU, group, "cpu.cfs_quota_us", str(quota_us))

    def set_budgets(self, changed: Mapping[Address, RtBudget | None]) -> None:
        """Change budgets of some containers, all or none."""
        root = self.files.root
        groups = {address.group(root): budget for address, budget in changed.items()}
        if not self.files.children(Controller.CPU, root):
            return
        merged: dict[str, RtBudget | None] = {**self._budgets(), **groups}
        budgets = {group: budget for group, budget in merged.items() if budget is not None}
        until = self.clock() + RELEASE_PATIENCE_S
        while True:
            try:
                set_budgets(self.files, budgets)
            except KernelRefused:
                # The kernel counts a group that runc removed until it has let go of it, some milliseconds later.
                if not self._should_fit(budgets) or self.clock() >= until:
                    raise
                self.sleep(POLL_S)
            else:
                return

    def _should_fit(self, budgets: Mapping[str, RtBudget]) -> bool:
        ours = read_budget(self.files, self.files.root).share
        wanted = with_parents(budgets, self.files.root)[self.files.root].share
        return wanted <= ours + Fraction(free_ppm(self.files), 1_000_000)

    def _budgets(self) -> dict[str, RtBudget]:
        return {
            group: budget
            for group in self._container_groups(Controller.CPU)
            if (budget := known_budget(self.files, group)) is not None and budget.runtime_us > 0
        }

    def _container_groups(self, controller: Controller) -> Iterator[str]:
        for level in self.files.children(controller, self.files.root):
            for job in self.files.children(controller, level):
                yield from self.files.children(controller, job)

    def found(self) -> frozenset[Address]:
        """Containers that have a group on this machine, in any controller, ended or not."""
        found = set()
        for controller in self.files.controllers():
            for group in self._container_groups(controller):
                with contextlib.suppress(BadInput):
                    found.add(Address(*group.removeprefix(self.files.root + "/").split("/")))
        return frozenset(found)

    def shape(self, device: Device, rate_bps: int, flows: Sequence[FlowClass]) -> None:
        """Guarantee flows their rates on a device; none takes the guarantees away."""
        effect = ShapedDevice(device.name, device.namespace)
        if flows:
            self.journal.note(effect)
            self.links.shape(device, rate_bps, flows)
        else:
            self.links.unshape(device)
            self.journal.strike(effect)

    def recover(
        self, keep: frozenset[Address], keep_devices: frozenset[Device] = frozenset()
    ) -> frozenset[Address]:
        """After a crash: undo all that does not belong to `keep`; those of `keep` that still run."""
        for address in self.found():
            if address not in keep or self._is_waiting(address):
                self.stop(address, grace_s=0)
        kept = {address.id for address in keep}
        for effect in self.journal.outstanding():
            match effect:
                case ShapedDevice() if effect.device not in keep_devices:
                    self.links.unshape(effect.device)
                    self.journal.strike(effect)
                case RuncContainer(id=name) if name not in kept:
                    self.runc.destroy(name)
                    self.journal.strike(effect)
                case ResctrlGroup(name=name) if name not in kept:
                    self.resctrl.release(name)
                    self.journal.strike(effect)
                case _:
                    pass
        return frozenset(address for address in keep if self.members(address))

    def _is_waiting(self, address: Address) -> bool:
        in_runc = any(
            isinstance(one, RuncContainer) and one.id == address.id for one in self.journal.outstanding()
        )
        return (self.runc if in_runc else self.plain).is_waiting(address.id)

    def uninstall(self) -> None:
        """Stop everything and remove our root: the machine is as it was."""
        self.recover(frozenset())
        self._kill(self.files.root)
        for controller in sorted(self.files.controllers()):
            for name in subtree(self.files, controller, self.files.root):
                self._remove_group(controller, name)
