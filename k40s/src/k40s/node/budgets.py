"""Real-time bandwidth of a tree of groups (cgroup v1, RT_GROUP_SCHED): Q microseconds every P, on each CPU.

The kernel admits a group only when its share and those of its siblings fit their parent, so budgets are
lowered bottom up and raised top down. It adds the shares of all groups as if they ran on one CPU, wherever
they are pinned: the whole tree can never hold more than the root's share (usually 95 %), which `free_ppm`
tells placement.

Enforcement is as coarse as the kernel's tick (4 ms at 250 Hz): a group that overruns is stopped at the next
tick and pays the excess back in later periods, so its rate over seconds is exact and its bursts are not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from k40s.node.cgroups import CgroupFiles, Controller, parents
from k40s.node.errors import KernelRefused

PARENT_PERIOD_US = 1_000_000
ROOT = "/"


@dataclass(frozen=True, slots=True)
class RtBudget:
    """`runtime_us` of real-time execution in every `period_us`, on each CPU that the group may use."""

    runtime_us: int
    period_us: int

    def __post_init__(self) -> None:
        if not 0 <= self.runtime_us <= self.period_us or self.period_us <= 0:
            raise ValueError(
                f"budget {self.runtime_us}/{self.period_us} us: runtime must lie between 0 and the period"
            )

    @property
    def share(self) -> Fraction:
        """Part of one core, 0 to 1."""
        return Fraction(self.runtime_us, self.period_us)


NOTHING = RtBudget(0, PARENT_PERIOD_US)


def read_budget(files: CgroupFiles, group: str) -> RtBudget:
    """The budget in force. A group that has none reads 0 every second."""
    runtime_us = int(files.read(Controller.CPU, group, "cpu.rt_runtime_us"))
    period_us = int(files.read(Controller.CPU, group, "cpu.rt_period_us"))
    return RtBudget(period_us if runtime_us < 0 else runtime_us, period_us)


def known_budget(files: CgroupFiles, group: str) -> RtBudget | None:
    """The budget in force; None when the group cannot be read."""
    try:
        return read_budget(files, group)
    except KernelRefused:
        return None


def write_budget(files: CgroupFiles, group: str, budget: RtBudget) -> None:
    """Set one group. The share in between the two writes never exceeds the larger of old and new."""
    runtime = ("cpu.rt_runtime_us", str(budget.runtime_us))
    period = ("cpu.rt_period_us", str(budget.period_us))
    old = read_budget(files, group)
    if old == budget:
        return
    for file, value in (period, runtime) if budget.period_us >= old.period_us else (runtime, period):
        files.write(Controller.CPU, group, file, value)


def with_parents(leaves: Mapping[str, RtBudget], root: str) -> dict[str, RtBudget]:
    """Budgets of the leaves and of every group above them up to `root`, each the sum of what lies below
    it.
    """
    wanted = dict(leaves)
    above = {group for leaf in leaves for group in parents(leaf) if group.startswith(root + "/")} | {root}
    for group in sorted(above, key=lambda name: -name.count("/")):
        children = [budget for name, budget in wanted.items() if name.rpartition("/")[0] == group]
        share = sum((child.share for child in children), start=Fraction(0))
        # Rounded up, and one more for each child, because the kernel cuts each ratio off on its own.
        runtime_us = math.ceil(share * PARENT_PERIOD_US) + (len(children) if share else 0)
        wanted[group] = RtBudget(min(runtime_us, PARENT_PERIOD_US), PARENT_PERIOD_US)
    return wanted


def set_budgets(files: CgroupFiles, leaves: Mapping[str, RtBudget]) -> None:
    """Make the tree below our root hold exactly `leaves` (groups that exist and are not named get nothing).

    Raises `KernelRefused` (EINVAL) when the root of the machine has not that much left; what was in
    force before is then in force again. A group that cannot be read is left as it is, and keeps no other waiting.
    """
    wanted = with_parents(leaves, files.root)
    found = {group: known_budget(files, group) for group in _tree(files, files.root)}
    before = {group: budget for group, budget in found.items() if budget is not None}
    try:
        _apply(files, before, {group: wanted.get(group, NOTHING) for group in before})
    except Exception:
        now = {group: read_budget(files, group) for group in before}
        _apply(files, now, before)
        raise


def _tree(files: CgroupFiles, group: str) -> list[str]:
    below = files.children(Controller.CPU, group)
    return [group, *(name for child in below for name in _tree(files, child))]


def _apply(files: CgroupFiles, now: Mapping[str, RtBudget], wanted: Mapping[str, RtBudget]) -> None:
    outermost_first = sorted(wanted, key=lambda group: (group.count("/"), group))
    for group in reversed(outermost_first):
        if wanted[group].share < now[group].share:
            write_budget(files, group, wanted[group])
    for group in outermost_first:
        write_budget(files, group, wanted[group])


def free_ppm(files: CgroupFiles) -> int:
    """Real-time share that our root could still grow by, in millionths of a core:

    the machine's less all others'.
    """
    taken = sum(
        (read_budget(files, child).share for child in files.children(Controller.CPU, ROOT)), start=Fraction(0)
    )
    return int((read_budget(files, ROOT).share - taken) * 1_000_000)
