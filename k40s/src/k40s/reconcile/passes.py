"""One pass: from what is desired and what is observed to ordered actions. Pure; time and feasibility are handed in.

Level-triggered: actions are the difference between how the world should be and how it is, so a pass repeated after its
actions orders nothing, and a lost action is ordered again. Less critical jobs are restrained first, more
critical ones are relieved first.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from k40s.api.level import Level
from k40s.api.policy import AssurancePolicySpec, Step
from k40s.reconcile.ladder import advance, mode_of, treatment_of
from k40s.reconcile.world import (
    Action,
    Desired,
    DesiredJob,
    Memory,
    Move,
    NodeMemory,
    Observed,
    ObservedNode,
    SetMode,
    Start,
    Stop,
    Treat,
    Treatment,
    Watch,
)

Feasible = Callable[[str, str], str | None]
"""Job and the node that it should leave -> a node where it is proved feasible, or None."""


def nowhere(_job: str, _node: str) -> str | None:
    """For a single machine: there is no other node."""
    return None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The actions, in the order in which they are to be done, and the memory for the next pass."""

    actions: tuple[Action, ...]
    memory: Memory


def reconcile(
    desired: Desired,
    observed: Observed,
    policy: AssurancePolicySpec,
    memory: Memory,
    now_ns: int,
    feasible: Feasible = nowhere,
) -> Outcome:
    """One pass over all nodes. `now_ns` is monotonic. Alarms of jobs that are not desired on their node are ignored."""
    on_node: dict[str, list[DesiredJob]] = {node: [] for node in observed}
    for job in desired.values():
        on_node.setdefault(job.node, []).append(job)
    nodes: dict[str, NodeMemory] = {}
    moved_at_ns = {job: at for job, at in memory.moved_at_ns.items() if job in desired}
    actions: list[Action] = []
    for node, seen in sorted(observed.items()):
        before = memory.nodes.get(node, NodeMemory())
        if not seen.reachable:
            since_ns = now_ns if before.cut_off_since_ns is None else before.cut_off_since_ns
            nodes[node] = replace(before, cut_off_since_ns=since_ns)
            actions += _cut_off(node, on_node[node], now_ns - since_ns, policy, feasible)
            continue
        after = advance(replace(before, cut_off_since_ns=None), on_node[node], seen, policy, now_ns)
        nodes[node] = after
        actions += _on_node(node, on_node[node], seen, after, policy)
        for move in _moves(node, on_node[node], seen, after, policy, moved_at_ns, now_ns, feasible):
            moved_at_ns[move.job] = now_ns
            actions.append(move)
    return Outcome(tuple(actions), Memory(nodes, moved_at_ns))


def _on_node(
    node: str,
    jobs: list[DesiredJob],
    seen: ObservedNode,
    memory: NodeMemory,
    policy: AssurancePolicySpec,
) -> Iterator[Action]:
    """The difference on one node: watching, restraint from the least critical up, mode, relief from the most
    critical down."""
    step = policy.ladder[memory.rung].step if memory.rung >= 0 else None
    reason = _reason(seen, step)
    closely = memory.rung >= 0
    if closely != seen.watched_closely:
        yield Watch(node, closely, reason)
    for name in sorted(seen.jobs):
        if name not in {job.name for job in jobs}:
            yield Stop(node, name, "not wanted here")
    wanted = {job.name: treatment_of(job, memory, policy) for job in jobs}
    # culprits before others of their class, then the least important first
    by_class = sorted(
        jobs,
        key=lambda j: (j.criticality, j.name not in memory.culprits, -j.priority, j.name),
    )
    for job in by_class:
        if job.name in seen.jobs and seen.jobs[job.name] < wanted[job.name]:
            yield Treat(node, job.name, wanted[job.name], reason)
    mode = mode_of(memory, policy)
    if mode is not seen.mode:
        yield SetMode(node, mode, reason)
    for job in sorted(jobs, key=lambda j: (-j.criticality, j.priority, j.name)):
        want = wanted[job.name]
        if job.name not in seen.jobs:
            if want < Treatment.FROZEN:
                yield Start(node, job.name, want, "should run here")
        elif seen.jobs[job.name] > want:
            yield Treat(node, job.name, want, reason)


def _reason(seen: ObservedNode, step: Step | None) -> str:
    alarms = "; ".join(
        f"{alarm.victim}: {alarm.reason}" + (f" (caused by {alarm.culprit})" if alarm.culprit else "")
        for alarm in seen.alarms
    )
    where = step.value if step else "calm"
    return f"{where}: {alarms}" if alarms else where


def _moves(
    node: str,
    jobs: list[DesiredJob],
    seen: ObservedNode,
    memory: NodeMemory,
    policy: AssurancePolicySpec,
    moved_at_ns: Mapping[str, int],
    now_ns: int,
    feasible: Feasible,
) -> Iterator[Move]:
    """HI jobs that still suffer on the last rung, each to a node where it is proved; not the same job again soon."""
    if memory.rung < 0 or policy.ladder[memory.rung].step is not Step.MOVE_HI:
        return
    rest_ns = 4 * policy.ladder[memory.rung].recover_after_ns
    reasons = {alarm.victim: alarm.reason for alarm in seen.alarms}
    for job in sorted(jobs, key=lambda j: (j.priority, j.name)):
        if job.criticality is not Level.HI or job.name not in reasons or job.name not in seen.jobs:
            continue
        if job.name in moved_at_ns and now_ns - moved_at_ns[job.name] < rest_ns:
            continue
        target = feasible(job.name, node)
        if target is not None and target != node:
            yield Move(node, job.name, target, reasons[job.name])


def _cut_off(
    node: str, jobs: list[DesiredJob], cut_off_ns: int, policy: AssurancePolicySpec, feasible: Feasible
) -> Iterator[Action]:
    """A node that cannot be reached: `keep` jobs are left alone. `stop` jobs end themselves there after the lease (the
    node's own agent sees to it, `isolated`), so after twice the lease another node may start them."""
    if cut_off_ns < 2 * policy.partition_lease_ns:
        return
    for job in sorted(jobs, key=lambda j: (-j.criticality, j.priority, j.name)):
        if job.on_partition != "stop":
            continue
        target = feasible(job.name, node)
        if target is not None and target != node:
            yield Move(node, job.name, target, f"{node} has been cut off for {cut_off_ns // 10**6} ms")


def isolated(
    desired: Desired, node: str, seen: ObservedNode, policy: AssurancePolicySpec, cut_off_ns: int
) -> tuple[Stop, ...]:
    """What an agent does that has not reached its control plane for `cut_off_ns`: it ends `stop` jobs after the
    lease."""
    if cut_off_ns < policy.partition_lease_ns:
        return ()
    return tuple(
        Stop(node, job.name, "cut off for longer than the lease")
        for job in sorted(desired.values(), key=lambda j: j.name)
        if job.node == node and job.name in seen.jobs and job.on_partition == "stop"
    )
