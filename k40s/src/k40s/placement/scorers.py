"""Which of the possible nodes is best: a number for each, the larger the better.

Kubernetes' three resource scorers (LeastAllocated, MostAllocated, RequestedToCapacityRatio with its default
shape) stand here as baselines, by their documented formulas over CPU and memory in equal weight.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from k40s.placement.filters import View

Scores = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Scorer:
    """How nodes are ranked, and in which order the cores of a node are tried."""

    name: str
    score: Callable[[View], Scores]
    cores: Literal["fullest", "emptiest", "first"]


def _used(view: View) -> Scores:
    """Share of CPU and memory that is requested after placement, averaged, 0 to 1 on nodes with room."""
    cpu = view.cpu_after / np.maximum(view.cap_cpu, 1)
    mem = view.mem_after / np.maximum(view.cap_mem, 1)
    mean: Scores = (cpu + mem) / 2
    return mean


def _served(view: View) -> Scores:
    """Share of the real-time cores that servers take before placement, 0 to 1."""
    share: Scores = view.taken_ppb / np.maximum(view.cores, 1) / 1e9
    return share


def _worst_fit(view: View) -> Scores:
    return -(_used(view) + _served(view))


def _first_fit(view: View) -> Scores:
    return -np.arange(view.cores.shape[0], dtype=np.float64)


def _assurance_waste(view: View) -> Scores:
    """The least assurance spent; among equals the emptiest node.

    Two things are spent. What the node offers, or must offer for others, beyond what this job needs: trusted
    nodes are kept for those who need them, and nodes that must not over-commit are not filled by those who
    would not mind. And the part of gamma that the node must hold from now on and did not have to before: it can
    over-commit less.
    """
    needed = np.maximum(view.floor_before, view.floor)
    unneeded = np.maximum(view.trust, needed) - view.floor
    held_before = np.maximum(view.floor_before - view.trust, 0)
    held_after = np.maximum(needed - view.trust, 0)
    spent: Scores = (unneeded + held_after - held_before) / 1000
    return -spent - _used(view) / 10


def _least_allocated(view: View) -> Scores:
    return 100 * (1 - _used(view))


def _most_allocated(view: View) -> Scores:
    return 100 * _used(view)


def _requested_to_capacity_ratio(view: View) -> Scores:
    """The default shape: 0 at utilisation 0, 10 at 100 %, in whole points as Kubernetes rounds them, times 10."""
    cpu = np.floor(100 * view.cpu_after / np.maximum(view.cap_cpu, 1))
    mem = np.floor(100 * view.mem_after / np.maximum(view.cap_mem, 1))
    points: Scores = np.round((cpu + mem) / 2)
    return points


WORST_FIT = Scorer("worst-fit", _worst_fit, "emptiest")
FIRST_FIT = Scorer("first-fit", _first_fit, "first")
ASSURANCE_WASTE = Scorer("assurance-waste", _assurance_waste, "emptiest")
LEAST_ALLOCATED = Scorer("LeastAllocated", _least_allocated, "first")
MOST_ALLOCATED = Scorer("MostAllocated", _most_allocated, "first")
REQUESTED_TO_CAPACITY_RATIO = Scorer("RequestedToCapacityRatio", _requested_to_capacity_ratio, "first")

SCORERS: Mapping[str, Scorer] = {
    scorer.name: scorer
    for scorer in (
        ASSURANCE_WASTE,
        WORST_FIT,
        FIRST_FIT,
        LEAST_ALLOCATED,
        MOST_ALLOCATED,
        REQUESTED_TO_CAPACITY_RATIO,
    )
}
"""By name; the first is the default."""
