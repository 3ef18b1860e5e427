"""What this machine is: the capabilities of hardware (alpha) and software (beta) that its assurance rests on.

Reads files below a root that tests can replace. Something that could not be looked at is `Unknown`, with the reason.
"""

from __future__ import annotations

import ctypes
import fnmatch
import gzip
import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from k40s.assurance.evidence import Absent, Capability, Present, Unknown

TSN_QDISCS = ("TAPRIO", "ETF", "CBS")
NOT_SYNCHRONISED = 5
"""What adjtimex(2) returns when the kernel's clock follows nobody (TIME_ERROR)."""


@dataclass(frozen=True, slots=True)
class Here:
    """The file system to look at."""

    root: Path = Path("/")

    def text(self, path: str) -> str | None:
        """Content of a file, or None."""
        try:
            return (self.root / path).read_text(errors="replace").strip()
        except OSError:
            return None

    def matches(self, pattern: str) -> list[Path]:
        """Paths that match a shell pattern."""
        return sorted(self.root.glob(pattern))


def ecc_memory(here: Here) -> Capability:
    """Memory that detects and corrects errors, through the kernel's EDAC."""
    if here.text("sys/devices/system/edac/mc/uevent") is None and not here.matches(
        "sys/devices/system/edac/mc"
    ):
        return Unknown("no EDAC driver is loaded")
    controllers = here.matches("sys/devices/system/edac/mc/mc[0-9]*")
    return (
        Present(f"{len(controllers)} memory controllers with ECC")
        if controllers
        else Absent("EDAC finds none")
    )


def smt_off(here: Here) -> Capability:
    """No two threads share a core."""
    match here.text("sys/devices/system/cpu/smt/active"):
        case "0":
            return Present("no core has a second thread")
        case "1":
            return Absent("cores have two threads")
        case _:
            return Unknown("the kernel does not say whether SMT is active")


def cache_allocation(here: Here) -> Capability:
    """Cache can be divided among containers."""
    mounted = here.text("sys/fs/resctrl/schemata") is not None
    return Present("resctrl is mounted") if mounted else Absent("no resctrl")


def watchdog(here: Here) -> Capability:
    """Hardware that restarts a hung machine."""
    found = here.matches("dev/watchdog*")
    return Present(f"/dev/{found[0].name}") if found else Absent("no /dev/watchdog")


def timestamping_nic(here: Here) -> Capability:
    """A network card with a PTP clock of its own."""
    found = here.matches("sys/class/net/*/device/ptp/ptp*")
    return (
        Present(f"{found[0].parts[-4]} has a PTP clock")
        if found
        else Absent("no network card has a PTP clock")
    )


def redundant_links(here: Here) -> Capability:
    """Two or more physical links that are up."""
    cards = [path.parent.name for path in here.matches("sys/class/net/*/device")]
    up = [name for name in cards if here.text(f"sys/class/net/{name}/operstate") == "up"]
    found = f"{len(up)} physical links up: {', '.join(up) or 'none'}"
    return Present(found) if len(up) >= 2 else Absent(found)


def bare_metal(here: Here) -> Capability:
    """No hypervisor takes time away."""
    cpuinfo = here.text("proc/cpuinfo")
    if cpuinfo is None:
        return Unknown("/proc/cpuinfo cannot be read")
    flags = next((line for line in cpuinfo.splitlines() if line.startswith(("flags", "Features"))), "")
    return Absent("runs under a hypervisor") if " hypervisor" in flags else Present("no hypervisor flag")


def preempt_rt(here: Here) -> Capability:
    """A kernel that can be preempted everywhere."""
    version = here.text("proc/version") or ""
    if here.text("sys/kernel/realtime") == "1" or "PREEMPT_RT" in version:
        return Present("PREEMPT_RT")
    return Absent("PREEMPT_DYNAMIC" if "PREEMPT_DYNAMIC" in version else "no PREEMPT_RT")


def rt_budgets(here: Here) -> Capability:
    """The kernel enforces real-time budgets of groups."""
    found = here.matches("sys/fs/cgroup/cpu*/cpu.rt_runtime_us")
    return Present("RT group scheduling, cgroup v1") if found else Absent("no cpu.rt_runtime_us")


