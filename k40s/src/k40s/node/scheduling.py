"""Scheduling policy and affinity of threads.

Linux through `sched_setattr(2)`; no knowledge of jobs or budgets.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeAlias

from k40s.errors import Unsupported
from k40s.node.errors import KernelRefused

SYSCALLS = {"x86_64": (314, 315), "aarch64": (274, 275)}
RESET_ON_FORK = 0x01
SCHED_OTHER, SCHED_FIFO, SCHED_RR, SCHED_DEADLINE = 0, 1, 2, 6


@dataclass(frozen=True, slots=True)
class Other:
    """The fair class. `nice` from -20 (most) to 19 (least)."""

    nice: int = 0


@dataclass(frozen=True, slots=True)
class Fifo:
    """First in, first out at a fixed priority of 1 to 99; children inherit it."""

    priority: int


@dataclass(frozen=True, slots=True)
class RoundRobin:
    """Fixed priority of 1 to 99 with time slices among equals, so that a spinning child cannot starve its
    init.
    """

    priority: int


@dataclass(frozen=True, slots=True)
class Deadline:
    """`runtime_ns` in every `period_ns`, done `deadline_ns` after release.

    Children start in the fair class.
    """

    runtime_ns: int
    deadline_ns: int
    period_ns: int


Policy: TypeAlias = Other | Fifo | RoundRobin | Deadline


class Scheduling(Protocol):
    """Policies and affinities of threads. Errors: `KernelRefused` with ESRCH, EPERM, EINVAL or EBUSY."""

    def set_policy(self, tid: int, policy: Policy) -> None:
        """Put one thread under a policy."""

    def policy(self, tid: int) -> Policy:
        """The policy that a thread is under."""

    def set_cores(self, tid: int, cores: frozenset[int]) -> None:
        """Let a thread run on these cores only."""

    def cores(self, tid: int) -> frozenset[int]:
        """Cores that a thread may run on."""

    def threads(self, pid: int) -> frozenset[int]:
        """Threads of a process; empty when it is gone."""


def set_policy_of_all(scheduling: Scheduling, pids: Iterable[int], policy: Policy) -> None:
    """Put every thread of every process under a policy; threads that end meanwhile are passed over."""
    for pid in pids:
        for tid in scheduling.threads(pid):
            try:
                scheduling.set_policy(tid, policy)
            except KernelRefused as refused:
                if refused.code != errno.ESRCH:
                    raise


class _SchedAttr(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_uint32),
        ("sched_policy", ctypes.c_uint32),
        ("sched_flags", ctypes.c_uint64),
        ("sched_nice", ctypes.c_int32),
        ("sched_priority", ctypes.c_uint32),
        ("sched_runtime", ctypes.c_uint64),
        ("sched_deadline", ctypes.c_uint64),
        ("sched_period", ctypes.c_uint64),
    )


def _attr_of(policy: Policy) -> _SchedAttr:
    size = ctypes.sizeof(_SchedAttr)
    match policy:
        case Other(nice):
            return _SchedAttr(size=size, sched_policy=SCHED_OTHER, sched_nice=nice)
        case Fifo(priority):
            return _SchedAttr(size=size, sched_policy=SCHED_FIFO, sched_priority=priority)
        case RoundRobin(priority):
            return _SchedAttr(size=size, sched_policy=SCHED_RR, sched_priority=priority)
        case Deadline(runtime_ns, deadline_ns, period_ns):
            return _SchedAttr(
                size=size,
                sched_policy=SCHED_DEADLINE,
                sched_flags=RESET_ON_FORK,
                sched_runtime=runtime_ns,
                sched_deadline=deadline_ns,
                sched_period=period_ns,
            )


def _policy_of(attr: _SchedAttr) -> Policy:
    match int(attr.sched_policy):
        case 1:
            return Fifo(int(attr.sched_priority))
        case 2:
            return RoundRobin(int(attr.sched_priority))
        case 6:
            return Deadline(int(attr.sched_runtime), int(attr.sched_deadline), int(attr.sched_period))
        case _:  # OTHER, BATCH, IDLE: all fair
            return Other(int(attr.sched_nice))


@dataclass(frozen=True, slots=True)
class LinuxScheduling:
    """The kernel's scheduler, by system call."""

    libc: ctypes.CDLL
    set_number: int
    get_number: int

    @staticmethod
    def open() -> LinuxScheduling:
        """`Unsupported` on a processor whose system call numbers are not known here."""
        numbers = SYSCALLS.get(platform.machine())
        if numbers is None:
            known = ", ".join(sorted(SYSCALLS))
            raise Unsupported(f"machine {platform.machine()!r}: sched_setattr is known on {known} only")
        return LinuxScheduling(ctypes.CDLL(None, use_errno=True), *numbers)

    def set_policy(self, tid: int, policy: Policy) -> None:
        attr = _attr_of(policy)
        if self.libc.syscall(self.set_number, tid, ctypes.byref(attr), 0) != 0:
            raise KernelRefused(f"put thread {tid} under {policy}", ctypes.get_errno())

    def policy(self, tid: int) -> Policy:
        attr = _SchedAttr()
        if self.libc.syscall(self.get_number, tid, ctypes.byref(attr), ctypes.sizeof(attr), 0) != 0:
            raise KernelRefused(f"ask for the policy of thread {tid}", ctypes.get_errno())
        return _policy_of(attr)

    def set_cores(self, tid: int, cores: frozenset[int]) -> None:
        try:
            os.sched_setaffinity(tid, cores)
        except OSError as error:
            raise KernelRefused(f"pin thread {tid} to {sorted(cores)}", error.errno or 0) from error

    def cores(self, tid: int) -> frozenset[int]:
        try:
            return frozenset(os.sched_getaffinity(tid))
        except OSError as error:
            raise KernelRefused(f"ask for the cores of thread {tid}", error.errno or 0) from error

    def threads(self, pid: int) -> frozenset[int]:
        try:
            return frozenset(int(entry.name) for entry in Path("/proc", str(pid), "task").iterdir())
        except OSError:  # gone, which is an answer
            return frozenset()


