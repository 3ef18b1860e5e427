"""The online decision: filter, score, prove, one job at a time.

`place` takes the best-scored node whose cores, devices and links are all proved for the job, or says why there is none.
Nothing is skipped for speed: nodes are ruled out by `filters` exactly, and verdicts about equal cores are looked up.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from k40s.analysis.verdict import Proved, Verdict
from k40s.api.job import RedundancyMode
from k40s.assurance.score import MOST_MILLIPOINTS, millipoints_for
from k40s.placement import links, why
from k40s.placement.core import core_verdict
from k40s.placement.demand import Demand
from k40s.placement.filters import View, view
from k40s.placement.redundancy import dependability
from k40s.placement.reservation import NotSized, Reservation
from k40s.placement.scorers import ASSURANCE_WASTE, Scorer
from k40s.placement.snapshot import Node, Occupancy, Placement, Seat, Snapshot, rerouted

MOST_REPLICAS = 15


@dataclass(frozen=True, slots=True)
class Refusal:
    """The job cannot be placed. `lines` says for each node, and core where it comes to that, why; worked out on
    demand."""

    demand: Demand
    snapshot: Snapshot
    summary: str

    def lines(self) -> tuple[str, ...]:
        """The summary, then a line for each node and each of its cores that stood in the way."""
        return (self.summary, *why.why_not(self.snapshot, self.demand))


def place(snapshot: Snapshot, demand: Demand, scorer: Scorer = ASSURANCE_WASTE) -> Placement | Refusal:
    """A placement that keeps every promise, or a refusal. A job that is placed already stays where it is."""
    if demand.job in snapshot.placed:
        return snapshot.placed[demand.job][1]
    nodes = view(snapshot, demand)
    candidates = _ranked(nodes, scorer)
    needs = demand.redundancy
    if needs.mode is RedundancyMode.NONE:
        return _single(snapshot, demand, nodes, candidates, scorer)
    found = _replicated(snapshot, demand, nodes, candidates, scorer)
    if isinstance(found, Placement):
        return found
    # Trusted nodes first, whatever the scorer would rather keep free: a few good ones may do where many would not.
    trusted = sorted(candidates, key=lambda at: -int(nodes.millipoints_after[at]))
    found = _replicated(snapshot, demand, nodes, trusted, scorer)
    return found if isinstance(found, Placement) else Refusal(demand, snapshot, found)


def _ranked(nodes: View, scorer: Scorer) -> list[int]:
    """Feasible nodes, best first, ties by position."""
    order = np.argsort(-scorer.score(nodes), kind="stable")
    ranked: list[int] = order[nodes.feasible[order]].tolist()
    return ranked


def _single(
    snapshot: Snapshot, demand: Demand, nodes: View, candidates: Sequence[int], scorer: Scorer
) -> Placement | Refusal:
    least = millipoints_for(demand.redundancy.theta)
    full: set[tuple[object, ...]] = set()  # what was on the cores of nodes that could not take it
    for at in candidates:
        if nodes.millipoints_after[at] < least:
            continue
        alike = _alike(snapshot, at, demand)
        seat = None if alike in full else seat_on(snapshot, at, demand, scorer)
        if seat is None:
            full.add(alike)
        else:
            placement = Placement(demand.job, (seat,))
            if isinstance(links_verdict(snapshot, demand, placement), Proved):
                return placement
    return Refusal(demand, snapshot, f"{demand.job}: none of {len(snapshot.nodes)} nodes can take it")


def _alike(snapshot: Snapshot, at: int, demand: Demand) -> tuple[object, ...]:
    """Equal for nodes that have a seat for the job or have none together."""
    node, occupancy = snapshot.nodes[at], snapshot.occupied[at]
    fits = why.has_labels_and_devices(node, occupancy, demand)
    return (
        fits,
        node.node_class,
        node.wakeup_ns,
        node.share.numerator,
        node.share.denominator,
        occupancy.cores,
    )


def _replicated(
    snapshot: Snapshot, demand: Demand, nodes: View, candidates: Sequence[int], scorer: Scorer
) -> Placement | str:
    """As few replicas as reach theta, on different nodes in the order given; the summary of a refusal otherwise."""
    needs = demand.redundancy
    seats: list[Seat] = []
    trust: list[Fraction] = []
    reached = Fraction(0)
    for at in candidates:
        if len(seats) == (needs.replicas or MOST_REPLICAS):
            break
        seat = seat_on(snapshot, at, demand, scorer)
        if seat is None:
            continue
        placement = Placement(demand.job, (*seats, seat))
        if not isinstance(links_verdict(snapshot, demand, placement), Proved):
            continue
        seats.append(seat)
        trust.append(Fraction(int(nodes.millipoints_after[at]), MOST_MILLIPOINTS))
        reached = dependability(needs.mode, trust)
        enough = len(seats) == needs.replicas if needs.replicas else reached >= needs.theta
        if enough and reached >= needs.theta:
            return placement
    wanted = f"{needs.replicas} replicas" if needs.replicas else f"at most {MOST_REPLICAS} replicas"
    return (
        f"{demand.job}: {len(seats)} nodes can take a replica and reach {float(reached):.6f} as {needs.mode}, "
        f"wanted are theta {float(needs.theta):g} with {wanted}"
    )


def seat_on(snapshot: Snapshot, at: int, demand: Demand, scorer: Scorer = ASSURANCE_WASTE) -> Seat | None:
    """A core for every server of the job on one node, each core proved with it; None when there is none."""
    node, occupancy = snapshot.nodes[at], snapshot.occupied[at]
    if not why.has_labels_and_devices(node, occupancy, demand):
        return None
    reservations = demand.reservations_on(node.node_class, node.wakeup_ns)
    if isinstance(reservations, NotSized):
        return None
    cores = [tuple(core) for core in occupancy.cores]
    chosen = []
    for workload, reservation in reservations:
        core = next(_proved_cores(cores, node, reservation, scorer), None)
        if core is None:
            return None
        cores[core] = (*cores[core], reservation)
        chosen.append((workload, core, reservation))
    return Seat(node.name, tuple(chosen))


def _proved_cores(
    cores: Sequence[tuple[Reservation, ...]], node: Node, reservation: Reservation, scorer: Scorer
) -> Iterator[int]:
    """Cores that are proved with one reservation more, in the scorer's order."""
    order = list(range(len(cores)))
    if scorer.cores != "first":
        taken = [sum(held.share_ppb for held in core) for core in cores]
        order.sort(key=lambda core: taken[core] if scorer.cores == "emptiest" else -taken[core])
    refused: set[tuple[Reservation, ...]] = set()
    for core in order:
        if cores[core] in refused:
            continue
        if isinstance(core_verdict((*cores[core], reservation), node.share), Proved):
            yield core
        else:
            refused.add(cores[core])


def links_verdict(snapshot: Snapshot, demand: Demand, placement: Placement) -> Verdict:
    """Whether every flow of and to the job is proved on every link that it crosses, with all that it may disturb."""
    gone, fresh = rerouted(snapshot, demand, placement)
    if not fresh:
        return Proved(())
    on_links = links.together(links.without(snapshot.flows, gone), fresh)
    return links.flows_verdict(on_links, fresh, lambda link: link_facts(snapshot, link))


def link_facts(snapshot: Snapshot, link: str) -> tuple[int, int] | None:
    """Rate in bits per second and delay in nanoseconds of `NODE/up` or `NODE/down`."""
    node = snapshot.nodes[snapshot.index[link.rsplit("/", 1)[0]]]
    return None if node.uplink_bps is None else (node.uplink_bps, node.propagation_ns)


def occupancy_is_proved(node: Node, occupancy: Occupancy) -> bool:
    """Whether every core of a node is proved as it stands: what must hold after every decision."""
    return all(isinstance(core_verdict(core, node.share), Proved) for core in occupancy.cores)
