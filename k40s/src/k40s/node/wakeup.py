"""Wake-up latency of this machine: a process of its own, above all jobs, that sleeps and looks how late it wakes.

It runs as a program (`python -S wakeup.py FILE PERIOD_MS CORE`) so that no other thread of the daemon delays it,
ends when its standard input does, and needs the standard library only. What it measures is the kernel's and the
host's delay, plus some 30 us of its own. A wake-up a second late and more is none of the kernel's: the core stood
still, suspended or taken away; such time is counted apart. The file holds 3 + 64 little-endian counters: wake-ups,
worst of all (ns), time that the core stood still (ns), and how many fell into each power of two of nanoseconds.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import select
import struct
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

BUCKETS = 64
LAYOUT = struct.Struct(f"<{3 + BUCKETS}Q")
PRIORITY = 99
STANDSTILL_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Latency:
    """Wake-ups since the probe began. `counts[n]` of them were later than 2^(n-1) and at most 2^n ns. Those that a
    standstill delayed are in `still_ns` alone."""

    wakeups: int
    worst_ns: int
    still_ns: int
    counts: tuple[int, ...]

    def since(self, before: Latency) -> Latency:
        """What came after `before`; the worst is then known to its power of two only."""
        counts = tuple(now - then for now, then in zip(self.counts, before.counts, strict=True))
        highest = max((index for index, count in enumerate(counts) if count), default=0)
        worst_ns = min(self.worst_ns, 1 << highest) if self.wakeups > before.wakeups else 0
        return Latency(self.wakeups - before.wakeups, worst_ns, self.still_ns - before.still_ns, counts)

    def quantile_ns(self, fraction: float) -> int:
        """An upper bound of the quantile, a power of two; 0 without wake-ups."""
        rank = math.ceil(fraction * self.wakeups)
        passed = 0
        for index, count in enumerate(self.counts):
            passed += count
            if passed >= rank > 0:
                return min(1 << index, self.worst_ns)
        return 0


NONE_YET = Latency(0, 0, 0, (0,) * BUCKETS)


def read_latency(path: Path) -> Latency:
    """What the probe has found so far."""
    try:
        wakeups, worst_ns, still_ns, *counts = LAYOUT.unpack(path.read_bytes()[: LAYOUT.size])
    except (OSError, struct.error):
        return NONE_YET
    return Latency(wakeups, worst_ns, still_ns, tuple(counts))


def start_probe(path: Path, period_ms: int, core: int) -> subprocess.Popen[bytes]:
    """Start the probe; it ends with its starter, or when its standard input is closed."""
    path.write_bytes(bytes(LAYOUT.size))
    command = [sys.executable, "-S", "-E", __file__, str(path), str(period_ms), str(core)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)


def _measure(path: Path, period_ns: int) -> None:
    counters = [0] * (3 + BUCKETS)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), LAYOUT.size) as memory:
        release_ns = time.monotonic_ns()
        while True:
            release_ns += period_ns
            left_ns = release_ns - time.monotonic_ns()
            if left_ns > 0:
                time.sleep(left_ns / 1e9)
            late_ns = max(0, time.monotonic_ns() - release_ns)
            release_ns += late_ns // period_ns * period_ns
            if late_ns >= STANDSTILL_NS:
                counters[2] += late_ns
            else:
                counters[0] += 1
                counters[1] = max(counters[1], late_ns)
                counters[3 + (late_ns - 1).bit_length() if late_ns else 3] += 1
            memory[:] = LAYOUT.pack(*counters)
            if counters[0] % 8 == 0 and select.select([0], [], [], 0)[0] and not os.read(0, 1):
                return


def main() -> None:
    """The probe itself."""
    path, period_ms, core = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, {core})
    with contextlib.suppress(OSError):  # without the right it still measures, as an ordinary process
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    _measure(path, period_ms * 1_000_000)


if __name__ == "__main__":
    main()
