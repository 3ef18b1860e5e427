"""Online decisions over random worlds: whatever is placed or leaves, every promise holds and the books are right."""

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k40s.analysis.verdict import Proved
from k40s.api import Level
from k40s.assurance.overcommit import Amounts, overcommit_points
from k40s.assurance.score import gamma_millipoints
from k40s.errors import Conflict, NotFound
from k40s.placement import (
    SCORERS,
    Demand,
    Placement,
    Refusal,
    Scorer,
    Snapshot,
    core_verdict,
    narrowed,
    place,
    reserve,
    snapshot_of,
    unreserve,
    with_nodes,
)
from k40s.placement.filters import view
from k40s.placement.online import occupancy_is_proved
from k40s.placement.snapshot import amounts_on
from k40s.sim.generate import random_demands, random_nodes, random_templates

some = settings(max_examples=25, deadline=None)


def world(seed: int, nodes: int, jobs: int) -> tuple[Snapshot, list[Demand]]:
    random = Random(seed)
    empty = snapshot_of(random_nodes(nodes, random))
    return empty, random_demands(jobs, random_templates(10, random), random)


def filled(snapshot: Snapshot, demands: list[Demand], scorer: Scorer) -> Snapshot:
    for demand in demands:
        found = place(snapshot, demand, scorer)
        if isinstance(found, Placement):
            snapshot = reserve(snapshot, demand, found)
    return snapshot


def keeps_every_promise(snapshot: Snapshot) -> None:
    for node, occupancy in zip(snapshot.nodes, snapshot.occupied, strict=True):
        assert occupancy_is_proved(node, occupancy)
        assert occupancy.used.fits(node.capacity)
        points = overcommit_points(occupancy.load, node.capacity)
        reached = node.trust + gamma_millipoints(points, node.scale_ppm)
        assert reached == snapshot.millipoints(node.name)
        for job in occupancy.jobs:
            assert reached >= snapshot.placed[job][0].floor


def same(a: Snapshot, b: Snapshot) -> bool:
    def flows(snapshot: Snapshot) -> dict[str, list[tuple[str, str, tuple[str, ...]]]]:
        return {
            link: sorted((f.job, f.spec.name, f.path) for f in on)
            for link, on in snapshot.flows.items()
            if on
        }

    cores_a = [[sorted(held.serial for held in core) for core in o.cores] for o in a.occupied]
    cores_b = [[sorted(held.serial for held in core) for core in o.cores] for o in b.occupied]
    return (
        np.array_equal(a.table, b.table)
        and a.placed == b.placed
        and flows(a) == flows(b)
        and {k: v for k, v in a.senders.items() if v} == {k: v for k, v in b.senders.items() if v}
        and cores_a == cores_b
        and [sorted(o.jobs) for o in a.occupied] == [sorted(o.jobs) for o in b.occupied]
    )


@given(st.integers(0, 10_000), st.sampled_from(sorted(SCORERS)))
@some
def test_whatever_arrives_every_promise_holds(seed: int, scorer: str) -> None:
    empty, demands = world(seed, 4, 30)
    keeps_every_promise(filled(empty, demands, SCORERS[scorer]))


@given(st.integers(0, 10_000), st.data())
@some
def test_leaving_undoes_arriving_in_any_order(seed: int, data: st.DataObject) -> None:
    empty, demands = world(seed, 4, 20)
    full = filled(empty, demands, SCORERS["assurance-waste"])
    leaving = data.draw(st.permutations(sorted(full.placed)))
    for job in leaving:
        full = unreserve(full, job)
        assert unreserve(full, job) is full
        keeps_every_promise(full)
    assert same(full, empty)


@given(st.integers(0, 10_000))
@some
def test_a_job_that_leaves_may_come_back_to_its_place(seed: int) -> None:
    empty, demands = world(seed, 3, 20)
    full = filled(empty, demands, SCORERS["worst-fit"])
    for job, (demand, placement) in list(full.placed.items()):
        assert same(reserve(unreserve(full, job), demand, placement), full)
        assert reserve(full, demand, placement) is full
        assert place(full, demand) == placement


