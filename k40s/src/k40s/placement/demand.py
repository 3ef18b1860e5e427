"""A CriticalJob as placement sees it: integers, ready to be compared with what nodes have."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from k40s import api
from k40s.assurance.overcommit import Amounts
from k40s.assurance.score import millipoints_for
from k40s.placement.reservation import Need, NotSized, Reservation, need_of, reserve_for


@dataclass(frozen=True, slots=True)
class WorkloadNeed:
    """One container or command: its tasks by node class; a task without WCET on a class is in `lacking`."""

    name: str
    needs: Mapping[str, tuple[Need, ...]]
    lacking: Mapping[str, tuple[str, ...]]
    tasks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Demand:
    """What one replica of a job needs, and how many replicas there must be."""

    job: str
    """`namespace/name`."""
    criticality: api.Level
    floor: int
    """Least assurance of its node after placement, in thousandths of a point."""
    request: Amounts
    limit_cpu_milli: int | None
    """Absent: a whole node."""
    limit_memory_bytes: int | None
    devices: Mapping[str, int] = field(default_factory=dict)
    selector: Mapping[str, str] = field(default_factory=dict)
    workloads: tuple[WorkloadNeed, ...] = ()
    flows: tuple[api.Flow, ...] = ()
    redundancy: api.Redundancy = field(default_factory=api.Redundancy)

    def limit_on(self, capacity: Amounts) -> Amounts:
        """The limit as the over-commit rules count it on a node of that capacity."""
        return Amounts(
            capacity.cpu_milli if self.limit_cpu_milli is None else self.limit_cpu_milli,
            capacity.memory_bytes if self.limit_memory_bytes is None else self.limit_memory_bytes,
        )

    def reservations_on(
        self, node_class: str, wakeup_ns: int
    ) -> tuple[tuple[str, Reservation], ...] | NotSized:
        """Server needs of each workload that has any there, largest first; `NotSized` says why it cannot run there.

        A HI job must have a WCET for every task. A LO job without them runs there without servers, and a NO job always
        does.
        """
        if self.criticality is api.Level.NO:
            return ()
        reservations = []
        for workload in self.workloads:
            lacking = workload.lacking.get(node_class, () if node_class in workload.needs else workload.tasks)
            if lacking and self.criticality is api.Level.HI:
                return NotSized(f"HI job without WCET of {', '.join(lacking)} for node class {node_class}")
            if lacking or not workload.tasks:
                continue
            reservation = reserve_for(workload.needs[node_class], self.criticality, wakeup_ns)
            if isinstance(reservation, NotSized):
                return NotSized(f"{workload.name}: {reservation.reason}")
            reservations.append((workload.name, reservation))
        return tuple(sorted(reservations, key=lambda item: -item[1].share))


def demand_of(job: api.CriticalJob) -> Demand:
    """The demand of a valid job."""
    spec = job.spec
    resources = [workload.resources for workload in spec.workloads]
    cpu_limits = [part.limits.cpu_milli for part in resources]
    memory_limits = [part.limits.memory_bytes for part in resources]
    devices: dict[str, int] = {}
    for part in resources:
        for device, count in part.devices.items():
            devices[device] = devices.get(device, 0) + count
    return Demand(
        job=f"{job.metadata.namespace}/{job.metadata.name}",
        criticality=spec.criticality,
        floor=millipoints_for(spec.assurance_floor),
        request=Amounts(
            sum(part.requests.cpu_milli for part in resources),
            sum(part.requests.memory_bytes for part in resources),
        ),
        limit_cpu_milli=_total(cpu_limits),
        limit_memory_bytes=_total(memory_limits),
        devices=devices,
        selector=spec.node_selector,
        workloads=tuple(_workload(workload, spec.criticality) for workload in spec.workloads),
        flows=spec.flows,
        redundancy=spec.redundancy,
    )


def _total(limits: list[int | None]) -> int | None:
    known = [limit for limit in limits if limit is not None]
    return sum(known) if len(known) == len(limits) else None


def _workload(workload: api.Container | api.Command, level: api.Level) -> WorkloadNeed:
    classes = {node_class for task in workload.tasks for node_class in task.wcet}
    needs = {
        node_class: tuple(
            need_of(task, task.wcet[node_class], level) for task in workload.tasks if node_class in task.wcet
        )
        for node_class in classes
    }
    lacking = {
        node_class: tuple(task.name for task in workload.tasks if node_class not in task.wcet)
        for node_class in classes
    }
    return WorkloadNeed(workload.name, needs, lacking, tuple(task.name for task in workload.tasks))
