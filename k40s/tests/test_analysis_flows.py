"""Flows: no simulated frame is later than its bound, hand-worked delays, and honest refusals."""

import heapq
from collections import defaultdict
from fractions import Fraction
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k40s.analysis.flows import ETHERNET_FRAME_BITS, SECOND_NS, Flow, Link, flow_latencies, link_utilisation
from k40s.analysis.verdict import Overload, Proved, Refuted, TooFar, Undecided
from k40s.errors import BadInput

FAST = 10**9


def flow(name: str, *path: str, priority: int = 5, rate: int = 10**6, burst: int = 1000, **more: int) -> Flow:
    frame_bits, limit_ns = more.get("frame", burst), more.get("limit", 10**12)
    return Flow(name, path, priority, rate, burst, frame_bits, limit_ns)


def latencies(links: list[Link], flows: list[Flow]) -> list[int]:
    verdict = flow_latencies(links, flows)
    assert isinstance(verdict, Proved), verdict
    return [bound.at_most_ns for bound in verdict.bounds]


class Frames:
    """Frames over strict-priority links, exact: an oracle that shares no formula with the bound.

    Time is counted in units of which each link takes a whole number per bit, so nothing is rounded. A link
    picks when idle, among the frames that are there, highest priority and earliest first.
    """

    def __init__(self, links: list[Link], flows: list[Flow]) -> None:
        self.links, self.flows = {link.name: link for link in links}, flows
        self.events: list[tuple[Fraction, int, int, str, int, int, Fraction]] = []
        self.queues: dict[str, list[tuple[int, Fraction, int, int, int, Fraction]]] = defaultdict(list)
        self.busy_until: dict[str, Fraction] = defaultdict(Fraction)
        self.count = 0
        self.worst: dict[int, Fraction] = defaultdict(Fraction)

    def arrive(self, at: Fraction, index: int, hop: int, bits: int, born: Fraction) -> None:
        self.count += 1
        heapq.heappush(self.events, (at, self.count, index, "arrive", hop, bits, born))

    def play(self) -> dict[int, Fraction]:
        while self.events:
            now, _, index, kind, hop, bits, born = heapq.heappop(self.events)
            name = self.flows[index].path[hop]
            if kind == "arrive":
                entry = (-self.flows[index].priority, now, self.count, index, hop, born)
                self.count += 1
                heapq.heappush(self.queues[name], (*entry[:3], index, bits, born))
                heapq.heappush(
                    self.events, (max(now, self.busy_until[name]), self.count, index, "pick", hop, bits, born)
                )
            elif self.queues[name] and self.busy_until[name] <= now:
                self.send(name, now)
            elif self.queues[name]:
                self.count += 1
                heapq.heappush(
                    self.events, (self.busy_until[name], self.count, index, "pick", hop, bits, born)
                )
        return self.worst

    def send(self, name: str, now: Fraction) -> None:
        _, _, _, index, bits, born = heapq.heappop(self.queues[name])
        done = now + Fraction(bits * SECOND_NS, self.links[name].rate_bps)
        self.busy_until[name] = done
        there = done + self.links[name].delay_ns
        hop = self.flows[index].path.index(name) + 1
        if hop < len(self.flows[index].path):
            self.arrive(there, index, hop, bits, born)
        else:
            self.worst[index] = max(self.worst[index], there - born)


def token_bucket_frames(flow: Flow, random: Random, frames: int) -> list[tuple[Fraction, int]]:
    """Times and sizes of frames that spend the bucket as early as they may, or dawdle."""
    tokens, now, sent = Fraction(flow.burst_bits), Fraction(random.choice((0, random.randint(0, 3000)))), []
    for _ in range(frames):
        bits = random.choice((flow.frame_bits, random.randint(1, flow.frame_bits)))
        if tokens < bits:
            wait = (bits - tokens) * SECOND_NS / flow.rate_bps
            now, tokens = now + wait, Fraction(bits)
        if random.random() < 0.2:
            wait = Fraction(random.randint(0, 5000))
            now, tokens = (
                now + wait,
                min(Fraction(flow.burst_bits), tokens + wait * flow.rate_bps / SECOND_NS),
            )
        tokens -= bits
        sent.append((now, bits))
    return sent


