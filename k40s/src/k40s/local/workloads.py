"""From a job and its seat to what `node` is told: groups, budgets, limits, commands, task records, flows. Pure but for
images, which are handed in unpacked.

Who is served how: a workload with servers runs under SCHED_FIFO inside its budget on its core; one without runs in the
fair class, weighted by its level and its request. SCHED_DEADLINE cannot be pinned to a core without a cpuset that
nobody overlaps, which is not ours to make; a job that asks for it is refused here, not run differently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from k40s import api
from k40s.errors import Unsupported
from k40s.local.config import Config
from k40s.node.budgets import RtBudget
from k40s.node.capabilities import Feature, Found
from k40s.node.images import Image
from k40s.node.launchers import Launch, Mount
from k40s.node.links import FlowClass
from k40s.node.machine import FAIR, Address, Reservation
from k40s.node.scheduling import Fifo
from k40s.placement import NotSized, Seat, demand_of
from k40s.placement import Reservation as Servers
from k40s.task import DIRECTORY_VARIABLE

TASKS_INSIDE = "/run/k40s"
PIDS_BY_LEVEL = {api.Level.HI: 256, api.Level.LO: 512, api.Level.NO: 512}


@dataclass(frozen=True, slots=True)
class WatchedTask:
    """A task whose record is read: its deadline, C(LO) on this node and kernel priority (None: fair)."""

    name: str
    record: Path
    period_ns: int
    deadline_ns: int
    wcet_ns: int
    priority: int | None


@dataclass(frozen=True, slots=True)
class Wanted:
    """One container that should run, with all that it should have."""

    job: str
    """`namespace/name`."""
    address: Address
    level: api.Level
    launch: Launch
    reservation: Reservation
    budget_hi: RtBudget | None
    """In mode HI; for a LO job None or nothing means that it has no guarantee then."""
    request_milli: int
    request_bytes: int
    degraded_milli: int | None
    core: int | None
    tasks: tuple[WatchedTask, ...]


def job_label(metadata: api.ObjectMeta) -> str:
    """A job's part of group names; the default namespace is left out."""
    return metadata.name if metadata.namespace == "default" else f"{metadata.namespace}.{metadata.name}"


def needs_of(job: api.CriticalJob) -> Mapping[Feature, str]:
    """What the job needs of the machine, and what for."""
    needs = {Feature.FREEZER: "every job can be frozen", Feature.PROCESS_LIMITS: "every job is limited"}
    spec = job.spec
    if spec.criticality is not api.Level.NO and spec.tasks:
        needs[Feature.RT_BUDGETS] = "its tasks are served by budgets"
        needs[Feature.FIFO] = "its tasks run under SCHED_FIFO"
        needs[Feature.PINNING] = "its servers belong to one core"
    if spec.containers:
        needs[Feature.CONTAINERS] = "it has containers"
    if spec.flows:
        needs[Feature.FLOW_RATES] = "its flows are guaranteed rates"
    if any(workload.resources.limits.memory_bytes is not None for workload in spec.workloads):
        needs[Feature.MEMORY_LIMITS] = "it has a memory limit"
    return needs


def lacking(
    job: api.CriticalJob, features: Mapping[Feature, Found], is_present: Callable[[Found], bool]
) -> list[str]:
    """Why this machine cannot run the job at all; empty when it can."""
    reasons = [
        f"this machine lacks {feature.value} ({features[feature].found}), which the job needs: {why}"
        for feature, why in needs_of(job).items()
        if not is_present(features[feature])
    ]
    reasons += [
        f"task {task.name}: policy deadline cannot be pinned to one core here; use fifo"
        for task in job.spec.tasks
        if task.policy is api.Policy.DEADLINE
    ]
    return reasons


