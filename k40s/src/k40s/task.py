"""For the job: tell k4.0s when a period's work begins and ends.

    from k40s.task import Task

    with Task.open("control", period_ns=5_000_000) as task:
        while True:
            task.wait()     # sleeps until the next release
            task.begin()
            ...             # the work of one period
            task.end()

Without k4.0s (no `K40S_TASK_DIR` in the environment) the same program runs and nobody watches. The record is shared
memory of a fixed size: no system call but the sleep, no lock, nothing that could block. The C header
`k40s_task.h` writes the same record. Needs the standard library only.

Layout, version 1, little-endian, one writer (offsets in bytes):

      0  magic "K40STASK"       96  tid of the writer          144  worst response, ns
      8  version, ring length  104  WCET in mode LO, ns        152  periods that ran past the WCET
     16  name, 64 bytes UTF-8  112  periods begun              160  longest execution, ns
     80  period, ns            120  periods ended              168  unused up to 4096
     88  deadline, ns          128  releases skipped
                               136  deadlines missed           4096  ring of 32-byte records:
                                                                     release, begin, end, execution, ns

Times are CLOCK_MONOTONIC. Record i of the job lies at slot i modulo the ring length and is whole once
`periods ended` exceeds i. A release that is skipped because its whole period went by is a missed deadline too.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final

MAGIC: Final = b"K40STASK"
VERSION: Final = 1
RING: Final = 1024
RING_AT: Final = 4096
RECORD_BYTES: Final = 32
FILE_BYTES: Final = RING_AT + RING * RECORD_BYTES
DIRECTORY_VARIABLE: Final = "K40S_TASK_DIR"

_HEAD = struct.Struct("<8sII64sQQQQ")
_COUNTERS = struct.Struct("<QQQQQQQ")
_COUNTERS_AT = 112
_RECORD = struct.Struct("<QQQQ")


@dataclass(frozen=True, slots=True)
class Period:
    """One period's work: when it was released, begun and ended, and what it executed, all nanoseconds."""

    release_ns: int
    begin_ns: int
    end_ns: int
    execution_ns: int

    @property
    def response_ns(self) -> int:
        """From release to end."""
        return self.end_ns - self.release_ns


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """What a task has told so far."""

    name: str
    period_ns: int
    deadline_ns: int
    tid: int
    wcet_ns: int
    begun: int
    ended: int
    skipped: int
    missed: int
    worst_response_ns: int
    overruns: int
    worst_execution_ns: int
    periods: tuple[Period, ...]
    """Those asked for that are still in the ring, oldest first."""


def empty_record(name: str, period_ns: int, deadline_ns: int, wcet_ns: int = 0, tid: int = 0) -> bytes:
    """The head of a record that nobody has written to yet."""
    encoded = name.encode()[:64]
    return _HEAD.pack(MAGIC, VERSION, RING, encoded, period_ns, deadline_ns, tid, wcet_ns)


def read_record(path: Path, seen: int = 0) -> TaskRecord | None:
    """The record in a file, with its periods from number `seen` on; None when it is not whole.

    Reads instead of mapping: a job may cut its file short, which must hurt nobody but itself.
    """
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES)
            file.seek(_COUNTERS_AT)
            after = file.read(_COUNTERS.size)
    except OSError:
        return None
    if len(data) < FILE_BYTES or len(after) < _COUNTERS.size:
        return None
    magic, version, ring, name, period_ns, deadline_ns, tid, wcet_ns = _HEAD.unpack_from(data)
    if (magic, version, ring) != (MAGIC, VERSION, RING):
        return None
    begun, ended, skipped, missed, worst_ns, overruns, longest_ns = _COUNTERS.unpack_from(data, _COUNTERS_AT)
    # What was overwritten while it was read is left out: the ring holds the last RING periods of `after`.
    oldest = max(seen, _COUNTERS.unpack(after)[1] + 1 - RING, ended - RING, 0)
    periods = tuple(
        Period(*_RECORD.unpack_from(data, RING_AT + index % RING * RECORD_BYTES))
        for index in range(oldest, ended)
    )
    text = name.rstrip(b"\0").decode(errors="replace")
    counters = (begun, ended, skipped, missed, worst_ns, overruns, longest_ns)
    return TaskRecord(text, period_ns, deadline_ns, tid, wcet_ns, *counters, periods)


