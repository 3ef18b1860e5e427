"""Guaranteed rates of flows on a network device: a tree of HTB classes chosen by DSCP (RFC 2474) and peer.

    1:   HTB, everything unmarked goes to the last class
    └─ 1:1   the device's rate
       ├─ 1:10, 1:11, ..   one class a flow: its rate guaranteed and its limit, served before the rest
       └─ 1:fff            the rest: what is left over, up to the device's rate

A device whose queueing somebody else has set up is left alone. This module knows `tc` and no jobs.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from k40s.errors import BadInput, Conflict
from k40s.node.errors import KernelRefused

REST_CLASS = 0xFFF
FIRST_CLASS = 0x10
KERNEL_DEFAULTS = frozenset({"noqueue", "pfifo_fast", "fq_codel", "mq", "pfifo"})
HANDLE = "4d40:"
"""Our mark: a root qdisc with this handle was made here."""
IPV4, IPV6 = "ip", "ipv6"


@dataclass(frozen=True, slots=True, order=True)
class Device:
    """A network device, in a named network namespace or in the caller's own (`""`)."""

    name: str
    namespace: str = ""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


@dataclass(frozen=True, slots=True)
class FlowClass:
    """A flow's guarantee on one device.

    `dscp` 0..63; `rate_bps` guaranteed and at most that when `ceil_bps` equals it; `burst_bytes` sent at
    line rate; `priority` 0 (served first) to 6; `peer` an address or prefix that narrows the match, `""`
    for any.
    """

    flow: str
    dscp: int
    rate_bps: int
    ceil_bps: int
    burst_bytes: int
    priority: int = 0
    peer: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.dscp <= 63:
            raise BadInput(f"flow {self.flow!r}: dscp {self.dscp} does not exist, use 0 to 63")
        if not 8 <= self.rate_bps <= self.ceil_bps:
            raise BadInput(f"flow {self.flow!r}: rate {self.rate_bps} bit/s must lie in 8..{self.ceil_bps}")
        if not 0 <= self.priority <= 6:
            raise BadInput(f"flow {self.flow!r}: priority {self.priority}, use 0 to 6 (7 is the rest)")


class Links(Protocol):
    """Guarantees on devices. Errors: `Conflict` for a device that somebody else shapes, `KernelRefused`."""

    def shape(self, device: Device, rate_bps: int, flows: Sequence[FlowClass]) -> None:
        """Make the device give each flow its rate; what was set before is replaced."""

    def unshape(self, device: Device) -> None:
        """Take our classes away; nothing happens when there are none or the device is gone."""

    def shaped(self, device: Device) -> bool:
        """Whether our classes are on the device."""

    def sent_bytes(self, device: Device) -> Mapping[str, int]:
        """Bytes sent per class id, `"10"` for the first flow and `"fff"` for the rest;

        empty when not shaped.
        """


def class_ids(flows: Sequence[FlowClass]) -> dict[str, str]:
    """Class id of each flow, as `sent_bytes` names them."""
    return {flow.flow: f"{FIRST_CLASS + index:x}" for index, flow in enumerate(flows)}


def check_fits(device: Device, rate_bps: int, flows: Sequence[FlowClass]) -> None:
    """`BadInput` when the guaranteed rates add up to more than the device has, or two flows look the same."""
    total = sum(flow.rate_bps for flow in flows)
    if total >= rate_bps:
        raise BadInput(f"device {device}: flows ask for {total} bit/s of {rate_bps}, leave some for the rest")
    seen: dict[tuple[int, str], str] = {}
    for flow in flows:
        other = seen.setdefault((flow.dscp, flow.peer), flow.flow)
        if other != flow.flow:
            raise BadInput(
                f"flow {flow.flow!r}: dscp {flow.dscp} and peer are those of {other!r}, change one"
            )


