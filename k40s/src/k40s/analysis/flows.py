"""Flows over links: whether each arrives in time, by network calculus in integers.

A link serves the highest priority first, whole frames without preemption, FIFO within a priority. A flow
sends no more than burst + rate * t bits in any time t (a token bucket). For priority p on a link of capacity
C what is left is a rate R = C - (rates above p) after a latency of (bursts above p + largest frame below p) /
R; all bursts of p together wait for it at most (bursts above + largest frame below + bursts of p) / R. Behind
a link a flow's burst has grown by rate * that delay (Cruz, IEEE Trans. Information Theory 1991; Le Boudec and
Thiran, "Network Calculus", 2001). Bounds of the hops add up, so a verdict on latency is never a refutation
unless the flow is late on idle links.

Bits are bits on the wire: preamble and gap between frames (20 bytes on Ethernet) are the caller's to count.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from graphlib import CycleError, TopologicalSorter

from k40s.analysis.verdict import Bound, Overload, Proved, Refuted, TooFar, Undecided, Verdict
from k40s.errors import BadInput

SECOND_NS = 10**9

ETHERNET_FRAME_BITS = 8 * 1542
"""Largest tagged Ethernet frame (1522 bytes) with preamble and gap."""


@dataclass(frozen=True, slots=True)
class Link:
    """One direction of one wire, with the queue in front of it.

    Args:
        name: unique among the links.
        rate_bps: bits per second, 1 or more.
        delay_ns: constant time from the end of sending a frame to the next queue: cable and switch.
        other_frame_bits: largest frame of traffic that is not declared as a flow, which all flows come
            before; 0 where there is none.

    Raises:
        BadInput: a field is out of its range.
    """

    name: str
    rate_bps: int
    delay_ns: int = 0
    other_frame_bits: int = ETHERNET_FRAME_BITS

    def __post_init__(self) -> None:
        what = f"link {self.name}"
        _check(what, (("rate_bps", self.rate_bps, 1), ("delay_ns", self.delay_ns, 0)))
        _check(what, (("other_frame_bits", self.other_frame_bits, 0),))


@dataclass(frozen=True, slots=True)
class Flow:
    """A stream of frames along a path.

    Args:
        name: for messages; need not be unique.
        path: names of links, first to last, none twice.
        priority: the larger is served first (PCP, 0 to 7).
        rate_bps: bits per second in the long run, 1 or more.
        burst_bits: what may come at once, at least one largest frame.
        frame_bits: largest frame, 1 or more.
        limit_ns: latency allowed from the first queue to the end of the last link.

    Raises:
        BadInput: a field is out of its range.
    """

    name: str
    path: tuple[str, ...]
    priority: int
    rate_bps: int
    burst_bits: int
    frame_bits: int
    limit_ns: int

    def __post_init__(self) -> None:
        what = f"flow {self.name}"
        _check(what, (("rate_bps", self.rate_bps, 1), ("frame_bits", self.frame_bits, 1)))
        _check(what, (("burst_bits", self.burst_bits, self.frame_bits), ("limit_ns", self.limit_ns, 1)))
        if not 0 <= self.priority <= 7:
            raise BadInput(f"{what}: priority is {self.priority}; it must be 0 to 7")
        if not self.path or len(set(self.path)) < len(self.path):
            raise BadInput(f"{what}: path is {self.path}; name one link or more, none twice")


def _check(what: str, fields: Iterable[tuple[str, int, int]]) -> None:
    for field, value, least in fields:
        if not isinstance(value, int) or value < least:
            raise BadInput(f"{what}: {field} is {value!r}; give an integer of {least} or more")


def flow_latencies(links: Sequence[Link], flows: Sequence[Flow]) -> Verdict:
    """Whether every flow keeps its latency limit on the way along its links.

    `Proved` bounds the latency of each flow in the order given. `Refuted` is an overloaded link, or a flow
    that is late when it has all links to itself. Everything else that is not proved is `Undecided`: the
    bounds are not exact, and paths that feed each other in a circle are not followed.

    Raises:
        BadInput: two links of one name, or a path over a link that is not given.
    """
    by_name = _by_name(links, flows)
    crossing = _crossing(flows)
    for link in links:
        share = link_utilisation(link, (flows[index] for index in crossing[link.name]))
        if share > 1:
            return Refuted(Overload(f"link {link.name}", share * link.rate_bps, Fraction(link.rate_bps)))
    for flow in flows:
        alone_ns = sum(
            _sending_ns(flow.frame_bits, by_name[name]) + by_name[name].delay_ns for name in flow.path
        )
        if alone_ns > flow.limit_ns:
            return Refuted(TooFar(flow.name, alone_ns, flow.limit_ns))
    try:
        order = tuple(_upstream_first(flows).static_order())
    except CycleError as circle:
        return Undecided(
            f"flows feed each other in a circle over the links {', '.join(map(str, circle.args[1]))}"
        )
    latencies = _latencies(by_name, flows, crossing, order)
    for flow, latency_ns in zip(flows, latencies, strict=True):
        if latency_ns > flow.limit_ns:
            return Undecided(
                f"{flow.name}: its latency is bounded by {latency_ns} ns, above its limit of {flow.limit_ns} ns"
            )
    return Proved(
        tuple(Bound(flow.name, ns, flow.limit_ns) for flow, ns in zip(flows, latencies, strict=True))
    )


def link_utilisation(link: Link, flows: Iterable[Flow]) -> Fraction:
    """Share of the link that the flows crossing it take in the long run; above 1 it is overloaded."""
    return Fraction(sum(flow.rate_bps for flow in flows if link.name in flow.path), link.rate_bps)


def _by_name(links: Sequence[Link], flows: Sequence[Flow]) -> Mapping[str, Link]:
    by_name = {link.name: link for link in links}
    if len(by_name) < len(links):
        raise BadInput("two links have one name; give each its own")
    for flow in flows:
        for name in flow.path:
            if name not in by_name:
                raise BadInput(f"flow {flow.name}: path names link {name}; give that link or leave it out")
    return by_name


def _crossing(flows: Sequence[Flow]) -> Mapping[str, list[int]]:
    """Indices of the flows that cross each link."""
    crossing: dict[str, list[int]] = defaultdict(list)
    for index, flow in enumerate(flows):
        for name in flow.path:
            crossing[name].append(index)
    return crossing


def _sending_ns(bits: int, link: Link) -> int:
    """Time to put so many bits on the wire, rounded down."""
    return bits * SECOND_NS // link.rate_bps


def _upstream_first(flows: Sequence[Flow]) -> TopologicalSorter[str]:
    """Links in an order in which every queue is reached after those that feed it."""
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for flow in flows:
        sorter.add(flow.path[0])
        for before, after in zip(flow.path, flow.path[1:], strict=False):
            sorter.add(after, before)
    return sorter


def _latencies(
    by_name: Mapping[str, Link],
    flows: Sequence[Flow],
    crossing: Mapping[str, list[int]],
    order: Iterable[str],
) -> list[int]:
    """Bound of each flow over its whole path, link by link with the bursts grown so far."""
    bursts = [flow.burst_bits for flow in flows]
    latencies = [0] * len(flows)
    for name in order:
        link, here = by_name[name], crossing[name]
        delays = {
            priority: _queue_delay_ns(link, priority, flows, here, bursts)
            for priority in {flows[index].priority for index in here}
        }
        for index in here:
            delay_ns = delays[flows[index].priority]
            latencies[index] += delay_ns + link.delay_ns
            bursts[index] += -(-(flows[index].rate_bps * delay_ns) // SECOND_NS)
    return latencies


def _queue_delay_ns(
    link: Link, priority: int, flows: Sequence[Flow], here: Sequence[int], bursts: Sequence[int]
) -> int:
    """Longest from a frame's arrival in the queue to its last bit on the wire, rounded up."""
    left_bps = link.rate_bps - sum(
        flows[index].rate_bps for index in here if flows[index].priority > priority
    )
    blocking = max(
        (flows[index].frame_bits for index in here if flows[index].priority < priority),
        default=0,
    )
    ahead = sum(bursts[index] for index in here if flows[index].priority >= priority)
    return -(-((ahead + max(blocking, link.other_frame_bits)) * SECOND_NS) // left_bps)
