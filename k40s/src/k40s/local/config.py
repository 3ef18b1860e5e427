"""Where the daemon keeps and finds things. One frozen value, read once at its start."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from k40s.errors import BadInput

DEFAULT_SOCKET = Path("/run/k40s/k40s.sock")
DEFAULT_STATE = Path("/var/lib/k40s")


@dataclass(frozen=True, slots=True)
class Config:
    """`group`:

    who may talk to the daemon besides root. `tick_ms`: how often what is wanted is compared with what is.
    """

    state: Path = DEFAULT_STATE
    socket: Path = DEFAULT_SOCKET
    group: str = "root"
    cgroup_root: str = "/k40s"
    node: str = platform.node() or "local"
    tick_ms: int = 250
    users: range = range(61184, 65520)
    """Users that jobs run as, each job as one of its own, so that none can signal, trace or reschedule another."""
    memory: Path = Path("/dev/shm")
    """A file system without a disk."""

    @property
    def records(self) -> Path:
        """Task records, in memory: a job that writes to a mapped file on a disk waits for that
        disk now and then, several milliseconds long."""
        return self.memory / self.cgroup_root.strip("/")

    def __post_init__(self) -> None:
        if (
            not self.cgroup_root.startswith("/")
            or self.cgroup_root.count("/") != 1
            or len(self.cgroup_root) < 2
        ):
            raise BadInput(f"cgroup root {self.cgroup_root!r}: use one name after a slash, e.g. /k40s")
        if not 20 <= self.tick_ms <= 10_000:
            raise BadInput(f"tick {self.tick_ms} ms: use 20 to 10000")


def socket_path(environment: Mapping[str, str] = os.environ) -> Path:
    """Where a client finds the daemon: `K40S_SOCKET`, or the default."""
    return Path(environment.get("K40S_SOCKET") or DEFAULT_SOCKET)
