"""The best placement of a set of jobs, with all of them known beforehand: what online decisions are measured against.

CP-SAT maximises the weight of the jobs placed, under the same conditions as `online`: room, servers within every core's
share, and an assurance after placement that satisfies every job of a node (the over-commit rules are linear,
each behind a literal). What is not linear is added as it is met: a core that the solver fills and
`core_verdict` does not prove, or a set of flows that the links do not hold, is forbidden and the solver asked
again. So a result that it calls optimal is. Replicated jobs are placed online beforehand and stay there.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ortools.sat.python import cp_model

from k40s.analysis.verdict import Proved
from k40s.api.job import RedundancyMode
from k40s.api.level import Level
from k40s.assurance.overcommit import MOST_POINTS, RULES
from k40s.assurance.score import gamma_millipoints
from k40s.placement.core import core_verdict
from k40s.placement.demand import Demand
from k40s.placement.online import links_verdict, place
from k40s.placement.reservation import NotSized, Reservation
from k40s.placement.snapshot import PPB, Node, Placement, Seat, Snapshot, amounts_with, reserve
from k40s.placement.why import has_labels_and_devices

Weight = Callable[[Demand], int]


@dataclass(frozen=True, slots=True)
class Plan:
    """The outcome: where each placed job goes, the weight placed, and the largest weight that may be possible."""

    placements: Mapping[str, Placement]
    weight: int
    bound: int
    """Equal to `weight` when the plan is optimal."""

    @property
    def is_optimal(self) -> bool:
        return self.weight == self.bound

    def gap_of(self, weight: int) -> float:
        """How far below this plan's bound a weight is, 0 to 1."""
        return 1 - weight / self.bound if self.bound else 0.0


def one_each(_demand: Demand) -> int:
    """Every job counts the same."""
    return 1


@dataclass(slots=True)
class _Model:
    """The CP-SAT model, and its variables by what they mean."""

    snapshot: Snapshot
    cp: cp_model.CpModel = field(default_factory=cp_model.CpModel)
    at_node: dict[tuple[str, int], Any] = field(default_factory=dict)
    """Job on node."""
    at_core: dict[tuple[str, int, str, int], Any] = field(default_factory=dict)
    """Job, node, workload on core."""
    servers: dict[tuple[str, int, str], Reservation] = field(default_factory=dict)


def plan(
    snapshot: Snapshot,
    demands: Sequence[Demand],
    weight: Weight = one_each,
    effort_s: float = 10.0,
    rounds: int = 50,
) -> Plan:
    """The best placement of the jobs into what the snapshot has left.

    `effort_s` bounds the solver's work in each round, in its own deterministic seconds, so that a run gives the
    same plan on every machine; `rounds` bounds how often it is asked.
    """
    fixed: dict[str, Placement] = {}
    total = 0
    single = []
    for demand in demands:
        if demand.redundancy.mode is RedundancyMode.NONE:
            single.append(demand)
        elif isinstance(placement := place(snapshot, demand), Placement):
            fixed[demand.job] = placement
            total += weight(demand)
            snapshot = reserve(snapshot, demand, placement)
    model = _model(snapshot, single, weight)
    best, bound = _solve(model, single, weight, effort_s, rounds)
    placed = sum(weight(demand) for demand in single if demand.job in best)
    return Plan({**fixed, **best}, total + placed, total + bound)


def _model(snapshot: Snapshot, demands: Sequence[Demand], weight: Weight) -> _Model:
    model = _Model(snapshot)
    for at, node in enumerate(snapshot.nodes):
        here = [demand for demand in demands if _may_run(snapshot, at, demand)]
        _on_node(model, at, node, here)
    for demand in demands:
        places = [var for (job, _), var in model.at_node.items() if job == demand.job]
        if places:
            model.cp.add(sum(places) <= 1)
    by_job = {demand.job: weight(demand) for demand in demands}
    model.cp.maximize(sum(by_job[job] * var for (job, _), var in model.at_node.items()))
    return model


