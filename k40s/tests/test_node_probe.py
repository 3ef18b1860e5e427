"""Probes on made-up machines: present, absent and unknown are three answers."""

import gzip
from pathlib import Path

import pytest

from k40s.api.policy import ALPHA_POINTS, BETA_POINTS
from k40s.assurance.evidence import Absent, Present, Unknown
from k40s.node.probe import PROBES, Here, hardware, probe

GOOD = {
    "sys/devices/system/edac/mc/mc0/mc_name": "x",
    "sys/devices/system/cpu/smt/active": "0\n",
    "sys/fs/resctrl/schemata": "L3:0=f\n",
    "dev/watchdog0": "",
    "sys/class/net/eth0/device/ptp/ptp0/clock_name": "x",
    "sys/class/net/eth0/operstate": "up\n",
    "sys/class/net/eth1/device/vendor": "x",
    "sys/class/net/eth1/operstate": "up\n",
    "proc/cpuinfo": "model name\t: Strong CPU\nflags\t: fpu sse\n",
    "proc/version": "Linux 6.12 PREEMPT_RT",
    "sys/fs/cgroup/cpu/cpu.rt_runtime_us": "950000",
    "sys/devices/system/cpu/isolated": "2-3",
    "sys/devices/jailhouse/console": "",
    "lib/modules/6/kernel/net/sched/sch_taprio.ko": "",
    "proc/meminfo": "MemTotal:  2048 kB\n",
}


def machine(folder: Path, files: dict[str, str]) -> Here:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return Here(folder)


def test_the_policy_weighs_what_is_probed() -> None:
    assert set(PROBES) == {*ALPHA_POINTS, *BETA_POINTS}


def test_a_strong_machine_has_it_all_but_a_clock(tmp_path: Path) -> None:
    found = probe(machine(tmp_path, GOOD))
    assert {name for name, what in found.items() if not isinstance(what, Present)} == {"ptp-in-sync"}


def test_on_an_empty_machine_nothing_is_present(tmp_path: Path) -> None:
    found = probe(Here(tmp_path))
    assert not [name for name, what in found.items() if isinstance(what, Present)]
    assert isinstance(found["ecc-memory"], Unknown)
    assert isinstance(found["bare-metal"], Unknown)


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("smt-off", {"sys/devices/system/cpu/smt/active": "1"}),
        ("bare-metal", {"proc/cpuinfo": "flags\t: fpu hypervisor\n"}),
        ("preempt-rt", {"proc/version": "Linux 6.1 PREEMPT_DYNAMIC"}),
        ("isolated-cpus", {"sys/devices/system/cpu/isolated": "\n"}),
        ("redundant-links", {"sys/class/net/eth0/device/x": "", "sys/class/net/eth0/operstate": "up"}),
        ("ecc-memory", {"sys/devices/system/edac/mc/uevent": ""}),
    ],
)
def test_what_is_there_and_not_so_is_absent(name: str, files: dict[str, str], tmp_path: Path) -> None:
    assert isinstance(PROBES[name](machine(tmp_path, files)), Absent)


@pytest.mark.parametrize(("line", "kind"), [("CONFIG_NET_SCH_TAPRIO=y", Present), ("CONFIG_NET=y", Absent)])
def test_qdiscs_built_into_the_kernel_are_seen(line: str, kind: type, tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/config.gz").write_bytes(gzip.compress(line.encode()))
    assert isinstance(PROBES["tsn-qdiscs"](Here(tmp_path)), kind)


def test_hardware_is_recognised_by_shell_patterns(tmp_path: Path) -> None:
    here = hardware(machine(tmp_path, GOOD))
    assert here.memory_bytes == 2048 * 1024
    assert here.is_like("*Strong*", None, None)
    assert not here.is_like("Weak*", None, None)