@dataclass(slots=True)
class FakeScheduling:
    """Threads in memory, under the rules of the kernel that callers meet."""

    core_count: int = 2
    of: dict[int, Policy] = field(default_factory=dict)
    pinned: dict[int, frozenset[int]] = field(default_factory=dict)

    def add(self, tid: int) -> None:
        """A thread appears, fair and free to run anywhere."""
        self.of[tid] = Other()
        self.pinned[tid] = frozenset(range(self.core_count))

    def _must_exist(self, tid: int) -> None:
        if tid not in self.of:
            raise KernelRefused(f"thread {tid}", errno.ESRCH)

    def set_policy(self, tid: int, policy: Policy) -> None:
        self._must_exist(tid)
        match policy:
            case Fifo(priority) | RoundRobin(priority) if not 1 <= priority <= 99:
                raise KernelRefused(f"priority {priority}", errno.EINVAL)
            case Deadline(runtime_ns, deadline_ns, period_ns) if (
                not 1024 <= runtime_ns <= deadline_ns <= period_ns
            ):
                raise KernelRefused(f"{policy}", errno.EINVAL)
            case Other(nice):
                policy = Other(max(-20, min(19, nice)))
            case _:
                pass
        self.of[tid] = policy

    def policy(self, tid: int) -> Policy:
        self._must_exist(tid)
        return self.of[tid]

    def set_cores(self, tid: int, cores: frozenset[int]) -> None:
        self._must_exist(tid)
        possible = cores & frozenset(range(self.core_count))
        if not possible:
            raise KernelRefused(f"pin thread {tid} to {sorted(cores)}", errno.EINVAL)
        self.pinned[tid] = possible

    def cores(self, tid: int) -> frozenset[int]:
        self._must_exist(tid)
        return self.pinned[tid]

    def threads(self, pid: int) -> frozenset[int]:
        return frozenset({pid}) if pid in self.of else frozenset()