class Task:
    """One periodic thread of the job, used by that thread alone."""

    def __init__(self, memory: mmap.mmap, name: str, period_ns: int, deadline_ns: int, wcet_ns: int) -> None:
        self._memory = memory
        self._period_ns = period_ns
        self._deadline_ns = deadline_ns
        self._wcet_ns = wcet_ns
        self._begun = self._ended = self._skipped = self._missed = self._overruns = 0
        self._worst_response_ns = self._worst_execution_ns = 0
        self._release_ns = time.monotonic_ns()
        self._begin_ns = self._begin_cpu_ns = 0
        memory[: _HEAD.size] = empty_record(name, period_ns, deadline_ns, wcet_ns, threading.get_native_id())
        self._tell()

    @classmethod
    def open(cls, name: str, period_ns: int, deadline_ns: int | None = None) -> Task:
        """The task of this name; its record is where the environment says, or nowhere.

        A deadline or WCET that k4.0s was told at admission takes the place of what the job says here.
        """
        memory, wcet_ns = mmap.mmap(-1, FILE_BYTES), 0
        deadline_ns = period_ns if deadline_ns is None else deadline_ns
        directory = os.environ.get(DIRECTORY_VARIABLE)
        if directory:
            path = Path(directory) / f"{name}.task"
            known = read_record(path)
            if known is not None:
                deadline_ns, wcet_ns = known.deadline_ns or deadline_ns, known.wcet_ns
            with path.open("r+b") as file:
                memory = mmap.mmap(file.fileno(), FILE_BYTES)
        return cls(memory, name, period_ns, deadline_ns, wcet_ns)

    def wait(self) -> int:
        """Sleep until the next release and return its time. Releases a whole period back are skipped."""
        self._release_ns += self._period_ns
        now_ns = time.monotonic_ns()
        late_periods = max(0, now_ns - self._release_ns) // self._period_ns
        if late_periods:
            self._skipped += late_periods
            self._missed += late_periods
            self._release_ns += late_periods * self._period_ns
            self._tell()
        while (left_ns := self._release_ns - time.monotonic_ns()) > 0:
            time.sleep(left_ns / 1e9)
        return self._release_ns

    def begin(self, release_ns: int | None = None) -> None:
        """The work of a period begins; `release_ns` for a sporadic task, else the last `wait` counts."""
        if release_ns is not None:
            self._release_ns = release_ns
        self._begin_ns = time.monotonic_ns()
        self._begin_cpu_ns = time.thread_time_ns()
        self._begun += 1
        struct.pack_into("<Q", self._memory, _COUNTERS_AT, self._begun)

    def end(self) -> None:
        """The work of the period is done."""
        end_ns, execution_ns = time.monotonic_ns(), time.thread_time_ns() - self._begin_cpu_ns
        slot = RING_AT + self._ended % RING * RECORD_BYTES
        _RECORD.pack_into(self._memory, slot, self._release_ns, self._begin_ns, end_ns, execution_ns)
        response_ns = end_ns - self._release_ns
        self._missed += response_ns > self._deadline_ns
        self._overruns += 0 < self._wcet_ns < execution_ns
        self._worst_response_ns = max(self._worst_response_ns, response_ns)
        self._worst_execution_ns = max(self._worst_execution_ns, execution_ns)
        self._ended += 1
        self._tell()

    def _tell(self) -> None:
        _COUNTERS.pack_into(
            self._memory,
            _COUNTERS_AT,
            self._begun,
            self._ended,
            self._skipped,
            self._missed,
            self._worst_response_ns,
            self._overruns,
            self._worst_execution_ns,
        )

    def __enter__(self) -> Task:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._memory.close()
