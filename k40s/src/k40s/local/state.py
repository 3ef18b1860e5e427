"""What the daemon knows of a job beside its manifest; kept as JSON, so that a crash forgets nothing."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum

from k40s import api
from k40s.errors import EffectFailed


class Adjustment(StrEnum):
    """How far the reaction to trouble has gone with a job."""

    NONE = "none"
    THROTTLED = "throttled"
    FROZEN = "frozen"
    DEGRADED = "degraded"
    EVICTED = "evicted"


@dataclass(frozen=True, slots=True)
class JobState:
    """`cores`: for each workload with servers its core (0-based among those that carry servers). `begun`:
    workloads that were started at least once. `ended`: exit status of those that will not be started again (None:
    unknown)."""

    placed: bool = False
    cores: dict[str, int] = field(default_factory=dict)
    refusal: tuple[str, ...] = ()
    adjustment: Adjustment = Adjustment.NONE
    deleting: bool = False
    begun: tuple[str, ...] = ()
    ended: dict[str, int | None] = field(default_factory=dict)
    user: int = 0
    """User and group id that its processes run as."""
    trouble: str = ""
    """Why a container could not be started, while that lasts."""

    def to_json(self) -> str:
        """As it is stored."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> JobState:
        """As it was stored. `EffectFailed` when it was damaged."""
        try:
            data = json.loads(text)
            data["refusal"], data["begun"] = tuple(data["refusal"]), tuple(data["begun"])
            return JobState(**{**data, "adjustment": Adjustment(data["adjustment"])})
        except (ValueError, KeyError, TypeError) as error:
            raise EffectFailed(f"stored state is damaged ({error}): move the state folder away") from error

    def having_begun(self, workload: str) -> JobState:
        """With a workload started."""
        return self if workload in self.begun else replace(self, begun=(*self.begun, workload))

    def phase(self, job: api.CriticalJob) -> api.JobPhase:
        """The phase that users see."""
        if not self.placed:
            return api.JobPhase.REFUSED if self.refusal else api.JobPhase.PENDING
        adjusted = {
            Adjustment.THROTTLED: api.JobPhase.THROTTLED,
            Adjustment.FROZEN: api.JobPhase.FROZEN,
            Adjustment.DEGRADED: api.JobPhase.DEGRADED,
            Adjustment.EVICTED: api.JobPhase.EVICTED,
        }
        if self.adjustment in adjusted:
            return adjusted[self.adjustment]
        if self.trouble:
            return api.JobPhase.PENDING
        if {workload.name for workload in job.spec.workloads} <= set(self.ended):
            return api.JobPhase.FAILED if any(self.ended.values()) else api.JobPhase.SUCCEEDED
        return api.JobPhase.RUNNING
