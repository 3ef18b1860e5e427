"""Flows of placed jobs over the links between nodes, proved by network calculus.

Every node has one full-duplex link to a switch: a flow crosses its node's `up` and its peer's `down`, nothing
between jobs of one node, and only `up` towards an address outside or a job that is not placed yet (its `down`
is proved when it is). A flow without a latency bound is proved for its rate alone.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from k40s import api
from k40s.analysis.flows import Flow, Link, flow_latencies
from k40s.analysis.verdict import Undecided, Verdict

_NEVER_NS = 2**62


@dataclass(frozen=True, slots=True)
class PlacedFlow:
    """One flow of one replica towards one replica of its peer."""

    job: str
    """The sender, `namespace/name`."""
    node: str
    peer: str | None
    """`namespace/name` of the peer; absent: an address."""
    path: tuple[str, ...]
    spec: api.Flow

    @property
    def modelled(self) -> Flow:
        """As `analysis` wants it."""
        frame_bits = 8 * max(1, self.spec.frame_bytes)
        return Flow(
            name=f"{self.job}/{self.spec.name} from {self.node}",
            path=self.path,
            priority=self.spec.effective_pcp,
            rate_bps=self.spec.rate_bps,
            burst_bits=max(8 * self.spec.burst_bytes, frame_bits),
            frame_bits=frame_bits,
            limit_ns=self.spec.latency_bound_ns or _NEVER_NS,
        )


ByLink = Mapping[str, tuple[PlacedFlow, ...]]


def up(node: str) -> str:
    """Name of the link from a node to the switch."""
    return f"{node}/up"


def down(node: str) -> str:
    """Name of the link from the switch to a node."""
    return f"{node}/down"


def peer_of(job: str, flow: api.Flow) -> str | None:
    """The peer as `namespace/name`; a peer lives in its sender's namespace."""
    return None if flow.peer.job is None else f"{job.split('/', 1)[0]}/{flow.peer.job}"


def route(
    job: str, flow: api.Flow, nodes: Iterable[str], nodes_of: Callable[[str], Sequence[str]]
) -> list[PlacedFlow]:
    """A job's flow from each of its nodes to each node of its peer; none between jobs of one node."""
    peer = peer_of(job, flow)
    targets = nodes_of(peer) if peer else ()
    routed = []
    for node in nodes:
        if not targets:
            routed.append(PlacedFlow(job, node, peer, (up(node),), flow))
        routed += [
            PlacedFlow(job, node, peer, (up(node), down(target)), flow)
            for target in targets
            if target != node
        ]
    return routed


def without(by_link: ByLink, gone: Iterable[PlacedFlow]) -> dict[str, tuple[PlacedFlow, ...]]:
    """The links with some flows taken off."""
    left = dict(by_link)
    leaving = set(map(id, gone))
    touched = {link for flow in gone for link in flow.path}
    for link in touched:
        left[link] = tuple(flow for flow in left.get(link, ()) if id(flow) not in leaving)
    return left


def together(by_link: ByLink, more: Iterable[PlacedFlow]) -> dict[str, tuple[PlacedFlow, ...]]:
    """The links with some flows added."""
    joined = dict(by_link)
    for flow in more:
        for link in flow.path:
            joined[link] = (*joined.get(link, ()), flow)
    return joined


def flows_verdict(
    by_link: ByLink, fresh: Sequence[PlacedFlow], rate_of: Callable[[str], tuple[int, int] | None]
) -> Verdict:
    """Whether the fresh flows, which `by_link` already holds, and all that they can disturb keep their bounds.

    `rate_of` gives a link's rate in bits per second and its delay in nanoseconds, None for one that is not there.
    """
    disturbed = _downstream(by_link, fresh)
    links = disturbed | _upstream(by_link, disturbed)
    modelled = []
    for name in sorted(links):
        facts = rate_of(name)
        if facts is None:
            return Undecided(f"there is no link {name}; the node's class or snapshot must name its rate")
        modelled.append(Link(name, *facts))
    flows = {id(flow): flow for link in sorted(links) for flow in by_link.get(link, ())}
    return flow_latencies(modelled, [_within(flow, links) for flow in flows.values()])


def _downstream(by_link: ByLink, fresh: Sequence[PlacedFlow]) -> set[str]:
    """Links on which anything may change: those of the fresh flows, and those behind them on any flow's path."""
    found: set[str] = set()
    waiting = [link for flow in fresh for link in flow.path]
    while waiting:
        link = waiting.pop()
        if link not in found:
            found.add(link)
            for flow in by_link.get(link, ()):
                waiting += flow.path[flow.path.index(link) + 1 :]
    return found


def _upstream(by_link: ByLink, links: Iterable[str]) -> set[str]:
    """Links whose delays decide how bursty flows are when they reach the given ones."""
    found: set[str] = set()
    waiting = list(links)
    while waiting:
        link = waiting.pop()
        before = {name for flow in by_link.get(link, ()) for name in flow.path[: flow.path.index(link)]}
        waiting += before - found
        found |= before
    return found


def _within(flow: PlacedFlow, links: set[str]) -> Flow:
    """The flow as far as it runs over the links; what lies behind them is not disturbed and was proved before."""
    inside = tuple(link for link in flow.path if link in links)
    if inside == flow.path:
        return flow.modelled
    return replace(flow.modelled, path=inside, limit_ns=_NEVER_NS)