def _may_run(snapshot: Snapshot, at: int, demand: Demand) -> bool:
    node = snapshot.nodes[at]
    theta_points = -(-20_000 * demand.redundancy.theta.numerator // demand.redundancy.theta.denominator)
    return (
        node.ready
        and has_labels_and_devices(node, snapshot.occupied[at], demand)
        and not isinstance(demand.reservations_on(node.node_class, node.wakeup_ns), NotSized)
        and node.trust + gamma_millipoints(MOST_POINTS, node.scale_ppm) >= max(demand.floor, theta_points)
    )


def _on_node(model: _Model, at: int, node: Node, demands: Sequence[Demand]) -> None:
    """Room, cores, devices and assurance of one node."""
    cp, occupancy = model.cp, model.snapshot.occupied[at]
    loads: dict[str, list[tuple[Any, int]]] = {}
    cores: list[list[tuple[Any, int]]] = [[] for _ in range(node.cores)]
    for demand in demands:
        var = cp.new_bool_var("")
        model.at_node[demand.job, at] = var
        reservations = demand.reservations_on(node.node_class, node.wakeup_ns)
        assert not isinstance(reservations, NotSized)  # `_may_run` has seen to it
        request, limit = amounts_with(demand, node.capacity, [held for _, held in reservations])
        _count(loads, f"used {demand.criticality}", var, request.cpu_milli, request.memory_bytes)
        _count(loads, f"R {demand.criticality}", var, request.cpu_milli, request.memory_bytes)
        _count(loads, f"L {demand.criticality}", var, limit.cpu_milli, limit.memory_bytes)
        for device, count in demand.devices.items():
            loads.setdefault(f"device {device}", []).append((var, count))
        for workload, held in reservations:
            choices = []
            for core in range(node.cores):
                choice = cp.new_bool_var("")
                choices.append(choice)
                cores[core].append((choice, held.share_ppb))
                model.at_core[demand.job, at, workload, core] = choice
            model.servers[demand.job, at, workload] = held
            cp.add(sum(choices) == var)
    most = -(-node.share.numerator * PPB // node.share.denominator)
    for core, terms in enumerate(cores):
        taken = sum(held.share_ppb for held in occupancy.cores[core])
        _at_most(cp, terms, most - taken)
    for name, terms in loads.items():
        if name.startswith("device "):
            device = name.removeprefix("device ")
            _at_most(cp, terms, node.devices[device] - occupancy.devices.get(device, 0))
    _assurance(model, at, node, demands, loads)


def _count(loads: dict[str, list[tuple[Any, int]]], name: str, var: Any, cpu: int, memory: int) -> None:
    loads.setdefault(f"{name} cpu", []).append((var, cpu))
    loads.setdefault(f"{name} mem", []).append((var, memory))


def _at_most(cp: cp_model.CpModel, terms: Sequence[tuple[Any, int]], most: int, only_if: Any = None) -> None:
    if terms or most < 0:
        rule = cp.add(sum(factor * var for var, factor in terms) <= most)
        if only_if is not None:
            rule.only_enforce_if(only_if)


def _assurance(
    model: _Model, at: int, node: Node, demands: Sequence[Demand], loads: Mapping[str, list[tuple[Any, int]]]
) -> None:
    """Requests fit; and each job there is satisfied with the points of the over-commit rules that hold."""
    cp, occupancy = model.cp, model.snapshot.occupied[at]
    load, used = occupancy.load, occupancy.used
    held = [cp.new_bool_var("") for _ in RULES]
    sums = (
        ("L HI",),
        ("R LO", "L HI"),
        ("L LO", "L HI"),
        ("R NO", "R LO", "L HI"),
        ("R NO", "L LO", "L HI"),
        ("L NO", "L LO", "L HI"),
    )
    for resource, capacity, in_use, amount in (
        ("cpu", node.capacity.cpu_milli, used.cpu_milli, "cpu_milli"),
        ("mem", node.capacity.memory_bytes, used.memory_bytes, "memory_bytes"),
    ):
        there = {
            f"{kind} {level}": getattr(amounts[level], amount)
            for kind, amounts in (("R", load.requests), ("L", load.limits))
            for level in Level
        }
        _at_most(
            cp,
            [term for level in Level for term in loads.get(f"used {level} {resource}", ())],
            capacity - in_use,
        )
        for rule, names in zip(held, sums, strict=True):
            terms = [term for name in names for term in loads.get(f"{name} {resource}", ())]
            _at_most(cp, terms, capacity - sum(there[name] for name in names), rule)
    first_four = sum(points * rule for (points, _), rule in zip(RULES[:4], held[:4], strict=True))
    cp.add(first_four > 4).only_enforce_if(held[4])
    total = sum(points * rule for (points, _), rule in zip(RULES, held, strict=True))
    cp.add(total >= _points_for(node, occupancy.floor))
    for demand in demands:
        theta = -(-20_000 * demand.redundancy.theta.numerator // demand.redundancy.theta.denominator)
        need = _points_for(node, max(demand.floor, theta))
        cp.add(total >= need).only_enforce_if(model.at_node[demand.job, at])


def _points_for(node: Node, floor: int) -> int:
    """Fewest over-commit points with which the node reaches a score; one more than there are when none do."""
    return next(
        (p for p in range(MOST_POINTS + 1) if node.trust + gamma_millipoints(p, node.scale_ppm) >= floor),
        MOST_POINTS + 1,
    )


def _solve(
    model: _Model, demands: Sequence[Demand], weight: Weight, effort_s: float, rounds: int
) -> tuple[dict[str, Placement], int]:
    """The best proved placement and the bound. Without one within the rounds, what `online` places stands."""
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 1
    solver.parameters.max_deterministic_time = effort_s
    bound = sum(weight(demand) for demand in demands)
    for _ in range(rounds):
        status = solver.solve(model.cp)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            break
        bound = min(bound, int(solver.best_objective_bound + 1e-6))
        found = _placements(model, solver)
        if not _forbid_unproved(model, solver, demands, found):
            return found, bound
    return _online(model.snapshot, demands), bound


def _online(snapshot: Snapshot, demands: Sequence[Demand]) -> dict[str, Placement]:
    placements = {}
    for demand in demands:
        placement = place(snapshot, demand)
        if isinstance(placement, Placement):
            placements[demand.job] = placement
            snapshot = reserve(snapshot, demand, placement)
    return placements


def _placements(model: _Model, solver: cp_model.CpSolver) -> dict[str, Placement]:
    cores: dict[tuple[str, int], list[tuple[str, int, Reservation]]] = {}
    for (job, at, workload, core), var in model.at_core.items():
        if solver.value(var):
            cores.setdefault((job, at), []).append((workload, core, model.servers[job, at, workload]))
    return {
        job: Placement(job, (Seat(model.snapshot.nodes[at].name, tuple(cores.get((job, at), ()))),))
        for (job, at), var in model.at_node.items()
        if solver.value(var)
    }


def _forbid_unproved(
    model: _Model, solver: cp_model.CpSolver, demands: Sequence[Demand], found: Mapping[str, Placement]
) -> bool:
    """Adds a clause for each core, and for the flows, that the tests do not prove; whether there was any."""
    forbidden = False
    filled: dict[tuple[int, int], list[tuple[str, int, str]]] = {}
    for (job, at, workload, core), var in model.at_core.items():
        if solver.value(var):
            filled.setdefault((at, core), []).append((job, at, workload))
    for (at, core), entries in filled.items():
        before = model.snapshot.occupied[at].cores[core]
        node = model.snapshot.nodes[at]
        if isinstance(
            core_verdict((*before, *(model.servers[entry] for entry in entries)), node.share), Proved
        ):
            continue
        forbidden = True
        for other in range(node.cores):  # the same set is as bad on every core that holds the same already
            if model.snapshot.occupied[at].cores[other] == before:
                model.cp.add_bool_or([~model.at_core[(*entry, other)] for entry in entries])
    flowing = [demand for demand in demands if demand.flows and demand.job in found]
    if not forbidden and flowing and not _flows_hold(model.snapshot, demands, found):
        forbidden = True
        index = model.snapshot.index
        there = [model.at_node[demand.job, index[found[demand.job].seats[0].node]] for demand in flowing]
        model.cp.add_bool_or([~var for var in there])
    return forbidden


def _flows_hold(snapshot: Snapshot, demands: Sequence[Demand], found: Mapping[str, Placement]) -> bool:
    for demand in demands:
        if demand.job in found:
            if not isinstance(links_verdict(snapshot, demand, found[demand.job]), Proved):
                return False
            snapshot = reserve(snapshot, demand, found[demand.job])
    return True
