"""From alarms to what is done with each job: the ladder of `reconcile` on one node, with a memory that survives.

An alarm's victims are the jobs that suffer, or, where nobody can say who, the most critical job that is not its cause.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from pydantic import TypeAdapter, ValidationError

from k40s import api
from k40s.api import Level
from k40s.local.measure import Alarm as Measured
from k40s.local.state import Adjustment
from k40s.reconcile import (
    Action,
    Alarm,
    Desired,
    DesiredJob,
    Memory,
    NodeMemory,
    ObservedNode,
    SetMode,
    Treatment,
    Watch,
    reconcile,
)

TREATMENT: Mapping[Adjustment, Treatment] = {
    Adjustment.NONE: Treatment.FREE,
    Adjustment.THROTTLED: Treatment.THROTTLED,
    Adjustment.DEGRADED: Treatment.DEGRADED,
    Adjustment.FROZEN: Treatment.FROZEN,
    Adjustment.EVICTED: Treatment.EVICTED,
}
ADJUSTMENT: Mapping[Treatment, Adjustment] = {treatment: name for name, treatment in TREATMENT.items()}


@dataclass(slots=True)
class Reaction:
    """Where the node stands on the ladder, its mode, and whether it is watched closely."""

    mode: Level = Level.LO
    watched_closely: bool = False
    memory: NodeMemory = field(default_factory=NodeMemory)

    def decide(
        self,
        node: str,
        jobs: Mapping[str, api.CriticalJob],
        adjustments: Mapping[str, Adjustment],
        alarms: Iterable[Measured],
        policy: api.AssurancePolicySpec,
        now_ns: int,
    ) -> tuple[Action, ...]:
        """What is to be done with jobs now, in order; watching and the mode are taken over here."""
        desired = {name: desired_of(name, node, job.spec) for name, job in jobs.items()}
        seen = ObservedNode(
            jobs={
                name: TREATMENT[adjustment]
                for name, adjustment in adjustments.items()
                if adjustment is not Adjustment.EVICTED
            },
            alarms=tuple(one for alarm in alarms for one in alarms_of(alarm, desired)),
            watched_closely=self.watched_closely,
            mode=self.mode,
        )
        outcome = reconcile(desired, {node: seen}, policy, Memory({node: self._from_then(now_ns)}), now_ns)
        self.memory = outcome.memory.nodes[node]
        for action in outcome.actions:
            match action:
                case Watch(closely=closely):
                    self.watched_closely = closely
                case SetMode(mode=mode):
                    self.mode = mode
                case _:
                    pass
        return outcome.actions

    def _from_then(self, now_ns: int) -> NodeMemory:
        """After the machine was started anew its clock is behind what is remembered: times begin again now."""
        if self.memory.since_ns <= now_ns:
            return self.memory
        return replace(self.memory, since_ns=now_ns, calm_since_ns=None, left_at_ns=None, high_since_ns=None)

    def to_json(self) -> str:
        """As it is stored."""
        return _KEPT.dump_json(_Kept(self.mode, self.watched_closely, self.memory)).decode()

    @staticmethod
    def from_json(text: str) -> Reaction:
        """As it was stored; what cannot be read is forgotten: the ladder is climbed again where it must be."""
        try:
            kept = _KEPT.validate_json(text)
        except ValidationError:
            return Reaction()
        return Reaction(kept.mode, kept.watched_closely, kept.memory)


@dataclass(frozen=True, slots=True)
class _Kept:
    """What is stored of a reaction."""

    mode: Level
    watched_closely: bool
    memory: NodeMemory


_KEPT = TypeAdapter(_Kept)


def desired_of(name: str, node: str, spec: api.CriticalJobSpec) -> DesiredJob:
    """A placed job as the ladder sees it."""
    return DesiredJob(
        name=name,
        node=node,
        criticality=spec.criticality,
        may_preempt=spec.preemption.capability == "may-preempt",
        preemptable=spec.preemption.vulnerability == "preemptable",
        priority=spec.preemption.priority,
        on_partition=spec.on_partition,
    )


def alarms_of(measured: Measured, desired: Desired) -> Iterable[Alarm]:
    """One alarm for each victim."""
    culprit = measured.culprit_job
    others = [job for job in desired.values() if job.name != culprit]
    most_critical = max(others, key=lambda job: (job.criticality, -job.priority, job.name), default=None)
    victims = measured.victims or ((most_critical.name,) if most_critical else ())
    reason = f"{measured.name} {measured.value}"
    for victim in victims:
        yield Alarm(victim, reason, None if culprit == victim else culprit, measured.overrun)
