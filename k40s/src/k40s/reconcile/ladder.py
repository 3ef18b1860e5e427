"""The reaction ladder of one node: where it stands, and what that means for each job there.

An alarm puts a node on the first rung; while it lasts, the node climbs one rung after the patience of each; when it is
calm, it comes down the same way, one rung at a time. A rung helps a victim only by what it does to jobs less
critical than the victim, so how high an alarm may climb follows from its victim: NO may be watched, LO may cost
NO jobs their place, HI everything. Rungs that would change nothing are passed without waiting. A node that
climbs again soon after coming down is given twice the patience before the next descent: no flapping.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from k40s.api.level import Level
from k40s.api.policy import AssurancePolicySpec, Step
from k40s.reconcile.world import Alarm, DesiredJob, NodeMemory, ObservedNode, Treatment

_HIGHEST = {Level.NO: Step.WATCH, Level.LO: Step.EVICT_NO, Level.HI: Step.MOVE_HI}
"""Last rung that an alarm of a victim of that criticality may climb to."""

_ORDER = {step: place for place, step in enumerate(Step)}

_ON_NO: Mapping[Step, Treatment] = {
    Step.THROTTLE_NO: Treatment.THROTTLED,
    Step.FREEZE_NO: Treatment.FROZEN,
    Step.EVICT_NO: Treatment.EVICTED,
}
_ON_LO: Mapping[Step, Treatment] = {Step.DEGRADE_LO: Treatment.DEGRADED, Step.EVICT_LO: Treatment.EVICTED}

MOST_DOUBLINGS = 6
"""Patience grows by at most 2**6."""


def advance(
    memory: NodeMemory,
    jobs: Iterable[DesiredJob],
    observed: ObservedNode,
    policy: AssurancePolicySpec,
    now_ns: int,
) -> NodeMemory:
    """The node's place on the ladder after `now_ns`; at most one step, not counting rungs that change nothing."""
    here = {job.name: job for job in jobs}
    rungs = policy.ladder
    memory = replace(
        memory, rung=min(memory.rung, len(rungs) - 1)
    )  # the policy may have a shorter ladder now
    memory = _with_mode(memory, here, observed, policy, now_ns)
    calling = [alarm for alarm in observed.alarms if _reach(alarm, here, policy) >= max(0, memory.rung)]
    if not calling:
        return _calmer(memory, here, policy, now_ns)
    named = {alarm.culprit for alarm in calling if alarm.culprit in here}
    memory = replace(
        memory,
        calm_since_ns=None,
        culprits=_of_class(memory.culprits | named, memory.rung, here, policy),
        helped=max(memory.helped, *(here[alarm.victim].criticality for alarm in calling)),
    )
    top = max(_reach(alarm, here, policy) for alarm in calling)
    patience_ns = rungs[memory.rung].escalate_after_ns if memory.rung >= 0 else 0
    if memory.rung >= top or (now_ns - memory.since_ns < patience_ns and memory.rung >= 0):
        return memory
    climbed = next((at for at in range(memory.rung + 1, top) if _has_effect(at, memory, here, policy)), top)
    relapsed = memory.left_at_ns is not None and now_ns - memory.left_at_ns < 4 * _calm_ns(
        memory, policy, climbed
    )
    relapses = min(MOST_DOUBLINGS, memory.relapses + 1) if relapsed else memory.relapses
    culprits = _of_class(memory.culprits, climbed, here, policy)
    return replace(
        memory, rung=climbed, since_ns=now_ns, culprits=culprits, relapses=relapses, left_at_ns=None
    )


def _of_class(
    culprits: Iterable[str | None], rung: int, here: Mapping[str, DesiredJob], policy: AssurancePolicySpec
) -> frozenset[str]:
    """Those that the rung is about: NO jobs up to `evict-no`, LO jobs from there on, all while it is only watched."""
    step = policy.ladder[rung].step if rung >= 0 else Step.WATCH
    about = Level.LO if step not in _ON_NO else Level.NO
    return frozenset(
        name
        for name in culprits
        if name is not None and name in here and (step is Step.WATCH or here[name].criticality is about)
    )


def _reach(alarm: Alarm, here: Mapping[str, DesiredJob], policy: AssurancePolicySpec) -> int:
    """Index of the highest rung that the alarm may climb to; -1 for none."""
    victim = here.get(alarm.victim)
    if victim is None or not policy.ladder:
        return -1
    highest = _HIGHEST[victim.criticality]
    if not victim.may_preempt:  # freezing and evicting take a place away; slowing down does not
        highest = min(highest, Step.THROTTLE_NO, key=_ORDER.__getitem__)
    return max(
        (at for at, rung in enumerate(policy.ladder) if _ORDER[rung.step] <= _ORDER[highest]), default=-1
    )


