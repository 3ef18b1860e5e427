"""What can be enforced here: found out at start by trying, and said; a job that needs what is missing is refused."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from k40s.assurance.evidence import Absent, Present
from k40s.errors import K40sError
from k40s.node.budgets import free_ppm
from k40s.node.cgroups import CgroupFiles, Controller
from k40s.node.resctrl import Resctrl
from k40s.node.scheduling import Deadline, Fifo, Policy, Scheduling

TRY_HTB: Final = "ip link set lo up && tc qdisc add dev lo root handle 1: htb"


class Feature(StrEnum):
    """One thing that a job may need of the machine."""

    RT_BUDGETS = "rt-budgets"
    FIFO = "sched-fifo"
    DEADLINE = "sched-deadline"
    PINNING = "pinning"
    CPU_LIMITS = "cpu-limits"
    MEMORY_LIMITS = "memory-limits"
    PROCESS_LIMITS = "process-limits"
    FREEZER = "freezer"
    CACHE_ALLOCATION = "cache-allocation"
    FLOW_RATES = "flow-rates"
    CONTAINERS = "containers"


Found = Present | Absent


def discover(files: CgroupFiles, scheduling: Scheduling, resctrl: Resctrl) -> Mapping[Feature, Found]:
    """Try everything once. Leaves nothing behind."""
    mounted = files.controllers()

    def controller(wanted: Controller) -> Found:
        where = f"cgroup v1 {wanted.value}"
        return Present(where) if wanted in mounted else Absent(f"{where} is not mounted")

    return {
        Feature.RT_BUDGETS: _rt_budgets(files),
        Feature.FIFO: _policy(scheduling, Fifo(1)),
        Feature.DEADLINE: _policy(scheduling, Deadline(1_000_000, 100_000_000, 100_000_000)),
        Feature.PINNING: controller(Controller.CPUSET),
        Feature.CPU_LIMITS: controller(Controller.CPU),
        Feature.MEMORY_LIMITS: controller(Controller.MEMORY),
        Feature.PROCESS_LIMITS: controller(Controller.PIDS),
        Feature.FREEZER: controller(Controller.FREEZER),
        Feature.CACHE_ALLOCATION: Present("resctrl") if resctrl.present else Absent("resctrl is not mounted"),
        Feature.FLOW_RATES: _flow_rates(),
        Feature.CONTAINERS: Present(path)
        if (path := shutil.which("runc"))
        else Absent("runc is not installed"),
    }


def _rt_budgets(files: CgroupFiles) -> Found:
    try:
        free = free_ppm(files)
    except K40sError as error:
        return Absent(f"no real-time bandwidth of groups: {error}")
    return Present(f"{free / 1e6:.3f} of a core is free")


def _policy(scheduling: Scheduling, policy: Policy) -> Found:
    subject = subprocess.Popen(["sleep", "10"])
    try:
        scheduling.set_policy(subject.pid, policy)
    except K40sError as error:
        return Absent(str(error))
    else:
        return Present("tried")
    finally:
        subject.kill()
        subject.wait()


def _flow_rates() -> Found:
    """HTB, tried on the loopback device of a network namespace that ends with the trial."""
    if os.geteuid() != 0 or shutil.which("tc") is None:
        return Absent("needs root and tc (package iproute2)")
    done = subprocess.run(
        ["unshare", "--net", "sh", "-c", TRY_HTB], capture_output=True, text=True, timeout=10, check=False
    )
    return Present("HTB, tried") if done.returncode == 0 else Absent(done.stderr.strip()[:200] or "HTB fails")
