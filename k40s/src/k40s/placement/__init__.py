"""Where jobs may run: filter, score, reserve, over an immutable snapshot. Pure.

place(snapshot, demand_of(job)) -> Placement | Refusal
reserve(snapshot, demand, placement) -> Snapshot
"""

from k40s.placement.core import core_verdict
from k40s.placement.demand import Demand, demand_of
from k40s.placement.inventory import capacity_of, node_of
from k40s.placement.online import Refusal, links_verdict, place, seat_on
from k40s.placement.redundancy import at_least, dependability
from k40s.placement.reservation import NotSized, Reservation, Server
from k40s.placement.scorers import SCORERS, Scorer
from k40s.placement.snapshot import (
    Node,
    Placement,
    Seat,
    Snapshot,
    narrowed,
    reserve,
    snapshot_of,
    unreserve,
    with_nodes,
)
from k40s.placement.why import why_not, why_not_on

__all__ = [
    "SCORERS",
    "Demand",
    "Node",
    "NotSized",
    "Placement",
    "Refusal",
    "Reservation",
    "Scorer",
    "Seat",
    "Server",
    "Snapshot",
    "at_least",
    "capacity_of",
    "core_verdict",
    "demand_of",
    "dependability",
    "links_verdict",
    "narrowed",
    "node_of",
    "place",
    "reserve",
    "seat_on",
    "snapshot_of",
    "unreserve",
    "why_not",
    "why_not_on",
    "with_nodes",
]