def isolated_cpus(here: Here) -> Capability:
    """Cores kept free of ordinary work."""
    isolated = here.text("sys/devices/system/cpu/isolated")
    if isolated is None:
        return Unknown("the kernel does not say which cores are isolated")
    return Present(f"cores {isolated}") if isolated else Absent("none")


def partitioning_hypervisor(here: Here) -> Capability:
    """A static partitioning hypervisor (Jailhouse, Bao, Xen dom0-less) below."""
    if here.matches("sys/devices/jailhouse"):
        return Present("Jailhouse")
    kind = here.text("sys/hypervisor/type")
    return Absent(f"hypervisor {kind}" if kind else "none found")


def tsn_qdiscs(here: Here) -> Capability:
    """Time-aware queueing of IEEE 802.1Qbv and its kin."""
    if here.matches("lib/modules/*/kernel/net/sched/sch_taprio.ko*"):
        return Present("module sch_taprio")
    try:
        config = gzip.decompress((here.root / "proc/config.gz").read_bytes()).decode()
    except (OSError, gzip.BadGzipFile):
        return Unknown("neither modules nor the kernel's configuration can be read")
    found = [name for name in TSN_QDISCS if f"CONFIG_NET_SCH_{name}=y" in config]
    return Present(", ".join(found).lower()) if found else Absent("no taprio, etf or cbs in this kernel")


def ptp_in_sync(here: Here) -> Capability:
    """The clock follows a PTP clock."""
    clocks = here.matches("sys/class/ptp/ptp*")
    if not clocks:
        return Absent("no PTP clock")
    return (
        Absent("the kernel's clock follows nobody") if clock_error_us() is None else Present(clocks[0].name)
    )


def clock_error_us() -> int | None:
    """Largest error of the kernel's clock, microseconds, from adjtimex(2); None when it is not synchronised."""
    timex = (ctypes.c_long * 64)()
    state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex))
    # struct timex on 64 bits: modes, offset, freq, maxerror, esterror, ..
    return None if state in (NOT_SYNCHRONISED, -1) else int(timex[3])


PROBES: Mapping[str, Callable[[Here], Capability]] = {
    "ecc-memory": ecc_memory,
    "smt-off": smt_off,
    "cache-allocation": cache_allocation,
    "watchdog": watchdog,
    "timestamping-nic": timestamping_nic,
    "redundant-links": redundant_links,
    "bare-metal": bare_metal,
    "preempt-rt": preempt_rt,
    "rt-budgets": rt_budgets,
    "isolated-cpus": isolated_cpus,
    "partitioning-hypervisor": partitioning_hypervisor,
    "tsn-qdiscs": tsn_qdiscs,
    "ptp-in-sync": ptp_in_sync,
}


def probe(here: Here = Here()) -> dict[str, Capability]:
    """All capabilities, by the names that the policy weighs."""
    return {name: look(here) for name, look in PROBES.items()}


@dataclass(frozen=True, slots=True)
class Hardware:
    """What a node class is recognised by, and how much there is."""

    cpu_model: str
    architecture: str
    kernel: str
    cores: int
    memory_bytes: int

    def is_like(self, cpu_model: str | None, architecture: str | None, kernel: str | None) -> bool:
        """Whether every given shell pattern fits."""
        pairs = ((cpu_model, self.cpu_model), (architecture, self.architecture), (kernel, self.kernel))
        return all(pattern is None or fnmatch.fnmatch(found, pattern) for pattern, found in pairs)


def hardware(here: Here = Here()) -> Hardware:
    """This machine's."""
    lines = (here.text("proc/cpuinfo") or "").splitlines()
    model = next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown"
    )
    meminfo = (here.text("proc/meminfo") or "MemTotal: 0 kB").splitlines()
    total_kib = next(int(line.split()[1]) for line in meminfo if line.startswith("MemTotal"))
    return Hardware(model, platform.machine(), platform.release(), os.cpu_count() or 1, total_kib * 1024)
