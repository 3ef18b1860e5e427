"""Counters of the machine and of its containers.

What they mean is decided in `monitor`, and how often they are read.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from k40s.errors import K40sError
from k40s.monitor.plan import Metric
from k40s.monitor.readings import Counted
from k40s.node.cgroups import CgroupFiles, Controller
from k40s.node.probe import clock_error_us

TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_STEAL, _IDLE, _IOWAIT = 7, 3, 4
"""Columns of a cpu line of /proc/stat: user nice system idle iowait irq softirq steal."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where counters are read."""

    files: CgroupFiles
    root: Path = Path("/")
    clock_ns: Callable[[], int] = time.monotonic_ns

    def read(self, metrics: Iterable[Metric], groups: Iterable[str]) -> dict[Metric, Counted]:
        """One reading of each metric that this source has. Containers that are gone meanwhile are left out."""
        asked = tuple(groups)
        found: dict[Metric, Counted] = {}
        for metric in metrics:
            if metric in MACHINE:
                values = MACHINE[metric](self.root)
            elif metric in CONTAINER:
                values = self._of_groups(metric, asked)
            else:
                continue
            if values is not None:
                found[metric] = Counted(self.clock_ns(), values)
        return found

    def _of_groups(self, metric: Metric, groups: Iterable[str]) -> dict[str, int]:
        values: dict[str, int] = {}
        for group in groups:
            with contextlib.suppress(K40sError):
                values[group] = CONTAINER[metric](self.files, group)
        return values


def steal_ns(root: Path = Path("/")) -> dict[str, int]:
    """Time that the host took from each core since boot, in steps of a clock tick."""
    return {core: ticks[_STEAL] * TICK_NS for core, ticks in _cpu_lines(root)}


def _busy_ns(root: Path) -> dict[str, int]:
    return {core: (sum(t[:8]) - t[_IDLE] - t[_IOWAIT]) * TICK_NS for core, t in _cpu_lines(root)}


def _cpu_lines(root: Path) -> list[tuple[str, list[int]]]:
    lines = [line.split() for line in (root / "proc/stat").read_text().splitlines()]
    return [
        (name[3:], [int(counter) for counter in counters])
        for name, *counters in lines
        if name.startswith("cpu") and name != "cpu"
    ]


def _softirqs(root: Path) -> dict[str, int]:
    lines = (root / "proc/stat").read_text().splitlines()
    return {"": next((int(line.split()[1]) for line in lines if line.startswith("softirq")), 0)}


def _pressure(resource: str) -> Callable[[Path], dict[str, int] | None]:
    def read(root: Path) -> dict[str, int] | None:
        try:
            some = (root / "proc/pressure" / resource).read_text().splitlines()[0]
        except OSError:
            return None
        return {"": int(some.rpartition("total=")[2])}

    return read


def _thermal_events(root: Path) -> dict[str, int] | None:
    counters = list(root.glob("sys/devices/system/cpu/cpu[0-9]*/thermal_throttle/*_throttle_count"))
    return {"": sum(int(path.read_text()) for path in counters)} if counters else None


def _link_errors(root: Path) -> dict[str, int]:
    found: dict[str, int] = {}
    for path in root.glob("sys/class/net/*/statistics/*_errors"):
        with contextlib.suppress(OSError, ValueError):  # the device has just gone
            found[path.parts[-3]] = found.get(path.parts[-3], 0) + int(path.read_text())
    return found


def _clock_error(_: Path) -> dict[str, int] | None:
    error_us = clock_error_us()
    return None if error_us is None else {"": error_us * 1000}


MACHINE: Mapping[Metric, Callable[[Path], dict[str, int] | None]] = {
    Metric.STEAL: steal_ns,
    Metric.BUSY: _busy_ns,
    Metric.CPU_PRESSURE: _pressure("cpu"),
    Metric.MEMORY_PRESSURE: _pressure("memory"),
    Metric.IO_PRESSURE: _pressure("io"),
    Metric.SOFTIRQS: _softirqs,
    Metric.THERMAL: _thermal_events,
    Metric.LINK_ERRORS: _link_errors,
    Metric.CLOCK: _clock_error,
}
"""None: this machine does not have it."""


def _throttled_ns(files: CgroupFiles, group: str) -> int:
    stat = dict(line.split() for line in files.read(Controller.CPU, group, "cpu.stat").splitlines())
    return int(stat.get("throttled_time", 0))


CONTAINER: Mapping[Metric, Callable[[CgroupFiles, str], int]] = {
    Metric.USAGE: lambda files, group: int(files.read(Controller.CPUACCT, group, "cpuacct.usage")),
    Metric.THROTTLED: _throttled_ns,
    Metric.MEMORY: lambda files, group: int(files.read(Controller.MEMORY, group, "memory.usage_in_bytes")),
    Metric.PROCESSES: lambda files, group: int(files.read(Controller.PIDS, group, "pids.current")),
}
