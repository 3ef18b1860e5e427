"""A shaped link on one machine: two network namespaces, a veth pair between them, a token bucket at each end.

Needs root and ``ip`` and ``tc`` (iproute2). Namespaces are named after the process that made them, so that
what a killed process left behind is known as such and removed by the next one.
"""

import ctypes
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lynx.errors import BadInput

_NAMESPACES = Path("/run/netns")
_NAME = re.compile(r"lynx-(\d+)-(prefill|decode)")
_CLONE_NEWNET = 0x40000000
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*(k|m|g)?bit(?:/s|ps)?", re.IGNORECASE)
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_LATENCY = "50ms"
"""Longest queue of the token bucket; what does not fit is dropped, as on a real port."""


@dataclass(frozen=True, slots=True)
class Link:
    """Two ends of a shaped link.

    Args:
        prefill: name of prefill's namespace.
        decode: name of decode's namespace.
        prefill_address: IPv4 address of prefill on the link.
        decode_address: IPv4 address of decode on the link.
        rate_bps: bits per second, either way.
    """

    prefill: str
    decode: str
    prefill_address: str
    decode_address: str
    rate_bps: int


def parse_rate(text: str) -> int:
    """Bits per second of ``200mbit``, ``1.5gbit``, ``64kbit``.

    Raises:
        BadInput: it is none of these, or not between 1 kbit and 1000 gbit.
    """
    match = _RATE.fullmatch(text.strip())
    if not match:
        raise BadInput(f"link rate is {text!r}; write it as 200mbit, 1gbit or 64kbit")
    rate_bps = int(float(match[1]) * _UNITS[(match[2] or "").lower()])
    if not 1_000 <= rate_bps <= 10**12:
        raise BadInput(f"link rate is {text!r}; it must be 1kbit to 1000gbit")
    return rate_bps


def can_shape() -> bool:
    """Whether this process may make namespaces and has the tools for it."""
    return os.geteuid() == 0 and all(shutil.which(tool) for tool in ("ip", "tc"))


@contextmanager
def shaped_link(rate_bps: int) -> Iterator[Link]:
    """Make the link, and take it away at the end; stale ones of dead processes go first.

    Raises:
        BadInput: the kernel refuses a part of it; the message holds what it said.
    """
    remove_stale()
    link = Link(
        f"lynx-{os.getpid()}-prefill", f"lynx-{os.getpid()}-decode", "10.77.0.1", "10.77.0.2", rate_bps
    )
    try:
        for command in _commands(link):
            _run(command)
        yield link
    finally:
        for name in (link.prefill, link.decode):
            _remove(name)


def remove_stale() -> list[str]:
    """Remove the namespaces of Lynx processes that are no more; gives back their names."""
    stale = []
    for entry in _NAMESPACES.iterdir() if _NAMESPACES.is_dir() else ():
        match = _NAME.fullmatch(entry.name)
        if match and not Path(f"/proc/{match[1]}").exists():
            _remove(entry.name)
            stale.append(entry.name)
    return stale


def enter_namespace(name: str) -> None:
    """Move this process (its calling thread, and all it starts from now on) into a network namespace.

    Raises:
        BadInput: there is no such namespace, or this process may not enter it.
    """
    path = _NAMESPACES / name
    try:
        with path.open("rb") as file:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.setns(file.fileno(), _CLONE_NEWNET):
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number))
    except OSError as error:
        raise BadInput(
            f"network namespace {name!r} cannot be entered ({error.strerror}); run as root, see 'ip netns'"
        ) from None


def _commands(link: Link) -> list[str]:
    # The burst must hold what the rate gives in one tick of the kernel's clock (4 ms at 250 Hz).
    burst_bytes = max(link.rate_bps // 8 // 250, 16_384)
    shape = f"tbf rate {link.rate_bps}bit burst {burst_bytes} latency {_LATENCY}"
    ends = ((link.prefill, link.prefill_address), (link.decode, link.decode_address))
    commands = [f"ip netns add {name}" for name, _ in ends]
    commands.append(f"ip link add lynx0 netns {link.prefill} type veth peer name lynx0 netns {link.decode}")
    for name, address in ends:
        commands += [
            f"ip -n {name} link set lo up",
            f"ip -n {name} addr add {address}/30 dev lynx0",
            f"ip -n {name} link set lynx0 up",
            f"tc -n {name} qdisc add dev lynx0 root {shape}",
        ]
    return commands


def _run(command: str) -> None:
    done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise BadInput(f"the shaped link could not be made: '{command}' said {done.stderr.strip()!r}")


def _remove(name: str) -> None:
    # The veth pair goes with the namespaces; one that is gone already is as wanted.
    subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