def budget_of(servers: Servers, mode: api.Level) -> RtBudget | None:
    """The group budget in a mode, in whole microseconds, rounded up; None for nothing."""
    for server in servers.servers:
        if not server.by_deadline:
            budget_ns = server.budget_ns if mode is api.Level.LO or server.high else server.budget_hi_ns
            return RtBudget(-(-budget_ns // 1000), server.period_ns // 1000) if budget_ns else None
    return None


def wanted_of(
    job: api.CriticalJob,
    seat: Seat,
    node_class: api.NodeClass,
    config: Config,
    user: int,
    image_of: Callable[[Path], Image],
) -> tuple[Wanted, ...]:
    """The containers of a job that is placed here and runs as `user`. `Unsupported` for what this mode cannot do."""
    on_core = {workload: (core, servers) for workload, core, servers in seat.cores}
    numbers = node_class.spec.server_cores
    label = job_label(job.metadata)
    found = []
    for workload in job.spec.workloads:
        address = Address(job.spec.criticality.name, label, workload.name)
        core, servers = on_core.get(workload.name, (None, None))
        records = config.records / address.id
        tasks = _tasks(workload, servers, node_class.metadata.name, records)
        number = None if core is None else numbers[core]
        found.append(
            Wanted(
                job=demand_of(job).job,
                address=address,
                level=job.spec.criticality,
                launch=_launch(workload, address, config, user, records, image_of),
                reservation=_reservation(workload, job.spec.criticality, number, servers, tasks),
                budget_hi=budget_of(servers, api.Level.HI) if servers else None,
                request_milli=workload.resources.requests.cpu_milli,
                request_bytes=workload.resources.requests.memory_bytes,
                degraded_milli=workload.resources.degraded_cpu_milli,
                core=number,
                tasks=tasks,
            )
        )
    return tuple(found)


def _tasks(
    workload: api.Container | api.Command, servers: Servers | None, node_class: str, records: Path
) -> tuple[WatchedTask, ...]:
    priorities = dict(servers.priorities) if servers else {}
    return tuple(
        WatchedTask(
            name=task.name,
            record=records / f"{task.name}.task",
            period_ns=task.period_ns,
            deadline_ns=task.relative_deadline_ns,
            wcet_ns=task.wcet[node_class].lo_ns if node_class in task.wcet else 0,
            priority=priorities.get(task.name),
        )
        for task in workload.tasks
    )


def _reservation(
    workload: api.Container | api.Command,
    level: api.Level,
    core: int | None,
    servers: Servers | None,
    tasks: tuple[WatchedTask, ...],
) -> Reservation:
    limits, requests = workload.resources.limits, workload.resources.requests
    budget = budget_of(servers, api.Level.LO) if servers else None
    known = [task.priority for task in tasks if task.priority is not None]
    return Reservation(
        cores=frozenset() if core is None else frozenset({core}),
        budget=budget,
        # Threads that are no task, and tasks before their first period, run below all tasks of the container.
        policy=Fifo(min(known)) if budget and known else FAIR,
        cpu_milli=limits.cpu_milli,
        weight_milli=max(1, requests.cpu_milli or 100),
        memory_bytes=limits.memory_bytes,
        pids_most=PIDS_BY_LEVEL[level],
    )


def _launch(
    workload: api.Container | api.Command,
    address: Address,
    config: Config,
    user: int,
    records: Path,
    image_of: Callable[[Path], Image],
) -> Launch:
    group, log = address.group(config.cgroup_root), config.state / "logs" / f"{address.id}.log"
    if isinstance(workload, api.Command):
        return Launch(
            id=address.id,
            argv=tuple(workload.command or ()),
            group=group,
            log=log,
            env={**workload.env, DIRECTORY_VARIABLE: str(records)},
            cwd=workload.working_dir or "/",
            user=user,
            user_group=user,
        )
    image = _image(workload, image_of)
    return Launch(
        id=address.id,
        argv=tuple(workload.command or image.argv),
        group=group,
        log=log,
        env={**image.env, **workload.env, DIRECTORY_VARIABLE: TASKS_INSIDE},
        cwd=workload.working_dir or image.cwd,
        user=user,
        user_group=user,
        rootfs=image.rootfs,
        mounts=(Mount(records, TASKS_INSIDE, writable=True),),
    )


def _image(container: api.Container, image_of: Callable[[Path], Image]) -> Image:
    if container.root_fs is not None:
        return Image(Path(container.root_fs), (), {}, "/")
    layout = Path(str(container.image))
    if not layout.is_dir():
        raise Unsupported(
            f"container {container.name}: image {container.image!r} is no folder; without a cluster nothing is "
            "pulled, give the folder of an OCI image layout"
        )
    return image_of(layout)


def seat_from(
    job: api.CriticalJob, cores: Mapping[str, int], node: str, node_class: api.NodeClass
) -> Seat | None:
    """The seat that was decided before, from the cores that were kept; None when the job has changed since."""
    reserved = demand_of(job).reservations_on(node_class.metadata.name, node_class.spec.wakeup_latency_ns)
    if isinstance(reserved, NotSized) or {workload for workload, _ in reserved} != set(cores):
        return None
    return Seat(node, tuple((workload, cores[workload], servers) for workload, servers in reserved))


def flows_of(jobs: Iterable[api.CriticalJob]) -> tuple[FlowClass, ...]:
    """The classes that a machine's uplink needs: flows to addresses outside. Flows between its own jobs stay inside."""
    return tuple(
        FlowClass(
            flow=f"{job_label(job.metadata)}/{flow.name}",
            dscp=flow.effective_dscp,
            rate_bps=flow.rate_bps,
            ceil_bps=flow.rate_bps,
            burst_bytes=flow.burst_bytes,
            priority=min(6, 7 - flow.effective_pcp),
            peer=flow.peer.address,
        )
        for job in jobs
        for flow in job.spec.flows
        if flow.peer.address is not None
    )