@st.composite
def networks(draw: st.DrawFn) -> tuple[list[Link], list[Flow]]:
    names = ["a", "b", "c"]
    links = [
        Link(name, draw(st.sampled_from([FAST, FAST // 2, 3 * FAST])), draw(st.integers(0, 500)), 0)
        for name in names
    ]
    flows = []
    for number in range(draw(st.integers(1, 5))):
        first = draw(st.integers(0, 2))
        path = tuple(names[first : draw(st.integers(first + 1, 3))])
        frame_bits = draw(st.integers(1, 3000))
        flows.append(
            Flow(
                f"f{number}",
                path,
                draw(st.integers(0, 3)),
                draw(st.integers(1, FAST // 8)),
                frame_bits + draw(st.integers(0, 9000)),
                frame_bits,
                10**12,
            )
        )
    return links, flows


@settings(max_examples=120, deadline=None)
@given(networks(), st.integers(0, 2**32).map(Random))
def test_no_frame_is_later_than_its_bound(network: tuple[list[Link], list[Flow]], random: Random) -> None:
    links, flows = network
    bounds = latencies(links, flows)
    frames = Frames(links, flows)
    for index, one in enumerate(flows):
        for at, bits in token_bucket_frames(one, random, 12):
            frames.arrive(at, index, 0, bits, at)
    for index, worst in frames.play().items():
        assert worst <= bounds[index]


@settings(max_examples=100, deadline=None)
@given(networks(), st.data())
def test_another_flow_makes_nobody_faster(
    network: tuple[list[Link], list[Flow]], data: st.DataObject
) -> None:
    links, flows = network
    left_out = data.draw(st.integers(0, len(flows) - 1))
    fewer = [one for index, one in enumerate(flows) if index != left_out]
    with_all = latencies(links, flows)
    del with_all[left_out]
    assert all(less <= more for less, more in zip(latencies(links, fewer), with_all, strict=True))


def test_one_hop_by_hand() -> None:
    """1 Gbit/s: 1 bit a nanosecond. high: 1000 + 4000 of low under way. low: 1000 + 3000 + 4000 over 0.9
    Gbit/s.
    """
    link = Link("l", FAST, other_frame_bits=0)
    high = flow("high", "l", priority=6, rate=FAST // 10, burst=1000)
    low = flow("low", "l", priority=2, rate=FAST // 10, burst=8000, frame=4000)
    assert latencies([link], [high, low]) == [5000, 10_000]


def test_traffic_that_is_not_declared_blocks_by_one_frame() -> None:
    assert latencies([Link("l", FAST)], [flow("f", "l")]) == [1000 + ETHERNET_FRAME_BITS]


def test_a_burst_grows_on_its_way() -> None:
    """f waits 2000 ns on a behind g, so it may bring 1000 + 2000 / 10 bits to b, plus 7 ns of cable twice."""
    links = [Link("a", FAST, 7, 0), Link("b", FAST, 7, 0)]
    f = flow("f", "a", "b", rate=FAST // 10)
    g = flow("g", "a", rate=FAST // 10)
    assert latencies(links, [f, g]) == [2000 + 7 + 1200 + 7, 2000 + 7]


def test_delays_are_rounded_up() -> None:
    assert latencies([Link("l", 3, other_frame_bits=0)], [flow("f", "l", rate=1, burst=1)]) == [333_333_334]


def test_overload_is_refuted_exactly() -> None:
    full = [flow("f", "l", rate=FAST - 1), flow("g", "l", rate=1)]
    assert isinstance(flow_latencies([Link("l", FAST)], full), Proved)
    assert link_utilisation(Link("l", FAST), full) == 1
    over = [*full, flow("h", "l", rate=1)]
    assert flow_latencies([Link("l", FAST)], over) == Refuted(
        Overload("link l", Fraction(FAST + 1), Fraction(FAST))
    )


def test_too_far_even_alone() -> None:
    links = [Link("a", FAST, 500, 0), Link("b", FAST, 500, 0)]
    assert flow_latencies(links, [flow("f", "a", "b", limit=2999)]) == Refuted(TooFar("f", 3000, 2999))


def test_a_bound_above_the_limit_is_not_a_refutation() -> None:
    flows = [flow("f", "l", limit=1500), flow("g", "l")]
    match flow_latencies([Link("l", FAST, other_frame_bits=0)], flows):
        case Undecided(reason):
            assert "2000 ns" in reason
            assert "1500 ns" in reason
        case verdict:
            pytest.fail(str(verdict))


def test_a_ring_is_not_followed() -> None:
    links = [Link(name, FAST) for name in "abc"]
    ring = [flow("f", "a", "b"), flow("g", "b", "c"), flow("h", "c", "a")]
    match flow_latencies(links, ring):
        case Undecided(reason):
            assert "circle" in reason
        case verdict:
            pytest.fail(str(verdict))


def test_values_beyond_a_double_are_exact() -> None:
    burst = 2**60 + 1
    assert latencies([Link("l", FAST, other_frame_bits=0)], [flow("f", "l", burst=burst, limit=2**70)]) == [
        burst
    ]


def test_bad_fields_are_named() -> None:
    with pytest.raises(BadInput, match="rate_bps is 0"):
        Link("l", 0)
    with pytest.raises(BadInput, match="burst_bits is 10"):
        flow("f", "l", burst=10, frame=11)
    with pytest.raises(BadInput, match="priority is 8"):
        flow("f", "l", priority=8)
    with pytest.raises(BadInput, match="none twice"):
        flow("f", "l", "l")
    with pytest.raises(BadInput, match="path names link m"):
        flow_latencies([Link("l", FAST)], [flow("f", "m")])
    with pytest.raises(BadInput, match="two links"):
        flow_latencies([Link("l", FAST), Link("l", FAST)], [])
