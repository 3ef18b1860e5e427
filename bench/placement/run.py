"""Placement: how many jobs each scorer places, how fast, and how far from the optimum.

Two questions, one row for each scorer. 1,000 nodes are offered 10,000 jobs, more than they can hold: which
share is placed, with what median time for a decision on one core? And on 50 small instances that CP-SAT solves
to the optimum, how far below it is the online answer? All scorers decide behind the same filters and proofs, so
what they place is equally safe.

    python bench/placement/run.py [--nodes 1000] [--jobs 10000] [--instances 50] [--seed 1]
"""

import argparse
import statistics
import sys
import time
from pathlib import Path
from random import Random

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from bench import report

from k40s.placement import SCORERS, Placement, Scorer, Snapshot, place, reserve, snapshot_of
from k40s.placement.demand import Demand
from k40s.placement.plan import plan
from k40s.sim.generate import random_demands, random_nodes, random_templates

TEMPLATES = 40
SMALL_NODES, SMALL_JOBS, SMALL_TEMPLATES = 5, 40, 20
LOADS = (8, 10, 12, 15)
"""Jobs offered for each node, for the picture."""


def world(nodes: int, jobs: int, templates: int, seed: int) -> tuple[Snapshot, list[Demand]]:
    """Empty nodes and the jobs that arrive, in order."""
    random = Random(seed)
    empty = snapshot_of(random_nodes(nodes, random))
    return empty, random_demands(jobs, random_templates(templates, random), random)


def online(snapshot: Snapshot, demands: list[Demand], scorer: Scorer) -> tuple[int, list[float]]:
    """Jobs placed, and milliseconds for each decision (reservation included)."""
    took_ms = []
    for demand in demands:
        start = time.perf_counter()
        placement = place(snapshot, demand, scorer)
        if isinstance(placement, Placement):
            snapshot = reserve(snapshot, demand, placement)
        took_ms.append((time.perf_counter() - start) * 1000)
    return len(snapshot.placed), took_ms


def gaps(instances: int, seed: int) -> tuple[dict[str, float], int]:
    """Mean gap of each scorer to the optimum over that many instances which CP-SAT solves, and how many it did not."""
    found: dict[str, list[float]] = {name: [] for name in SCORERS}
    unsolved, attempt = 0, 0
    while min(map(len, found.values())) < instances:
        empty, demands = world(SMALL_NODES, SMALL_JOBS, SMALL_TEMPLATES, seed * 1000 + attempt)
        attempt += 1
        best = plan(empty, demands)
        if not best.is_optimal:
            unsolved += 1
            continue
        for name, scorer in SCORERS.items():
            found[name].append(best.gap_of(online(empty, demands, scorer)[0]))
    return {name: statistics.mean(values) for name, values in found.items()}, unsolved


def picture(rows: list[dict[str, object]], seed: int) -> Path:
    """Acceptance by offered load, and the gap to the optimum."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2))
    for name, scorer in SCORERS.items():
        shares = []
        for load in LOADS:
            empty, demands = world(100, 100 * load, TEMPLATES, seed)
            shares.append(online(empty, demands, scorer)[0] / len(demands))
        left.plot(LOADS, shares, marker="o", label=name)
    left.set(xlabel="jobs offered per node (100 nodes)", ylabel="acceptance", ylim=(0, 1.05))
    left.legend(fontsize=8)
    right.barh([str(row["scorer"]) for row in rows], [100 * float(str(row["optimum_gap"])) for row in rows])
    right.set(xlabel="mean gap to the CP-SAT optimum, %")
    right.invert_yaxis()
    figure.tight_layout()
    report.FOLDER.mkdir(parents=True, exist_ok=True)
    path = report.FOLDER / "placement.png"
    figure.savefig(path, dpi=120)
    return path


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--instances", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    gap, unsolved = gaps(options.instances, options.seed)
    empty, demands = world(options.nodes, options.jobs, TEMPLATES, options.seed)
    rows: list[dict[str, object]] = []
    for name, scorer in SCORERS.items():
        placed, took_ms = online(empty, demands, scorer)
        rows.append(
            {
                "scorer": name,
                "nodes": options.nodes,
                "jobs": options.jobs,
                "decision_ms_median": round(statistics.median(took_ms), 3),
                "decision_ms_p99": round(statistics.quantiles(took_ms, n=100)[98], 3),
                "acceptance": round(placed / options.jobs, 4),
                "optimum_gap": round(gap[name], 4),
                "instances": options.instances,
                "instances_unsolved": unsolved,
            }
        )
        print(
            f"{name:26} decision {rows[-1]['decision_ms_median']:>7} ms median, "
            f"{rows[-1]['decision_ms_p99']:>8} ms p99; "
            f"acceptance {rows[-1]['acceptance']:.4f}; gap to the optimum {100 * gap[name]:.2f} %",
            flush=True,
        )
    print(report.write("placement", rows, picture(rows, options.seed)))


if __name__ == "__main__":
    main()
