"""What the HTTP API answers with, beside the objects of `k40s.api`. Shared by daemon and client; imports neither."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class AppliedBody(BaseModel):
    """What became of one object."""

    model_config = ConfigDict(from_attributes=True)
    kind: str
    name: str
    outcome: str
    reasons: tuple[str, ...]


class EventBody(BaseModel):
    """Something that happened."""

    model_config = ConfigDict(from_attributes=True)
    id: int
    at: str
    severity: str
    subject: str
    reason: str
    message: str


class Lines(BaseModel):
    """Sentences."""

    lines: tuple[str, ...]


class TopTask(BaseModel):
    """One task. Times in nanoseconds."""

    name: str
    deadline_ns: int
    periods: int
    misses: int
    misses_unexplained: int
    overruns: int
    response_p99_ns: int
    response_max_ns: int


class TopContainer(BaseModel):
    """One container."""

    job: str
    container: str
    criticality: str
    phase: str
    core: int | None
    budget_us: int | None
    period_us: int | None
    limit_milli: int | None
    used_milli: int | None
    processes: int
    tasks: tuple[TopTask, ...]


class TopAlarm(BaseModel):
    """One alarm that is on."""

    name: str
    value: int
    culprit: str | None


class Top(BaseModel):
    """The node and all that runs on it."""

    node: str
    score: float
    level: str
    mode: str
    containers: tuple[TopContainer, ...]
    alarms: tuple[TopAlarm, ...]
    daemon_cpu_ppm: int
    """Processor time of the whole daemon, in millionths of one core, since it began."""
    monitor_cpu_ppm: int
    """Of that, what measuring takes."""
