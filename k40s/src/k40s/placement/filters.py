"""Which nodes could take a replica: all that can be decided for every node at once, exactly, in integers.

A node that passes has room, and an assurance after placement that satisfies this job and every job there. What remains
are its cores, links and devices, which `online` proves for one node at a time.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from k40s.api.level import Level
from k40s.api.policy import Thresholds
from k40s.assurance.score import MOST_MILLIPOINTS, millipoints_for
from k40s.placement import snapshot as rows
from k40s.placement.demand import Demand
from k40s.placement.reservation import NotSized
from k40s.placement.snapshot import Snapshot, Table, served_milli

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class View:
    """All nodes with one replica more, as the scorers see them; arrays have one entry a node."""

    cap_cpu: Table
    cap_mem: Table
    cpu_after: Table
    """Sum of requests, this replica included."""
    mem_after: Table
    millipoints_after: Table
    trust: Table
    """Alpha and beta, in thousandths of a point."""
    floor_before: Table
    """Most that any job there needs."""
    floor: int
    """What this job needs."""
    taken_ppb: Table
    """Share of a core that servers take, summed over the cores, before placement."""
    cores: Table
    feasible: Mask


def view(snapshot: Snapshot, demand: Demand) -> View:
    """Every node judged at once."""
    table = snapshot.table
    request_cpu, limit_cpu, sized, needs_ppb = _by_class(snapshot, demand)
    memory_limit = demand.limit_memory_bytes
    limit_mem = table[rows.CAP_MEM] if memory_limit is None else np.full_like(table[0], memory_limit)
    request_mem = np.full_like(table[0], demand.request.memory_bytes)
    cpu_after = table[rows.USED_CPU] + request_cpu
    mem_after = table[rows.USED_MEM] + request_mem
    points = _points_after(table, demand.criticality, (request_cpu, limit_cpu), (request_mem, limit_mem))
    millipoints = table[rows.TRUST] + points * 1000 * table[rows.SCALE] // 1_000_000
    floor = np.maximum(table[rows.FLOOR], demand.floor)
    feasible = (
        sized
        & (table[rows.READY] == 1)
        & (cpu_after <= table[rows.CAP_CPU])
        & (mem_after <= table[rows.CAP_MEM])
        & (millipoints >= floor)
        & (needs_ppb <= table[rows.FREE_PPB])
    )
    return View(
        cap_cpu=table[rows.CAP_CPU],
        cap_mem=table[rows.CAP_MEM],
        cpu_after=cpu_after,
        mem_after=mem_after,
        millipoints_after=millipoints,
        trust=table[rows.TRUST],
        floor_before=table[rows.FLOOR],
        floor=demand.floor,
        taken_ppb=table[rows.TAKEN_PPB],
        cores=table[rows.CORES],
        feasible=feasible,
    )


def level_counts(snapshot: Snapshot, thresholds: Thresholds) -> tuple[dict[str, int], float]:
    """How many nodes are at each level of assurance now, without hysteresis, and their mean score."""
    table = snapshot.table
    nothing = (np.zeros_like(table[0]), np.zeros_like(table[0]))
    points = _points_after(table, Level.NO, nothing, nothing)
    millipoints = table[rows.TRUST] + points * 1000 * table[rows.SCALE] // 1_000_000
    lo, hi = millipoints_for(thresholds.lo), millipoints_for(thresholds.hi)
    counts = {
        Level.NO.name: int((millipoints < lo).sum()),
        Level.LO.name: int(((millipoints >= lo) & (millipoints < hi)).sum()),
        Level.HI.name: int((millipoints >= hi).sum()),
    }
    return counts, float(millipoints.mean()) / MOST_MILLIPOINTS if len(snapshot.nodes) else 0.0


def _by_class(snapshot: Snapshot, demand: Demand) -> tuple[Table, Table, Mask, Table]:
    """CPU request, CPU limit, whether servers could be sized, and the largest server's share, for each node.

    Nodes of a class may still differ in wake-up latency; each pair is sized once.
    """
    table = snapshot.table
    request, limit = np.empty_like(table[0]), np.empty_like(table[0])
    sized = np.ones(table.shape[1], dtype=np.bool_)
    needs = np.zeros_like(table[0])
    for number, node_class in enumerate(snapshot.classes):
        of_class = table[rows.CLASS] == number
        for wakeup_ns in snapshot.wakeups[node_class]:
            here = of_class & (table[rows.WAKEUP] == wakeup_ns)
            reservations = demand.reservations_on(node_class, wakeup_ns)
            if isinstance(reservations, NotSized):
                sized[here] = False
                request[here] = limit[here] = 0
                continue
            served = served_milli(held for _, held in reservations)
            request[here] = max(demand.request.cpu_milli, served)
            capped = table[rows.CAP_CPU][here] if demand.limit_cpu_milli is None else demand.limit_cpu_milli
            limit[here] = np.maximum(capped, served)
            needs[here] = max((held.share_ppb for _, held in reservations), default=0)
    return request, limit, sized, needs


def _points_after(table: Table, level: Level, cpu: tuple[Table, Table], mem: tuple[Table, Table]) -> Table:
    """The over-commit points of every node with one replica more: `assurance.overcommit`, for all nodes at once."""
    held = np.ones((6, table.shape[1]), dtype=np.bool_)
    for first, capacity, (request, limit) in (
        (rows.CPU, table[rows.CAP_CPU], cpu),
        (rows.MEM, table[rows.CAP_MEM], mem),
    ):
        sums = list(table[first : first + 5])
        if level is not Level.HI:
            sums[level] = sums[level] + request
        sums[rows.L_NO + level] = sums[rows.L_NO + level] + limit
        r_no, r_lo, l_no, l_lo, l_hi = sums
        totals = (l_hi, r_lo + l_hi, l_lo + l_hi, r_no + r_lo + l_hi, r_no + l_lo + l_hi, l_no + l_lo + l_hi)
        for rule, total in enumerate(totals):
            held[rule] &= total <= capacity
    so_far: Table = 2 * held[0].astype(np.int64) + 2 * held[1] + held[2] + held[3]
    result: Table = so_far + 2 * (held[4] & (so_far > 4)) + 2 * held[5]
    return result
