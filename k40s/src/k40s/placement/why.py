"""Why a job cannot run: for each node the first thing that stands in the way, and for each core its verdict."""

from collections.abc import Iterator

from k40s.analysis.verdict import Proved
from k40s.api.quantity import format_cpu, format_size
from k40s.assurance.overcommit import Amounts, overcommit_points
from k40s.assurance.score import MOST_MILLIPOINTS, gamma_millipoints
from k40s.placement.core import core_verdict
from k40s.placement.demand import Demand
from k40s.placement.reservation import NotSized, Reservation
from k40s.placement.snapshot import Node, Occupancy, Snapshot, amounts_with


def has_labels_and_devices(node: Node, occupancy: Occupancy, demand: Demand) -> bool:
    """Whether the selector matches and enough devices are free."""
    return all(node.labels.get(key) == value for key, value in demand.selector.items()) and all(
        occupancy.devices.get(device, 0) + count <= node.devices.get(device, 0)
        for device, count in demand.devices.items()
    )


def why_not(snapshot: Snapshot, demand: Demand) -> Iterator[str]:
    """A line for each node, and for each core of a node that fails there."""
    for node, occupancy in zip(snapshot.nodes, snapshot.occupied, strict=True):
        for line in why_not_on(node, occupancy, demand):
            yield f"{node.name}: {line}"


def why_not_on(node: Node, occupancy: Occupancy, demand: Demand) -> Iterator[str]:
    """Everything on one node that stands in the way of one replica, links aside; one line at least."""
    if not node.ready:
        yield "takes no new jobs"
    for key, value in demand.selector.items():
        if node.labels.get(key) != value:
            yield f"label {key} is {node.labels.get(key, 'missing')}, wanted is {value}"
    for device, count in demand.devices.items():
        free = node.devices.get(device, 0) - occupancy.devices.get(device, 0)
        if free < count:
            yield f"{free} of device {device} are free, wanted are {count}"
    reservations = demand.reservations_on(node.node_class, node.wakeup_ns)
    if isinstance(reservations, NotSized):
        yield reservations.reason
        return
    request, limit = amounts_with(demand, node.capacity, [held for _, held in reservations])
    lines = [*_room(node, occupancy, request), *_assurance(node, occupancy, demand, request, limit)]
    lines += _cores(node, occupancy, reservations)
    yield from lines or ["could take it; its links, or the number of replicas, stand in the way"]


def _room(node: Node, occupancy: Occupancy, request: Amounts) -> Iterator[str]:
    free = node.capacity - occupancy.used
    if request.cpu_milli > free.cpu_milli:
        yield f"{format_cpu(free.cpu_milli)} CPU are free, wanted are {format_cpu(request.cpu_milli)}"
    if request.memory_bytes > free.memory_bytes:
        yield f"{format_size(free.memory_bytes)} memory are free, wanted are {format_size(request.memory_bytes)}"


def _assurance(
    node: Node, occupancy: Occupancy, demand: Demand, request: Amounts, limit: Amounts
) -> Iterator[str]:
    points = overcommit_points(occupancy.load.with_job(demand.criticality, request, limit), node.capacity)
    after = node.trust + gamma_millipoints(points, node.scale_ppm)
    score = after / MOST_MILLIPOINTS
    if after < demand.floor:
        yield f"assurance would be {score:.4f}, the job needs {demand.floor / MOST_MILLIPOINTS:.4f}"
    elif after < occupancy.floor:
        yield f"assurance would fall to {score:.4f}, a job there needs {occupancy.floor / MOST_MILLIPOINTS:.4f}"


def _cores(
    node: Node, occupancy: Occupancy, reservations: tuple[tuple[str, Reservation], ...]
) -> Iterator[str]:
    """Each core's verdict with each workload, where no core would do; workloads that fit take their core first."""
    cores = list(occupancy.cores)
    for workload, reservation in reservations:
        verdicts = [core_verdict((*core, reservation), node.share) for core in cores]
        fits = [at for at, verdict in enumerate(verdicts) if isinstance(verdict, Proved)]
        if fits:
            cores[fits[0]] = (*cores[fits[0]], reservation)
            continue
        for at, verdict in enumerate(verdicts):
            yield f"core {node.number_of(at)}: {workload}: {verdict}"
