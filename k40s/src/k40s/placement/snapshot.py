"""Nodes, their cores and links, and what is placed on them: one immutable state of the world.

`reserve` and `unreserve` give a new snapshot and leave the old one as it was; both may be repeated. Beside the
objects a snapshot keeps a table of integers, a column for each node, from which `filters` and `scorers` judge
all nodes at once.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from k40s.api.level import Level
from k40s.assurance.overcommit import NOTHING, Amounts, Load, overcommit_points
from k40s.assurance.score import gamma_millipoints
from k40s.errors import Conflict, NotFound
from k40s.placement import links
from k40s.placement.demand import Demand
from k40s.placement.links import ByLink, PlacedFlow
from k40s.placement.reservation import NotSized, Reservation

PPB = 1_000_000_000

Table = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Node:
    """What a node is: nothing here changes by placing a job."""

    name: str
    node_class: str
    capacity: Amounts
    """For jobs: what the system keeps for itself is already taken off."""
    cores: int
    """Cores that may carry servers, numbered as in `core_numbers`."""
    trust: int
    """Alpha and beta, in thousandths of a point."""
    scale_ppm: int = 1_000_000
    """What run-time evidence leaves of the over-commit points."""
    core_numbers: tuple[int, ...] = ()
    """The machine's numbers of those cores; empty: 0 to cores - 1."""
    share: Fraction = Fraction(19, 20)
    """Largest share of a core that servers may take."""
    wakeup_ns: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    devices: Mapping[str, int] = field(default_factory=dict)
    uplink_bps: int | None = None
    """Rate of its one full-duplex link to the switch; absent: no flow may cross it."""
    propagation_ns: int = 0
    ready: bool = True
    """Takes new jobs."""

    def number_of(self, core: int) -> int:
        """The machine's number of a core."""
        return self.core_numbers[core] if self.core_numbers else core


@dataclass(frozen=True, slots=True)
class Seat:
    """A place for one replica: its node, and a core for each workload that has servers."""

    node: str
    cores: tuple[tuple[str, int, Reservation], ...]
    """Workload, core (0-based on the node), its servers."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where each replica of a job runs."""

    job: str
    seats: tuple[Seat, ...]


@dataclass(frozen=True, slots=True)
class Occupancy:
    """What is placed on one node."""

    cores: tuple[tuple[Reservation, ...], ...]
    load: Load = field(default_factory=Load)
    used: Amounts = NOTHING
    """Sum of all requests."""
    floors: tuple[int, ...] = ()
    """Assurance that each job here needs, sorted."""
    devices: Mapping[str, int] = field(default_factory=dict)
    jobs: tuple[str, ...] = ()

    @property
    def floor(self) -> int:
        """Most that any job here needs, in thousandths of a point."""
        return self.floors[-1] if self.floors else 0


# Rows of the table: one integer for each node.
CAP_CPU, CAP_MEM, USED_CPU, USED_MEM = 0, 1, 2, 3
CPU, MEM = 4, 9  # from each on: R_NO, R_LO, L_NO, L_LO, L_HI
R_NO, R_LO, L_NO, L_LO, L_HI = range(5)
TRUST, SCALE, FLOOR, READY, CLASS, FREE_PPB, TAKEN_PPB, CORES, WAKEUP = range(14, 23)
ROWS = 23


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All nodes and what is on them."""

    nodes: tuple[Node, ...]
    occupied: tuple[Occupancy, ...]
    placed: dict[str, tuple[Demand, Placement]]
    """Written by nobody: a dict for its `copy`, several times faster than any other way once jobs have left."""
    flows: ByLink
    """Flows on each link, e.g. `n1/up`."""
    senders: dict[str, frozenset[str]]
    """Placed jobs that send to a job, by that job's name."""
    table: Table
    classes: tuple[str, ...]
    """Node classes; the table holds their index."""

    index: Mapping[str, int]
    """Position of each node by its name."""
    wakeups: Mapping[str, tuple[int, ...]]
    """Wake-up latencies that occur in each class, in nanoseconds."""

    def occupancy(self, node: str) -> Occupancy:
        return self.occupied[self.index[node]]

    def millipoints(self, node: str) -> int:
        """The node's assurance now, in thousandths of a point."""
        at = self.index[node]
        points = overcommit_points(self.occupied[at].load, self.nodes[at].capacity)
        return self.nodes[at].trust + gamma_millipoints(points, self.nodes[at].scale_ppm)