def _has_effect(
    rung: int, memory: NodeMemory, here: Mapping[str, DesiredJob], policy: AssurancePolicySpec
) -> bool:
    """Whether standing there changes how the ladder treats any job; watching and moving always count. What mode HI does
    at once has not been tried for the patience of its rung, so that rung is stood on."""
    if policy.ladder[rung].step in (Step.WATCH, Step.MOVE_HI):
        return True
    now = replace(memory, high_since_ns=None)
    there = replace(now, rung=rung, culprits=_of_class(memory.culprits, rung, here, policy))
    return any(treatment_of(job, there, policy) != treatment_of(job, now, policy) for job in here.values())


def _calm_ns(memory: NodeMemory, policy: AssurancePolicySpec, rung: int) -> int:
    return policy.ladder[rung].recover_after_ns << memory.relapses


def _calmer(
    memory: NodeMemory, here: Mapping[str, DesiredJob], policy: AssurancePolicySpec, now_ns: int
) -> NodeMemory:
    """One rung down when it has been calm for long enough; on the ground old trouble is forgotten in time."""
    if memory.rung < 0:
        forgotten = (
            memory.left_at_ns is not None
            and policy.ladder
            and (now_ns - memory.left_at_ns >= 8 * _calm_ns(memory, policy, 0))
        )
        return replace(memory, relapses=0, left_at_ns=None) if forgotten else memory
    if memory.calm_since_ns is None:
        return replace(memory, calm_since_ns=now_ns)
    if now_ns - memory.calm_since_ns < _calm_ns(memory, policy, memory.rung):
        return memory
    culprits = _of_class(memory.culprits, memory.rung - 1, here, policy)
    lower = replace(
        memory,
        rung=memory.rung - 1,
        since_ns=now_ns,
        calm_since_ns=now_ns,
        left_at_ns=now_ns,
        culprits=culprits,
    )
    return (
        lower
        if lower.rung >= 0
        else replace(lower, culprits=frozenset(), helped=Level.NO, calm_since_ns=None)
    )


def _with_mode(
    memory: NodeMemory,
    here: Mapping[str, DesiredJob],
    observed: ObservedNode,
    policy: AssurancePolicySpec,
    now_ns: int,
) -> NodeMemory:
    """Mode HI begins with the overrun of a HI job, and ends when there has been none for the degrading rung's time."""
    overrun = any(
        alarm.overrun and alarm.victim in here and here[alarm.victim].criticality is Level.HI
        for alarm in observed.alarms
    )
    if overrun:
        return replace(memory, high_since_ns=now_ns)
    hold_ns = max(
        (rung.recover_after_ns for rung in policy.ladder if rung.step is Step.DEGRADE_LO), default=0
    )
    if memory.high_since_ns is not None and now_ns - memory.high_since_ns >= hold_ns << memory.relapses:
        return replace(memory, high_since_ns=None)
    return memory


def mode_of(memory: NodeMemory, policy: AssurancePolicySpec) -> Level:
    """HI after an overrun and from the degrading rung on."""
    step = policy.ladder[memory.rung].step if memory.rung >= 0 else Step.WATCH
    return (
        Level.HI if memory.high_since_ns is not None or _ORDER[step] >= _ORDER[Step.DEGRADE_LO] else Level.LO
    )


def treatment_of(job: DesiredJob, memory: NodeMemory, policy: AssurancePolicySpec) -> Treatment:
    """What the node's place on the ladder means for one job on it.

    Where alarms name culprits, the others of their class are treated one rung gentler, until the ladder goes on to the
    next class. Mode HI freezes NO jobs and degrades LO jobs. A job that may not be preempted is throttled at most.
    """
    harsh = _of_ladder(job, memory, policy)
    if memory.high_since_ns is not None:
        harsh = max(
            harsh, {Level.NO: Treatment.FROZEN, Level.LO: Treatment.DEGRADED}.get(job.criticality, harsh)
        )
    if not job.preemptable and harsh > Treatment.DEGRADED:
        return Treatment.THROTTLED if job.criticality is Level.NO else Treatment.DEGRADED
    return harsh


def _of_ladder(job: DesiredJob, memory: NodeMemory, policy: AssurancePolicySpec) -> Treatment:
    steps = [rung.step for rung in policy.ladder[: memory.rung + 1]]
    match job.criticality:
        case Level.NO:
            table, beyond = _ON_NO, Step.DEGRADE_LO
        case Level.LO:
            table, beyond = _ON_LO, Step.MOVE_HI
        case _:
            return Treatment.FREE
    if not steps or memory.helped <= job.criticality:
        return Treatment.FREE
    passed = [table[step] for step in steps if step in table]
    spared = bool(memory.culprits) and job.name not in memory.culprits and _ORDER[steps[-1]] < _ORDER[beyond]
    if spared:
        passed = passed[:-1]
    return passed[-1] if passed else Treatment.FREE
