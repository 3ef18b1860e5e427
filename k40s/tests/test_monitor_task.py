"""The record that a job writes: Python and C write the same, and whatever a job does to it hurts nobody else."""

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k40s.task import DIRECTORY_VARIABLE, FILE_BYTES, RING, Task, empty_record, read_record

HEADER = Path(__file__).parents[1] / "include"
PERIOD_NS = 1_000_000

LOOP = """
#define _GNU_SOURCE
#include "k40s_task.h"
int main(void) {
    struct k40s_task task;
    if (k40s_task_open(&task, "loop", 1000000, 900000) != 0) return 1;
    for (int i = 0; i < 1200; i++) {
        if (i < 20) k40s_task_wait(&task);
        k40s_task_begin(&task);
        k40s_task_end(&task);
    }
    return 0;
}
"""


def prepare(folder: Path, deadline_ns: int = 0, wcet_ns: int = 0) -> Path:
    path = folder / "loop.task"
    head = empty_record("loop", PERIOD_NS, deadline_ns, wcet_ns)
    path.write_bytes(head + bytes(FILE_BYTES - len(head)))
    return path


def test_what_the_job_tells_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = prepare(tmp_path)
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    with Task.open("loop", PERIOD_NS, 900_000) as task:
        for _ in range(5):
            task.wait()
            task.begin()
            task.end()
        record = read_record(path, seen=2)
    assert record is not None
    assert (record.name, record.period_ns, record.deadline_ns) == ("loop", PERIOD_NS, 900_000)
    assert (record.begun, record.ended, len(record.periods)) == (5, 5, 3)
    assert record.tid == os.getpid()
    assert all(period.release_ns <= period.begin_ns <= period.end_ns for period in record.periods)
    assert record.worst_response_ns >= max(period.response_ns for period in record.periods)


def test_what_was_told_at_admission_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = prepare(tmp_path, deadline_ns=1, wcet_ns=1)
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    with Task.open("loop", PERIOD_NS, 900_000) as task:
        task.begin()
        sum(range(1000))
        task.end()
    record = read_record(path)
    assert record is not None
    assert (record.missed, record.overruns) == (1, 1)


def test_releases_that_went_by_are_skipped_and_missed() -> None:
    with Task.open("loop", PERIOD_NS) as task:
        task.begin(release_ns=0)
        task.end()
        release_ns = task.wait()
        assert release_ns % PERIOD_NS == 0, "releases stay on their grid"
        assert task._skipped == task._missed - 1 > 0


def test_without_k40s_the_program_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DIRECTORY_VARIABLE, raising=False)
    with Task.open("loop", PERIOD_NS) as task:
        task.begin()
        task.end()


@pytest.mark.parametrize("compiler", ["gcc"])
def test_c_writes_the_same_record(compiler: str, tmp_path: Path) -> None:
    path = prepare(tmp_path)
    (tmp_path / "loop.c").write_text(LOOP)
    build = [compiler, "-std=c11", "-Wall", "-Wextra", "-Werror", "-O2", f"-I{HEADER}"]
    subprocess.run([*build, str(tmp_path / "loop.c"), "-o", str(tmp_path / "loop")], check=True)
    subprocess.run([str(tmp_path / "loop")], env={DIRECTORY_VARIABLE: str(tmp_path)}, check=True, timeout=20)
    record = read_record(path, seen=0)
    assert record is not None
    assert (record.name, record.deadline_ns, record.begun, record.ended) == ("loop", 900_000, 1200, 1200)
    assert len(record.periods) == RING - 1, "the slot that is written next is not trusted"
    assert all(period.release_ns <= period.end_ns for period in record.periods)


@given(data=st.binary(max_size=400))
def test_nonsense_is_no_record(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("task") / "x.task"
    path.write_bytes(data)
    assert read_record(path) is None
    path.write_bytes(data + bytes(FILE_BYTES))
    assert read_record(path) is None


def test_counters_out_of_all_bounds_are_read_without_harm(tmp_path: Path) -> None:
    path = prepare(tmp_path)
    data = bytearray(path.read_bytes())
    data[112:168] = b"\xff" * 56
    path.write_bytes(data)
    record = read_record(path)
    assert record is not None
    assert len(record.periods) < RING
    assert read_record(tmp_path / "none.task") is None