def snapshot_of(nodes: Iterable[Node]) -> Snapshot:
    """Empty nodes, in the order given; names must differ. Raises Conflict."""
    given = tuple(nodes)
    if len({node.name for node in given}) != len(given):
        raise Conflict("two nodes have the same name; give each its own")
    occupied = tuple(Occupancy(cores=((),) * node.cores) for node in given)
    classes = tuple(sorted({node.node_class for node in given}))
    table = np.zeros((ROWS, len(given)), dtype=np.int64)
    for at, (node, occupancy) in enumerate(zip(given, occupied, strict=True)):
        _fill(table, at, node, occupancy, classes)
    table.setflags(write=False)
    return Snapshot(
        nodes=given,
        occupied=occupied,
        placed={},
        flows={},
        senders={},
        table=table,
        classes=classes,
        index={node.name: at for at, node in enumerate(given)},
        wakeups=_wakeups(given),
    )


def _wakeups(nodes: Iterable[Node]) -> dict[str, tuple[int, ...]]:
    found: dict[str, set[int]] = {}
    for node in nodes:
        found.setdefault(node.node_class, set()).add(node.wakeup_ns)
    return {node_class: tuple(sorted(latencies)) for node_class, latencies in found.items()}


def with_nodes(snapshot: Snapshot, changed: Iterable[Node]) -> Snapshot:
    """The snapshot with some nodes' facts replaced (assurance, readiness); names and core counts stay.

    Raises NotFound for a name it does not have, Conflict for a change of cores.
    """
    nodes = list(snapshot.nodes)
    table = snapshot.table.copy()
    classes, wakeups = snapshot.classes, snapshot.wakeups
    for node in changed:
        at = snapshot.index.get(node.name)
        if at is None:
            raise NotFound(f"node {node.name} is not in the snapshot; known are {len(nodes)} others")
        if (node.cores, node.node_class) != (nodes[at].cores, nodes[at].node_class):
            raise Conflict(f"node {node.name} changed its cores or class; take a new snapshot")
        nodes[at] = node
        _fill(table, at, node, snapshot.occupied[at], classes)
        if node.wakeup_ns not in wakeups[node.node_class]:
            wakeups = _wakeups(nodes)
    table.setflags(write=False)
    return replace(snapshot, nodes=tuple(nodes), table=table, wakeups=wakeups)


def narrowed(snapshot: Snapshot, names: Iterable[str]) -> Snapshot:
    """The snapshot as if there were only some of its nodes: to ask about them what costs time for all. Flows and
    placed jobs are those of all nodes, so nothing may be reserved in it."""
    at = sorted(snapshot.index[name] for name in names)
    nodes = tuple(snapshot.nodes[one] for one in at)
    return replace(
        snapshot,
        nodes=nodes,
        occupied=tuple(snapshot.occupied[one] for one in at),
        table=snapshot.table[:, at],
        index={node.name: number for number, node in enumerate(nodes)},
    )


