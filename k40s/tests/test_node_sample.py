"""Counters: hand-made files, and this machine's own."""

import os
import select
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k40s.monitor.plan import PER_CONTAINER, Metric
from k40s.node.capabilities import Feature, discover
from k40s.node.cgroups import LinuxCgroups
from k40s.node.fakes import FakeCgroups
from k40s.node.resctrl import Resctrl
from k40s.node.sample import MACHINE, Source, steal_ns
from k40s.node.scheduling import FakeScheduling, LinuxScheduling
from k40s.node.wakeup import BUCKETS, NONE_YET, Latency, read_latency, start_probe

STAT = "cpu  1 2 3 4 5 6 7 8 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\ncpu1 10 0 0 90 0 0 0 3 0 0\nsoftirq 77 1 2\n"


def test_hand_made_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "proc/pressure").mkdir(parents=True)
    (tmp_path / "proc/stat").write_text(STAT)
    (tmp_path / "proc/pressure/cpu").write_text(
        "some avg10=1.0 avg60=0 avg300=0 total=123\nfull avg10=0 total=9\n"
    )
    errors = tmp_path / "sys/class/net/eth0/statistics"
    errors.mkdir(parents=True)
    (errors / "rx_errors").write_text("2")
    (errors / "tx_errors").write_text("3")
    found = Source(FakeCgroups(), tmp_path).read(MACHINE, ())
    assert dict(found[Metric.STEAL].values) == {"0": 80_000_000, "1": 30_000_000}
    assert dict(found[Metric.BUSY].values) == {"0": 270_000_000, "1": 130_000_000}
    assert dict(found[Metric.CPU_PRESSURE].values) == {"": 123}
    assert dict(found[Metric.SOFTIRQS].values) == {"": 77}
    assert dict(found[Metric.LINK_ERRORS].values) == {"eth0": 5}
    assert Metric.THERMAL not in found
    assert Metric.IO_PRESSURE not in found


def test_containers_that_are_gone_are_left_out() -> None:
    files = FakeCgroups()
    for controller in files.controllers():
        files.make(controller, "/k40s/NO/a/b")
    found = Source(files).read(PER_CONTAINER, ("/k40s/NO/a/b", "/k40s/NO/gone/x"))
    assert set(found) == PER_CONTAINER
    assert all(set(counted.values) == {"/k40s/NO/a/b"} for counted in found.values())


def test_this_machine_has_what_the_monitor_needs() -> None:
    found = Source(FakeCgroups()).read((Metric.STEAL, Metric.CPU_PRESSURE, Metric.SOFTIRQS), ())
    assert len(found) == 3
    assert steal_ns().keys() == {str(core) for core in range(os.cpu_count() or 0)}


@pytest.mark.root
def test_features_are_found_by_trying() -> None:
    found = discover(LinuxCgroups.open(), LinuxScheduling.open(), Resctrl())
    assert set(found) == set(Feature)
    assert found == discover(LinuxCgroups.open(), LinuxScheduling.open(), Resctrl()), (
        "trying leaves nothing behind"
    )


def test_what_is_not_mounted_is_said() -> None:
    class Bare(FakeCgroups):
        def controllers(self):  # type: ignore[no-untyped-def]  # narrower on purpose
            return frozenset()

    class Any(FakeScheduling):
        def set_policy(self, tid, policy):  # type: ignore[no-untyped-def]  # every thread exists
            return None

    found = discover(Bare(), Any(), Resctrl(Path("/nonexistent")))
    assert "not mounted" in found[Feature.FREEZER].found
    assert "not mounted" in found[Feature.CACHE_ALLOCATION].found


def test_the_latency_probe_counts_and_ends_with_its_input(tmp_path: Path) -> None:
    path = tmp_path / "wakeup"
    probe = start_probe(path, period_ms=1, core=0)
    assert probe.stdin is not None
    until = time.monotonic() + 10
    while read_latency(path).wakeups < 50:
        assert time.monotonic() < until
        select.select([], [], [], 0.01)
    probe.stdin.close()
    assert probe.wait(timeout=10) == 0
    found = read_latency(path)
    assert sum(found.counts) == found.wakeups
    assert 0 < found.quantile_ns(0.5) <= found.quantile_ns(1.0) <= found.worst_ns


@given(st.lists(st.integers(0, 20), min_size=BUCKETS, max_size=BUCKETS), st.floats(0.01, 1))
def test_a_quantile_bounds_that_part_from_above(counts: list[int], fraction: float) -> None:
    latency = Latency(sum(counts), 1 << BUCKETS, 0, tuple(counts))
    bound = latency.quantile_ns(fraction)
    below = sum(count for index, count in enumerate(counts) if (1 << index) <= bound)
    assert below >= fraction * latency.wakeups - 1e-6 or latency.wakeups == 0
    assert latency.since(latency).wakeups == 0


def test_a_missing_file_is_no_latency(tmp_path: Path) -> None:
    assert read_latency(tmp_path / "none") == NONE_YET
