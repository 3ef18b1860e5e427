"""Guaranteed rates: one suite for `tc` in a namespace of the test's own and for the fake."""

import os
import subprocess
from collections.abc import Iterator
from typing import TypeAlias

import pytest

from k40s.errors import BadInput, Conflict
from k40s.node.errors import KernelRefused
from k40s.node.links import Device, FakeLinks, FlowClass, Links, TcLinks, class_ids

NAMESPACE = f"k40s-t{os.getpid()}"
LOOP = FlowClass("loop", 46, 20_000_000, 20_000_000, 3000)
VIDEO = FlowClass("video", 34, 30_000_000, 90_000_000, 30_000, 3, peer="10.9.0.2")
SIX = FlowClass("six", 40, 1_000_000, 2_000_000, 3000, 1, peer="fd00::/64")
Subject: TypeAlias = tuple[Links, Device]


def run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


@pytest.fixture
def namespace() -> Iterator[str]:
    run("ip", "netns", "add", NAMESPACE)
    run("ip", "-n", NAMESPACE, "link", "add", "va", "type", "veth", "peer", "name", "vb")
    for name in ("va", "vb", "lo"):
        run("ip", "-n", NAMESPACE, "link", "set", name, "up")
    run("ip", "-n", NAMESPACE, "addr", "add", "10.9.0.1/24", "dev", "va")
    yield NAMESPACE
    run("ip", "netns", "del", NAMESPACE)


@pytest.fixture(params=["fake", pytest.param("tc", marks=pytest.mark.root)])
def subject(request: pytest.FixtureRequest) -> Subject:
    if request.param == "fake":
        return FakeLinks(), Device("va", NAMESPACE)
    return TcLinks(), Device("va", request.getfixturevalue("namespace"))


def test_a_device_is_shaped_replaced_and_freed(subject: Subject) -> None:
    links, device = subject
    assert not links.shaped(device)
    assert links.sent_bytes(device) == {}
    for flows in ([LOOP], [LOOP, VIDEO, SIX], []):
        links.shape(device, 100_000_000, flows)
        assert links.shaped(device)
        assert set(links.sent_bytes(device)) == {*class_ids(flows).values(), "fff"}
    for _ in range(2):
        links.unshape(device)
        assert not links.shaped(device)


def test_a_device_that_is_gone_is_not_shaped(subject: Subject) -> None:
    links, device = subject
    gone = Device("gone", device.namespace)
    links.unshape(gone)
    assert not links.shaped(gone)


@pytest.mark.parametrize(
    "flows", [[LOOP, FlowClass("other", 46, 10, 10, 1)], [FlowClass("all", 1, 100_000_000, 100_000_000, 1)]]
)
def test_what_cannot_be_guaranteed_is_refused(subject: Subject, flows: list[FlowClass]) -> None:
    links, device = subject
    with pytest.raises(BadInput):
        links.shape(device, 100_000_000, flows)
    assert not links.shaped(device)


@pytest.mark.root
def test_somebody_elses_queueing_is_left_alone(namespace: str) -> None:
    run(
        "ip",
        "netns",
        "exec",
        namespace,
        *["tc", "qdisc", "add", "dev", "va", "root", "tbf", "rate", "1mbit", "burst", "2k", "latency", "9ms"],
    )
    links, device = TcLinks(), Device("va", namespace)
    with pytest.raises(Conflict, match="tbf"):
        links.shape(device, 100_000_000, [LOOP])
    links.unshape(device)
    shown = subprocess.run(
        ["tc", "-n", namespace, "qdisc", "show", "dev", "va"], check=True, capture_output=True, text=True
    )
    assert "tbf" in shown.stdout


@pytest.mark.root
def test_a_failed_change_leaves_no_half(namespace: str) -> None:
    links, device = TcLinks(), Device("va", namespace)
    with pytest.raises(KernelRefused):
        links.shape(device, 100_000_000, [LOOP, FlowClass("bad", 1, 1000, 1000, 1, peer="nonsense")])
    assert not links.shaped(device)


@pytest.mark.root
def test_packets_go_to_the_class_of_their_code_point_and_peer(namespace: str) -> None:
    links, device = TcLinks(), Device("va", namespace)
    flows = [LOOP, VIDEO]
    links.shape(device, 100_000_000, flows)
    run("ip", "-n", namespace, "neigh", "add", "10.9.0.2", "lladdr", "02:00:00:00:00:01", "dev", "va")
    run("ip", "-n", namespace, "neigh", "add", "10.9.0.3", "lladdr", "02:00:00:00:00:01", "dev", "va")
    send = (
        "import socket,sys\n"
        "for peer,tos,count in (('10.9.0.3',46<<2,3),('10.9.0.2',34<<2,5),('10.9.0.3',34<<2,7)):\n"
        " s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.setsockopt(0,socket.IP_TOS,tos)\n"
        " [s.sendto(b'x'*958,(peer,9)) for _ in range(count)]\n"
    )
    run("nsenter", f"--net=/run/netns/{namespace}", "python3", "-c", send)
    sent = links.sent_bytes(device)
    ids = class_ids(flows)
    assert (sent[ids["loop"]], sent[ids["video"]]) == (3000, 5000)
    assert 7000 <= sent["fff"] < 8000, "beside them, what IPv6 says by itself"


@pytest.mark.parametrize(
    ("dscp", "rate_bps", "ceil_bps", "priority"),
    [(64, 10, 10, 0), (1, 0, 10, 0), (1, 11, 10, 0), (1, 10, 10, 7)],
)
def test_impossible_flows_are_no_flows(dscp: int, rate_bps: int, ceil_bps: int, priority: int) -> None:
    with pytest.raises(BadInput):
        FlowClass("f", dscp, rate_bps, ceil_bps, 1, priority)
