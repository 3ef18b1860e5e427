"""Containers of placed jobs made to run as they should: started, adjusted, restarted, stopped. Idempotent.

`ensure` may be called at any time and after any crash; it looks at the kernel and at the job's state and does what is
missing. A container is marked as begun before it is started, so that one that must run once never runs twice.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from k40s import api
from k40s.errors import K40sError
from k40s.local.state import Adjustment, JobState
from k40s.local.workloads import Wanted, WatchedTask
from k40s.node.budgets import RtBudget
from k40s.node.errors import KernelRefused
from k40s.node.machine import Machine
from k40s.node.scheduling import Fifo
from k40s.task import FILE_BYTES, empty_record, read_record

GRACE_S = 3.0
BACKOFF_NS = tuple(seconds * 1_000_000_000 for seconds in (0, 1, 2, 5, 10, 30))
STEADY_NS = 60_000_000_000
"""A container that ran this long is not failing in a loop: its next restart is prompt again."""
LEAST_MILLI = 10


@dataclass(slots=True)
class Attempts:
    """Starts of one container, for backing off."""

    count: int = 0
    not_before_ns: int = 0
    started_ns: int = 0


@dataclass(frozen=True, slots=True)
class Told:
    """Something worth an event."""

    severity: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class InForce:
    """What was last set on a running container beside its start."""

    frozen: bool
    cpu_milli: int | None
    budget: RtBudget | None


@dataclass(slots=True)
class Containers:
    """The containers of one machine. `save` keeps a job's state before it returns."""

    machine: Machine
    save: Callable[[str, JobState], None]
    throttle_percent: Callable[[], int]
    attempts: dict[str, Attempts] = field(default_factory=dict)
    in_force: dict[str, InForce] = field(default_factory=dict)

    def ensure(
        self, job: api.CriticalJob, state: JobState, wanted: Wanted, now_ns: int
    ) -> tuple[JobState, list[Told]]:
        """One container as it should be; the job's state after it, and what to tell."""
        if state.adjustment is Adjustment.EVICTED:
            if wanted.address in self.machine.found():
                self.stop(wanted)
            return state, []
        if self.machine.members(wanted.address):
            self._adjust(state, wanted)
            self._prioritise(wanted)
            return state, []
        return self._not_running(job, state, wanted, now_ns)

    def _not_running(
        self, job: api.CriticalJob, state: JobState, wanted: Wanted, now_ns: int
    ) -> tuple[JobState, list[Told]]:
        name, told = wanted.address.container, []
        if name in state.ended:
            return state, []
        attempts = self.attempts.setdefault(wanted.address.id, Attempts())
        if name in state.begun and attempts.started_ns >= 0 and wanted.address in self.machine.found():
            status = self.machine.stop(wanted.address, grace_s=0)
            self.in_force.pop(wanted.address.id, None)
            words = "unknown" if status is None else str(status)
            again = job.spec.restart == "always" or (job.spec.restart == "on-failure" and status != 0)
            told.append(
                Told("info" if status == 0 else "warning", "Ended", f"{name} ended with status {words}")
            )
            if not again:
                state = replace(state, ended={**state.ended, name: status})
                self.save(wanted.job, state)
                return state, told
            if now_ns - attempts.started_ns > STEADY_NS:
                attempts.count = 0
            attempts.not_before_ns = now_ns + BACKOFF_NS[min(attempts.count, len(BACKOFF_NS) - 1)]
        if now_ns < attempts.not_before_ns:
            return state, told
        return self._start(state, wanted, attempts, now_ns, told)

    def _start(
        self, state: JobState, wanted: Wanted, attempts: Attempts, now_ns: int, told: list[Told]
    ) -> tuple[JobState, list[Told]]:
        name = wanted.address.container
        state = state.having_begun(name)
        self.save(wanted.job, state)
        attempts.count += 1
        attempts.started_ns = now_ns
        try:
            prepare_records(wanted)
            pid = self.machine.start(wanted.address, wanted.launch, wanted.reservation)
        except (K40sError, OSError) as error:
            attempts.not_before_ns = now_ns + BACKOFF_NS[min(attempts.count, len(BACKOFF_NS) - 1)]
            if str(error) != state.trouble:
                told.append(Told("warning", "StartFailed", f"{name}: {error}"))
            return replace(state, trouble=str(error)), told
        told.append(Told("info", "Started", f"{name} runs as process {pid}"))
        state = replace(state, trouble="")
        self._adjust(state, wanted)
        return state, told

    def _adjust(self, state: JobState, wanted: Wanted) -> None:
        """Freeze, limit and budget, as the adjustment says; nothing is written that is in force."""
        target = self.target(state.adjustment, wanted)
        known = self.in_force.get(wanted.address.id)
        if target == known:
            return
        if target.frozen:
            self.machine.freeze(wanted.address)
        self.machine.limit_cpu(wanted.address, target.cpu_milli)
        if wanted.reservation.budget is not None:
            self.machine.set_budgets({wanted.address: target.budget})
        if not target.frozen:
            self.machine.thaw(wanted.address)
        self.in_force[wanted.address.id] = target

    def target(self, adjustment: Adjustment, wanted: Wanted) -> InForce:
        """What should be in force on a container of a job with this adjustment."""
        limit, budget = wanted.reservation.cpu_milli, wanted.reservation.budget
        match adjustment:
            case Adjustment.THROTTLED:
                base = limit if limit is not None else 1000
                return InForce(False, max(LEAST_MILLI, base * self.throttle_percent() // 100), budget)
            case Adjustment.DEGRADED if budget is not None:
                # A frozen container keeps its budget: the kernel gives it to nobody else while it does not run.
                frozen = wanted.budget_hi is None
                return InForce(frozen, limit, budget if frozen else wanted.budget_hi)
            case Adjustment.DEGRADED:
                return InForce(wanted.degraded_milli is None, wanted.degraded_milli or limit, budget)
            case Adjustment.FROZEN:
                return InForce(True, limit, budget)
            case _:
                return InForce(False, limit, budget)

    def reassert(self, wanted: Wanted) -> None:
        """Set again what somebody else may have changed."""
        self.in_force.pop(wanted.address.id, None)

    def _prioritise(self, wanted: Wanted) -> None:
        """Each task's thread under its own priority, once it has told which thread it is."""
        if sum(task.priority is not None for task in wanted.tasks) < 2:
            return  # one task: the container's policy is its own
        threads = {
            inside: tid
            for pid in self.machine.members(wanted.address)
            for tid in self.machine.scheduling.threads(pid)
            for inside in (tid, innermost_tid(pid, tid))
        }
        for task in wanted.tasks:
            record = read_record(task.record)
            tid = threads.get(record.tid) if record is not None and record.tid else None
            if tid is not None and task.priority is not None:
                self._set_priority(tid, task)

    def _set_priority(self, tid: int, task: WatchedTask) -> None:
        try:
            if self.machine.scheduling.policy(tid) != Fifo(task.priority or 1):
                self.machine.scheduling.set_policy(tid, Fifo(task.priority or 1))
        except KernelRefused:
            return  # the thread has just ended

    def stop(self, wanted: Wanted, grace_s: float = GRACE_S) -> None:
        """Stop one container and forget what was in force on it."""
        self.machine.stop(wanted.address, grace_s)
        self.in_force.pop(wanted.address.id, None)
        self.attempts.pop(wanted.address.id, None)

    def forget(self, wanted: Wanted) -> None:
        """Remove what a deleted container leaves on disk but its log."""
        if wanted.tasks:
            shutil.rmtree(wanted.tasks[0].record.parent, ignore_errors=True)


def prepare_records(wanted: Wanted) -> None:
    """Task records of fixed size, written by the job, in a folder in which it can make nothing else."""
    folder = None
    for task in wanted.tasks:
        folder = task.record.parent
        folder.mkdir(parents=True, exist_ok=True)
        for part in (folder, folder.parent):
            part.chmod(0o755)
        head = empty_record(task.name, task.period_ns, task.deadline_ns, task.wcet_ns)
        fresh = task.record.with_suffix(".new")
        fresh.write_bytes(head + bytes(FILE_BYTES - len(head)))
        os.chown(fresh, wanted.launch.user, wanted.launch.user_group)
        fresh.replace(task.record)
    if folder is None:
        for mount in wanted.launch.mounts:
            mount.outside.mkdir(parents=True, exist_ok=True)


def innermost_tid(pid: int, tid: int) -> int:
    """A thread's id as the container sees it."""
    try:
        with open(f"/proc/{pid}/task/{tid}/status") as status:  # noqa: PTH123 - read on every tick
            for line in status:
                if line.startswith("NSpid:"):
                    return int(line.split()[-1])
    except OSError:
        pass
    return tid