@dataclass(frozen=True, slots=True)
class TcLinks:
    """Through `tc` of iproute2, one batch a change."""

    def shape(self, device: Device, rate_bps: int, flows: Sequence[FlowClass]) -> None:
        check_fits(device, rate_bps, flows)
        kind, handle = self._root(device)
        if handle != HANDLE and kind not in KERNEL_DEFAULTS:
            raise Conflict(f"device {device} has a {kind} qdisc that k4.0s did not make: remove it first")
        if handle == HANDLE:
            self.unshape(device)
        try:
            self._batch(device, _commands(device.name, rate_bps, flows))
        except KernelRefused:
            self.unshape(device)
            raise

    def unshape(self, device: Device) -> None:
        if self.shaped(device):
            self._batch(device, [f"qdisc del dev {device.name} root"])

    def shaped(self, device: Device) -> bool:
        return self._root(device)[1] == HANDLE

    def sent_bytes(self, device: Device) -> Mapping[str, int]:
        if not self.shaped(device):
            return {}
        # iproute2 6.1 prints classes as text only: "class htb 4d40:10 parent 4d40:1 .." then "Sent 3000 bytes ..".
        shown = _tc(device, ["-s", "class", "show", "dev", device.name])
        leaves = re.findall(rf"class htb {HANDLE}(\w+) parent {HANDLE}1 .*\n\s*Sent (\d+) bytes", shown)
        return {leaf: int(sent) for leaf, sent in leaves}

    def _root(self, device: Device) -> tuple[str, str]:
        try:
            listed = json.loads(_tc(device, ["-j", "qdisc", "show", "dev", device.name]) or "[]")
        except KernelRefused:
            return "", ""  # no such device, or its namespace is gone with everything in it
        roots = [entry for entry in listed if entry.get("root")]
        return (roots[0]["kind"], roots[0]["handle"]) if roots else ("noqueue", "")

    def _batch(self, device: Device, lines: Sequence[str]) -> None:
        _tc(device, ["-batch", "-"], "\n".join(lines) + "\n")


def _commands(name: str, rate_bps: int, flows: Sequence[FlowClass]) -> list[str]:
    major = HANDLE
    rest_bps = rate_bps - sum(flow.rate_bps for flow in flows)
    lines = [
        f"qdisc add dev {name} root handle {major} htb default {REST_CLASS:x}",
        f"class add dev {name} parent {major} classid {major}1 htb rate {rate_bps}bit ceil {rate_bps}bit",
        f"class add dev {name} parent {major}1 classid {major}{REST_CLASS:x} htb "
        f"rate {rest_bps}bit ceil {rate_bps}bit prio 7",
    ]
    for index, flow in enumerate(flows):
        leaf = f"{major}{FIRST_CLASS + index:x}"
        lines.append(
            f"class add dev {name} parent {major}1 classid {leaf} htb rate {flow.rate_bps}bit "
            f"ceil {flow.ceil_bps}bit burst {max(flow.burst_bytes, 1600)} prio {flow.priority}"
        )
        families = (IPV6,) if ":" in flow.peer else (IPV4,) if flow.peer else (IPV4, IPV6)
        # A flow that names its peer is asked for before one that takes any; tc wants one family per
        # preference.
        before = 10 if flow.peer else 20
        lines.extend(_filter(name, flow, leaf, family, before) for family in families)
    return lines


def _filter(name: str, flow: FlowClass, leaf: str, family: str, before: int) -> str:
    match family:
        case "ip":
            field_match, destination, preference = f"match ip tos {flow.dscp << 2:#x} 0xfc", "ip dst", before
        case _:  # the traffic class of IPv6 straddles two bytes
            field_match, destination = f"match u16 {flow.dscp << 6:#x} 0x0fc0 at 0", "ip6 dst"
            preference = before + 1
    peer = f" match {destination} {flow.peer}" if flow.peer else ""
    return (
        f"filter add dev {name} parent {HANDLE} protocol {family} prio {preference} "
        f"u32 {field_match}{peer} flowid {leaf}"
    )


def _tc(device: Device, arguments: Sequence[str], text: str = "") -> str:
    inside = ["nsenter", f"--net=/run/netns/{device.namespace}"] if device.namespace else []
    done = subprocess.run(
        [*inside, "tc", *arguments], input=text, capture_output=True, text=True, timeout=10, check=False
    )
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or ["no message"])[0]
        raise KernelRefused(f"tc {' '.join(arguments)} on {device}: {said}", done.returncode)
    return done.stdout


@dataclass(slots=True)
class FakeLinks:
    """Devices in memory. `foreign` are those whose queueing somebody else has set up."""

    foreign: frozenset[Device] = frozenset()
    on: dict[Device, tuple[int, tuple[FlowClass, ...]]] = field(default_factory=dict)

    def shape(self, device: Device, rate_bps: int, flows: Sequence[FlowClass]) -> None:
        check_fits(device, rate_bps, flows)
        if device in self.foreign:
            raise Conflict(f"device {device} has a qdisc that k4.0s did not make: remove it first")
        self.on[device] = (rate_bps, tuple(flows))

    def unshape(self, device: Device) -> None:
        self.on.pop(device, None)

    def shaped(self, device: Device) -> bool:
        return device in self.on

    def sent_bytes(self, device: Device) -> Mapping[str, int]:
        if device not in self.on:
            return {}
        return {**dict.fromkeys(class_ids(self.on[device][1]).values(), 0), f"{REST_CLASS:x}": 0}