@given(st.integers(0, 10_000), st.sampled_from(sorted(SCORERS)))
@some
def test_a_refusal_is_exact(seed: int, scorer: str) -> None:
    """Where a job is refused there is no node and core, tried one by one with the definitions, that could take it."""
    empty, demands = world(seed, 3, 40)
    alone = [demand for demand in demands if not demand.flows]
    full = filled(empty, alone, SCORERS[scorer])
    for demand in alone:
        found = place(full, demand, SCORERS[scorer])
        if isinstance(found, Refusal):
            assert not any(could_take(full, name, demand) for name in full.index)
            lines = found.lines()
            assert all(any(line.startswith(f"{name}: ") for line in lines) for name in full.index)


def could_take(snapshot: Snapshot, name: str, demand: Demand) -> bool:
    """By the definitions alone, for a job of one workload."""
    node, occupancy = snapshot.nodes[snapshot.index[name]], snapshot.occupancy(name)
    amounts = amounts_on(demand, node)
    reservations = demand.reservations_on(node.node_class, node.wakeup_ns)
    assert isinstance(amounts, tuple)
    assert isinstance(reservations, tuple)
    request, limit = amounts
    points = overcommit_points(occupancy.load.with_job(demand.criticality, request, limit), node.capacity)
    reached = node.trust + gamma_millipoints(points, node.scale_ppm)
    return (
        (occupancy.used + request).fits(node.capacity)
        and reached >= max(demand.floor, occupancy.floor)
        and all(
            any(isinstance(core_verdict((*core, held), node.share), Proved) for core in occupancy.cores)
            for _, held in reservations
        )
    )


@given(st.integers(0, 10_000), st.data())
@some
def test_a_narrowed_snapshot_judges_its_nodes_as_the_whole_does(seed: int, data: st.DataObject) -> None:
    empty, demands = world(seed, 5, 25)
    full = filled(empty, demands, SCORERS["first-fit"])
    names = data.draw(st.sets(st.sampled_from(sorted(full.index)), min_size=1))
    part = narrowed(full, names)
    for demand in demands[:8]:
        whole, partly = view(full, demand), view(part, demand)
        for name, at in part.index.items():
            assert partly.feasible[at] == whole.feasible[full.index[name]]
            assert partly.millipoints_after[at] == whole.millipoints_after[full.index[name]]


def test_facts_of_a_node_may_change_but_not_its_shape() -> None:
    from dataclasses import replace

    empty, demands = world(1, 3, 10)
    node = empty.nodes[0]
    shut = with_nodes(empty, [replace(one, ready=False) for one in empty.nodes])
    assert all(isinstance(place(shut, demand), Refusal) for demand in demands)
    with pytest.raises(NotFound, match="nobody"):
        with_nodes(empty, [replace(node, name="nobody")])
    with pytest.raises(Conflict, match="cores"):
        with_nodes(empty, [replace(node, cores=node.cores + 1)])
    with pytest.raises(Conflict, match="same name"):
        snapshot_of([node, node])


def test_a_job_that_stands_elsewhere_is_not_reserved_twice() -> None:
    empty, demands = world(2, 6, 30)
    full = filled(empty, demands, SCORERS["assurance-waste"])
    job, (demand, placement) = next(iter(full.placed.items()))
    other = next(name for name in full.index if name != placement.seats[0].node)
    with pytest.raises(Conflict, match="elsewhere"):
        reserve(full, demand, Placement(job, (type(placement.seats[0])(other, ()),)))


def test_trusted_nodes_are_kept_for_those_who_need_them() -> None:
    """A NO job goes to the least trusted node, and HI jobs find the trusted one empty."""
    empty, demands = world(3, 10, 60)
    for demand in demands:
        found = place(empty, demand)
        assert isinstance(found, Placement)
        trust = empty.nodes[empty.index[found.seats[0].node]].trust
        if demand.criticality is Level.NO:
            assert trust == min(node.trust for node in empty.nodes)


def test_amounts_are_those_of_servers_where_a_job_asks_for_less() -> None:
    empty, demands = world(4, 3, 40)
    for demand in demands:
        for node in empty.nodes:
            reservations = demand.reservations_on(node.node_class, node.wakeup_ns)
            amounts = amounts_on(demand, node)
            assert isinstance(reservations, tuple)
            assert isinstance(amounts, tuple)
            served = sum(held.share for _, held in reservations) * 1000
            assert amounts[0].cpu_milli >= max(served, demand.request.cpu_milli)
            assert amounts[0].cpu_milli < max(served, demand.request.cpu_milli) + len(reservations) + 1
            assert Amounts().fits(amounts[0])
