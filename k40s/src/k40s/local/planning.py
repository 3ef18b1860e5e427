"""`k40s plan`: jobs and node classes from manifests, the best placement, and how far the online answer is from
it. Pure.

Nodes are those of the NodeAssurance objects given, with the points of their alpha and beta; where a class has none, as
many unmeasured nodes as asked for, which have no points there: what is unknown counts as absent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from k40s import api
from k40s.assurance import Assurance
from k40s.errors import BadInput
from k40s.placement import Node, Placement, demand_of, node_of, place, reserve, snapshot_of
from k40s.placement.plan import plan


@dataclass(frozen=True, slots=True)
class Planned:
    """Where each job goes (node names, empty for none) in the best placement and online, job by job."""

    best: dict[str, tuple[str, ...]]
    online: dict[str, tuple[str, ...]]
    refusals: dict[str, tuple[str, ...]]
    """Why the online answer placed a job nowhere."""
    bound: int
    """No placement takes in more jobs than this."""
    is_optimal: bool

    @property
    def gap(self) -> float:
        """How far the online answer is from the bound, 0 to 1."""
        placed = sum(bool(nodes) for nodes in self.online.values())
        return 1 - placed / self.bound if self.bound else 0.0


def plan_for(resources: Sequence[api.Resource], nodes_each: int) -> Planned:
    """Plan the jobs among the resources. `BadInput` without a node class or without jobs."""
    jobs = [one for one in resources if isinstance(one, api.CriticalJob)]
    nodes = _nodes(resources, nodes_each)
    if not jobs:
        raise BadInput("manifest: there is no CriticalJob in it, name one to plan")
    if not nodes:
        raise BadInput("manifest: there is no NodeClass in it, describe the machines to plan for")
    demands = [demand_of(job) for job in sorted(jobs, key=lambda job: -job.spec.criticality)]
    empty = snapshot_of(nodes)
    best = plan(empty, demands)
    world, online, refusals = empty, {}, {}
    for demand in demands:
        found = place(world, demand)
        if isinstance(found, Placement):
            world = reserve(world, demand, found)
            online[demand.job] = _seats(found)
        else:
            online[demand.job], refusals[demand.job] = (), found.lines()
    placed = {demand.job: best.placements.get(demand.job) for demand in demands}
    where = {job: _seats(placement) if placement else () for job, placement in placed.items()}
    return Planned(where, online, refusals, best.bound, best.is_optimal)


def _seats(placement: Placement) -> tuple[str, ...]:
    return tuple(seat.node for seat in placement.seats)


def _nodes(resources: Sequence[api.Resource], nodes_each: int) -> list[Node]:
    classes = {one.metadata.name: one for one in resources if isinstance(one, api.NodeClass)}
    measured = [one for one in resources if isinstance(one, api.NodeAssurance)]
    nodes = []
    for node in measured:
        if node.spec.node_class not in classes:
            raise BadInput(
                f"node {node.metadata.name}: class {node.spec.node_class!r} is not in the manifests, add it"
            )
        nodes.append(_node(node.metadata.name, classes[node.spec.node_class], node.status))
    known = {node.spec.node_class for node in measured}
    for name, node_class in classes.items():
        if name not in known:
            nodes += [_node(f"{name}-{number}", node_class, None) for number in range(nodes_each)]
    return nodes


def _node(name: str, node_class: api.NodeClass, status: api.NodeAssuranceStatus | None) -> Node:
    unmeasured = Assurance(0, 0, 0, 0, 1_000_000, api.Level.NO, ())
    if status is None:
        return node_of(name, node_class, unmeasured)
    alpha, beta = round(status.alpha.points * 1000), round(status.beta.points * 1000)
    return node_of(name, node_class, replace(unmeasured, alpha=alpha, beta=beta))
