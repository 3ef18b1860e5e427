"""The offline optimum: equal to trying everything where that can be done, sound and no worse than online elsewhere."""

from itertools import product
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k40s.analysis.verdict import Proved
from k40s.api import Level
from k40s.assurance.overcommit import Amounts, overcommit_points
from k40s.assurance.score import gamma_millipoints
from k40s.placement import (
    SCORERS,
    Demand,
    Node,
    Placement,
    Seat,
    Snapshot,
    core_verdict,
    links_verdict,
    place,
    reserve,
    snapshot_of,
)
from k40s.placement.demand import demand_of
from k40s.placement.plan import plan
from k40s.sim.generate import Template, job_of, random_demands, random_nodes, random_templates


def small(seed: int, nodes: int, jobs: int) -> tuple[Snapshot, list[Demand]]:
    """Nodes too small for all of the jobs; no flows."""
    random = Random(seed)
    empty = snapshot_of(
        [
            Node(
                name=f"n{number}",
                node_class="edge",
                capacity=Amounts(random.choice((1000, 1500, 2000)), 2 * 2**30),
                cores=random.randint(1, 2),
                trust=random.choice((1_500, 5_000, 9_000)),
                scale_ppm=950_000,
            )
            for number in range(nodes)
        ]
    )
    templates = [
        Template(t.level, t.tasks, t.resources, flow=False) for t in random_templates(8, random, ["edge"])
    ]
    return empty, [demand_of(job_of(f"j{number}", random.choice(templates))) for number in range(jobs)]


def is_legal(snapshot: Snapshot) -> bool:
    """Every promise, by the definitions, of a world that was put together without asking."""
    return all(
        occupancy.used.fits(node.capacity)
        and node.trust + gamma_millipoints(overcommit_points(occupancy.load, node.capacity), node.scale_ppm)
        >= occupancy.floor
        and all(isinstance(core_verdict(core, node.share), Proved) for core in occupancy.cores)
        for node, occupancy in zip(snapshot.nodes, snapshot.occupied, strict=True)
    )


def seats_of(snapshot: Snapshot, demand: Demand) -> list[Seat]:
    """Every node and core, for jobs of one workload."""
    seats = []
    for node in snapshot.nodes:
        reservations = demand.reservations_on(node.node_class, node.wakeup_ns)
        if not isinstance(reservations, tuple):
            continue
        choices = product(range(node.cores), repeat=len(reservations))
        seats += [
            Seat(node.name, tuple((w, core, r) for (w, r), core in zip(reservations, cores, strict=True)))
            for cores in choices
        ]
    return seats


def most(snapshot: Snapshot, demands: list[Demand]) -> int:
    """The largest legal number of jobs, by trying everything; a part of a legal set is legal, so wrong turns end."""
    if not demands:
        return len(snapshot.placed)
    first, rest = demands[0], demands[1:]
    best = most(snapshot, rest)
    for seat in seats_of(snapshot, first):
        if best == len(snapshot.placed) + len(demands):
            break
        there = reserve(snapshot, first, Placement(first.job, (seat,)))
        if is_legal(there):
            best = max(best, most(there, rest))
    return best


@given(st.integers(0, 100_000))
@settings(max_examples=25, deadline=None)
def test_the_plan_is_what_trying_everything_finds(seed: int) -> None:
    empty, demands = small(seed, nodes=2, jobs=5)
    found = plan(empty, demands)
    assert found.is_optimal
    assert found.weight == most(empty, demands)


@given(st.integers(0, 100_000))
@settings(max_examples=6, deadline=None)
def test_a_plan_can_be_carried_out_and_online_is_no_better(seed: int) -> None:
    random = Random(seed)
    empty = snapshot_of(random_nodes(3, random))
    demands = random_demands(16, random_templates(8, random), random)
    found = plan(empty, demands, effort_s=2.0)
    assert found.weight == len(found.placements) <= found.bound <= len(demands)
    world = empty
    for demand in demands:
        if demand.job in found.placements:
            assert isinstance(links_verdict(world, demand, found.placements[demand.job]), Proved)
            world = reserve(world, demand, found.placements[demand.job])
    assert is_legal(world)
    for scorer in SCORERS.values():
        online, placed = empty, 0
        for demand in demands:
            placement = place(online, demand, scorer)
            if isinstance(placement, Placement):
                online, placed = reserve(online, demand, placement), placed + 1
        assert placed <= found.bound
        assert found.gap_of(placed) == pytest.approx(1 - placed / found.bound)


def test_what_is_there_already_stays_and_counts() -> None:
    empty, demands = small(7, nodes=2, jobs=6)
    placement = place(empty, demands[0])
    assert isinstance(placement, Placement)
    there = reserve(empty, demands[0], placement)
    found = plan(there, demands[1:])
    assert demands[0].job not in found.placements
    assert found.is_optimal
    assert 0 < found.weight == most(there, demands[1:]) - 1


def test_weights_decide_who_is_left_out() -> None:
    """With HI jobs worth more than all others together, no plan has more of them."""
    empty, demands = small(11, nodes=2, jobs=9)
    worth = {Level.HI: 100, Level.LO: 10, Level.NO: 1}
    found = plan(empty, demands, weight=lambda demand: worth[demand.criticality])
    high = [demand for demand in demands if demand.criticality is Level.HI]
    placed = sum(demand.job in found.placements for demand in high)
    assert placed == plan(empty, high).weight
    assert found.weight == sum(worth[d.criticality] for d in demands if d.job in found.placements)


def test_no_jobs_and_no_nodes_are_an_optimum_of_nothing() -> None:
    empty, demands = small(1, nodes=1, jobs=3)
    assert plan(empty, []).gap_of(0) == 0.0
    nothing = plan(snapshot_of([]), demands)
    assert (nothing.weight, nothing.placements) == (0, {})