def _fill(table: Table, at: int, node: Node, occupancy: Occupancy, classes: tuple[str, ...]) -> None:
    """Writes one node's column."""
    load, used = occupancy.load, occupancy.used
    sums = (load.requests[Level.NO], load.requests[Level.LO], *load.limits)
    taken = [sum(held.share_ppb for held in core) for core in occupancy.cores]
    most = -(-node.share.numerator * PPB // node.share.denominator)
    # Shares are rounded down and the limit up: what is left only ever rules out what is surely too much.
    free = max((most - share for share in taken), default=0)
    table[:, at] = (
        *(node.capacity.cpu_milli, node.capacity.memory_bytes, used.cpu_milli, used.memory_bytes),
        *(amounts.cpu_milli for amounts in sums),
        *(amounts.memory_bytes for amounts in sums),
        *(node.trust, node.scale_ppm, occupancy.floor, int(node.ready), classes.index(node.node_class)),
        -(
            -free.numerator * PPB // free.denominator
        ),  # rounded up: it only ever rules out what is surely too much
        sum(taken),
        node.cores,
        node.wakeup_ns,
    )


def amounts_on(demand: Demand, node: Node) -> tuple[Amounts, Amounts] | NotSized:
    """Request and limit of one replica there; what servers reserve is requested even if the job asks for less."""
    reservations = demand.reservations_on(node.node_class, node.wakeup_ns)
    if isinstance(reservations, NotSized):
        return reservations
    return amounts_with(demand, node.capacity, [reservation for _, reservation in reservations])


def amounts_with(
    demand: Demand, capacity: Amounts, reservations: Iterable[Reservation]
) -> tuple[Amounts, Amounts]:
    """As `amounts_on`, for known reservations."""
    served = served_milli(reservations)
    limit = demand.limit_on(capacity)
    return (
        Amounts(max(demand.request.cpu_milli, served), demand.request.memory_bytes),
        Amounts(max(limit.cpu_milli, served), limit.memory_bytes),
    )


def served_milli(reservations: Iterable[Reservation]) -> int:
    """Thousandths of a core that servers take at most, each rounded up."""
    return sum(-(-1000 * held.share.numerator // held.share.denominator) for held in reservations)


def reserve(snapshot: Snapshot, demand: Demand, placement: Placement) -> Snapshot:
    """The world with the job placed. Doing it again changes nothing; Conflict if the job stands elsewhere."""
    if (there := snapshot.placed.get(demand.job)) is not None:
        if there[1] != placement:
            raise Conflict(f"job {demand.job} is placed elsewhere; unreserve it first")
        return snapshot
    placed = snapshot.placed.copy()
    placed[demand.job] = (demand, placement)
    return _settled(snapshot, demand, placement, placed, adding=True)


def unreserve(snapshot: Snapshot, job: str) -> Snapshot:
    """The world without the job; flows towards it end at their own uplink again. Doing it again changes nothing."""
    if job not in snapshot.placed:
        return snapshot
    placed = snapshot.placed.copy()
    demand, placement = placed.pop(job)
    return _settled(snapshot, demand, placement, placed, adding=False)


def _settled(
    snapshot: Snapshot,
    demand: Demand,
    placement: Placement,
    placed: dict[str, tuple[Demand, Placement]],
    adding: bool,
) -> Snapshot:
    """The world with the job's seats and flows added or gone. What a job leaves alone is shared."""
    senders, flows = snapshot.senders, snapshot.flows
    if peers := peers_of(demand):
        senders = senders.copy()
        for peer in peers:
            before = senders.get(peer, frozenset())
            senders[peer] = before | {demand.job} if adding else before - {demand.job}
    gone, fresh = rerouted(snapshot, demand, placement if adding else None)
    if gone or fresh:
        flows = links.together(links.without(flows, gone), fresh)
    moved = replace(snapshot, placed=placed, flows=flows, senders=senders)
    return _changed(moved, demand, placement, adding)


def peers_of(demand: Demand) -> set[str]:
    """Jobs that it sends to."""
    return {peer for flow in demand.flows if (peer := links.peer_of(demand.job, flow))}


def rerouted(
    snapshot: Snapshot, demand: Demand, placement: Placement | None
) -> tuple[list[PlacedFlow], list[PlacedFlow]]:
    """Flows that go and that come when the job is placed so (None: nowhere): its own, and those sent to it."""
    here = [seat.node for seat in placement.seats] if placement else []

    def nodes_of(job: str) -> list[str]:
        if job == demand.job:
            return here
        return [seat.node for seat in snapshot.placed[job][1].seats] if job in snapshot.placed else []

    gone: list[PlacedFlow] = []
    fresh: list[PlacedFlow] = []
    for sender in snapshot.senders.get(demand.job, frozenset()) | {demand.job}:
        before = [seat.node for seat in snapshot.placed[sender][1].seats] if sender in snapshot.placed else []
        ours = {
            id(f): f for node in before for f in snapshot.flows.get(links.up(node), ()) if f.job == sender
        }
        gone += [flow for flow in ours.values() if demand.job in (sender, flow.peer)]
        sending = demand if sender == demand.job else snapshot.placed[sender][0]
        for flow in sending.flows:
            if demand.job in (sender, links.peer_of(sender, flow)):
                fresh += links.route(sender, flow, nodes_of(sender), nodes_of)
    return gone, fresh


def _changed(snapshot: Snapshot, demand: Demand, placement: Placement, adding: bool) -> Snapshot:
    occupied = list(snapshot.occupied)
    table = snapshot.table.copy()
    for seat in placement.seats:
        at = snapshot.index[seat.node]
        node = snapshot.nodes[at]
        occupied[at] = _with_seat(occupied[at], node, demand, seat, adding)
        _fill(table, at, node, occupied[at], snapshot.classes)
    table.setflags(write=False)
    return replace(snapshot, occupied=tuple(occupied), table=table)


def _with_seat(occupancy: Occupancy, node: Node, demand: Demand, seat: Seat, adding: bool) -> Occupancy:
    request, limit = amounts_with(demand, node.capacity, [held for _, _, held in seat.cores])
    cores = [list(core) for core in occupancy.cores]
    floors, jobs, devices = list(occupancy.floors), list(occupancy.jobs), dict(occupancy.devices)
    for _, core, reservation in seat.cores:
        (cores[core].append if adding else cores[core].remove)(reservation)
    (floors.append if adding else floors.remove)(demand.floor)
    (jobs.append if adding else jobs.remove)(demand.job)
    for device, count in demand.devices.items():
        devices[device] = devices.get(device, 0) + (count if adding else -count)
    load = occupancy.load
    changed = load.with_job if adding else load.without_job
    return Occupancy(
        cores=tuple(tuple(core) for core in cores),
        load=changed(demand.criticality, request, limit),
        used=occupancy.used + request if adding else occupancy.used - request,
        floors=tuple(sorted(floors)),
        devices=devices,
        jobs=tuple(jobs),
    )
