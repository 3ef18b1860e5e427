"""CriticalJob: what a user asks for. Types only; whether it can be had is decided in `placement`."""

import enum
from collections.abc import Iterator
from fractions import Fraction
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from k40s.api.fields import (
    API_VERSION,
    Condition,
    Cpu,
    Duration,
    Finding,
    Label,
    LevelField,
    Model,
    Name,
    ObjectMeta,
    PositiveDuration,
    Rate,
    Ratio,
    Size,
    Text,
    Whole,
    cel,
    refuse,
)
from k40s.api.level import (
    DSCP_BY_TRAFFIC,
    LEVEL_BY_LABEL,
    PCP_BY_TRAFFIC,
    Level,
    TrafficType,
    canonical_label,
)
from k40s.api.quantity import format_cpu, format_duration, format_size


class Policy(enum.StrEnum):
    """How the kernel schedules a task."""

    DEADLINE = "deadline"
    """SCHED_DEADLINE: the task is its own server."""
    FIFO = "fifo"
    """SCHED_FIFO inside the container's budget, priority given or deadline-monotonic."""
    OTHER = "other"
    """The ordinary scheduler: no guarantee, for jobs of criticality NO."""


class RedundancyMode(enum.StrEnum):
    """How several replicas make one dependable job."""

    NONE = "none"
    HOT_STANDBY = "hot-standby"
    """One good replica is enough."""
    MAJORITY = "majority"
    """More than half of the replicas must be good."""


class Amount(Model):
    """CPU and memory that a container is promised."""

    cpu_milli: Cpu = 0
    memory_bytes: Size = 0


class Limit(Model):
    """CPU and memory that a container may use at most; absent: no limit, counted as the whole node."""

    cpu_milli: Cpu | None = None
    memory_bytes: Size | None = None


class Resources(Model):
    """What a container is promised (requests) and may use at most (limits)."""

    requests: Amount = Amount()
    limits: Limit = Limit()
    degraded_cpu_milli: Cpu | None = None
    """CPU limit of a LO container while its node is in mode HI; absent: it is frozen then."""
    devices: dict[Text, Annotated[int, Field(strict=True, ge=1, le=1024)]] = Field(default_factory=dict)
    """How many of each device, by name, e.g. `profinet: 1`."""

    @model_validator(mode="after")
    def _requests_within_limits(self) -> Self:
        findings = []
        cpu, memory = self.limits.cpu_milli, self.limits.memory_bytes
        if cpu is not None and cpu < self.requests.cpu_milli:
            least = format_cpu(self.requests.cpu_milli)
            findings.append(
                Finding(("limits", "cpu"), format_cpu(cpu), f"use at least requests.cpu ({least})")
            )
        if memory is not None and memory < self.requests.memory_bytes:
            least = format_size(self.requests.memory_bytes)
            findings.append(
                Finding(("limits", "memory"), format_size(memory), f"use at least requests.memory ({least})")
            )
        if findings:
            refuse(*findings)
        return self


class Wcet(Model):
    """Worst-case execution time on one node class, by mode.

    For a HI task `hi` >= `lo` is the pessimistic bound. For a LO task `hi` <= `lo` is what it keeps in mode
    HI (absent: nothing)."""

    lo_ns: PositiveDuration
    hi_ns: Duration | None = None


class Task(Model):
    """A periodic or sporadic thread of a container."""

    name: Name
    period_ns: PositiveDuration
    deadline_ns: PositiveDuration | None = None
    """Relative to release; absent: the period. May be longer than it."""
    jitter_ns: Duration = 0
    """Largest delay between arrival and release."""
    wcet: dict[Name, Wcet] = Field(default_factory=dict)
    """By node class. A HI job may only run on node classes named here."""
    policy: Policy = Policy.FIFO
    priority: Annotated[int, Field(strict=True, ge=1, le=98)] | None = None
    """SCHED_FIFO priority; absent: deadline-monotonic. 99 stays with the kernel's own threads."""

    @property
    def relative_deadline_ns(self) -> int:
        """The deadline, or the period where none is given."""
        return self.period_ns if self.deadline_ns is None else self.deadline_ns


class Peer(Model):
    """The other end of a flow: a job of this cluster, or an address."""

    model_config = ConfigDict(
        json_schema_extra=cel("has(self.job) != has(self.address)", "name exactly one of job and address")
    )

    job: Name | None = None
    address: Text | None = None
    """IP address or prefix, e.g. 10.0.0.7 or 10.1.0.0/16."""
    port: Annotated[int, Field(strict=True, ge=1, le=65535)] | None = None

    @model_validator(mode="after")
    def _one_end(self) -> Self:
        if (self.job is None) == (self.address is None):
            raise ValueError("name exactly one of job and address")
        return self


class Flow(Model):
    """What a job needs of the network towards one peer (egress)."""

    name: Name
    peer: Peer
    traffic: TrafficType = TrafficType.BEST_EFFORT
    rate_bps: Rate
    """Guaranteed rate."""
    burst_bytes: Size = 1542
    """Largest amount sent at once, frames with preamble and gap included."""
    frame_bytes: Size = 1542
    """Largest frame."""
    latency_bound_ns: PositiveDuration | None = None
    """End to end; absent: rate only."""
    pcp: Annotated[int, Field(strict=True, ge=0, le=7)] | None = None
    dscp: Annotated[int, Field(strict=True, ge=0, le=63)] | None = None

    @property
    def effective_pcp(self) -> int:
        """VLAN priority, 7 first; from the traffic type where none is given."""
        return PCP_BY_TRAFFIC[self.traffic] if self.pcp is None else self.pcp

    @property
    def effective_dscp(self) -> int:
        """Code point; from the traffic type where none is given."""
        return DSCP_BY_TRAFFIC[self.traffic] if self.dscp is None else self.dscp


class _Workload(Model):
    """What containers and plain commands have in common."""

    name: Name
    command: Annotated[tuple[Text, ...], Field(min_length=1)] | None = None
    """Program and arguments, no shell."""
    env: dict[Text, Text] = Field(default_factory=dict)
    working_dir: Text | None = None
    resources: Resources = Resources()
    tasks: Annotated[tuple[Task, ...], Field(max_length=64)] = ()
    """Real-time threads; together they get one server on one core."""


class Container(_Workload):
    """A container, from an image or an unpacked root file system."""

    model_config = ConfigDict(
        json_schema_extra=cel("has(self.image) != has(self.rootFs)", "name exactly one of image and rootFs")
    )

    image: Text | None = None
    """Image reference, or a directory with an OCI image layout."""
    root_fs: Text | None = None
    """Directory with a root file system."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.image is None) == (self.root_fs is None):
            raise ValueError("name exactly one of image and rootFs (a plain process goes to commands)")
        if self.root_fs is not None and self.command is None:
            refuse(Finding(("command",), None, "add it: a root file system names none"))
        return self


class Command(_Workload):
    """A plain process on the host."""

    @model_validator(mode="after")
    def _has_command(self) -> Self:
        if self.command is None:
            refuse(Finding(("command",), None, 'add it, e.g. ["python3", "loop.py"]'))
        return self


class Redundancy(Model):
    """Replicas, so that the job works with probability `theta` though each node may fail."""

    mode: RedundancyMode = RedundancyMode.NONE
    theta: Ratio = Fraction(0)
    """Wanted probability that enough replicas are good, node assurance read as a node's probability."""
    replicas: Annotated[int, Field(strict=True, ge=1, le=15)] | None = None
    """Absent: as few as reach theta."""

    @model_validator(mode="after")
    def _replicas_suit_mode(self) -> Self:
        if self.mode is RedundancyMode.NONE and self.replicas not in (None, 1):
            refuse(
                Finding(("replicas",), self.replicas, "leave it out, or set mode to hot-standby or majority")
            )
        if self.theta == 1:
            refuse(Finding(("theta",), 1, "use less than 1: no number of replicas is certain"))
        return self


class Preemption(Model):
    """Who may evict whom; capability and vulnerability as in 3GPP TS 23.501 (ARP)."""

    capability: Literal["may-preempt", "never"] = "may-preempt"
    """Whether this job may take resources from another."""
    vulnerability: Literal["preemptable", "never"] = "preemptable"
    """Whether resources may be taken from this job."""
    priority: Annotated[int, Field(strict=True, ge=1, le=15)] = 8
    """Order among jobs of one criticality; 1 is the most important."""


_ASSURANCE_FLOOR = {Level.NO: Fraction(0), Level.LO: Fraction(1, 3), Level.HI: Fraction(2, 3)}


def _criticality_or_label(schema: dict[str, Any]) -> None:
    """A label alone will do: the criticality follows from it."""
    schema["required"] = [field for field in schema["required"] if field != "criticality"]
    if not schema["required"]:
        del schema["required"]
    rule = "has(self.criticality) || has(self.criticalityLabel)"
    schema |= cel(rule, "add criticality or criticalityLabel")


class CriticalJobSpec(Model):
    """What the job is and what it needs."""

    model_config = ConfigDict(json_schema_extra=_criticality_or_label)

    criticality: LevelField
    criticality_label: Label | None = None
    """SIL, ASIL or DAL label; it maps onto the criticality and claims no certification."""
    containers: Annotated[tuple[Container, ...], Field(max_length=64)] = ()
    commands: Annotated[tuple[Command, ...], Field(max_length=64)] = ()
    flows: Annotated[tuple[Flow, ...], Field(max_length=64)] = ()
    required_assurance: Ratio | None = None
    """Lowest score of a node that may run it; absent: the lower bound of its criticality's level."""
    redundancy: Redundancy = Redundancy()
    max_outage_ns: PositiveDuration | None = None
    """Longest time without a working replica; absent: not promised."""
    on_partition: Literal["keep", "stop"] = "keep"
    """What a replica does while its node cannot be reached."""
    preemption: Preemption = Preemption()
    node_selector: dict[Text, Text] = Field(default_factory=dict)
    """Labels that a node must carry."""
    restart: Literal["always", "on-failure", "never"] = "always"

    @model_validator(mode="before")
    @classmethod
    def _criticality_from_label(cls, data: Any) -> Any:
        if isinstance(data, dict) and "criticality" not in data:
            label = data.get("criticalityLabel", data.get("criticality_label"))
            if label is not None:
                return {**data, "criticality": LEVEL_BY_LABEL[canonical_label(str(label))]}
        return data

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        findings = [*self._twice(), *self._wcet_findings()]
        if not self.workloads:
            findings.append(
                Finding(("containers",), None, "add at least one entry to containers or commands")
            )
        label = self.criticality_label
        if label and LEVEL_BY_LABEL[label] is not self.criticality:
            remedy = f"use {LEVEL_BY_LABEL[label]}, which {label} maps onto, or drop criticalityLabel"
            findings.append(Finding(("criticality",), self.criticality.name, remedy))
        if findings:
            refuse(*findings)
        return self

    def _twice(self) -> Iterator[Finding]:
        """Names that are used twice among workloads, flows or tasks."""
        named = [("containers", i, "name", c.name) for i, c in enumerate(self.containers)]
        named += [("commands", i, "name", c.name) for i, c in enumerate(self.commands)]
        flows = [("flows", i, "name", flow.name) for i, flow in enumerate(self.flows)]
        tasks = [(*at, "name", task.name) for at, task in self._placed_tasks()]
        for group in (named, flows, tasks):
            seen: set[Any] = set()
            for *at, name in group:
                if name in seen:
                    yield Finding(tuple(at), name, "use another name: this one is taken in the same job")
                seen.add(name)

    def _placed_tasks(self) -> Iterator[tuple[tuple[str | int, ...], Task]]:
        """Each task with its path below the spec."""
        for kind, workloads in (("containers", self.containers), ("commands", self.commands)):
            for i, workload in enumerate(workloads):
                for j, task in enumerate(workload.tasks):
                    yield (kind, i, "tasks", j), task

    def _wcet_findings(self) -> Iterator[Finding]:
        for at, task in self._placed_tasks():
            if self.criticality is not Level.NO and task.policy is Policy.OTHER:
                yield Finding((*at, "policy"), "other", "use fifo or deadline: other guarantees nothing")
            for node_class, wcet in task.wcet.items():
                where, lo = (*at, "wcet", node_class, "hi"), format_duration(wcet.lo_ns)
                if wcet.hi_ns is None or wcet.hi_ns == wcet.lo_ns:
                    continue
                hi = format_duration(wcet.hi_ns)
                if self.criticality is Level.HI and wcet.hi_ns < wcet.lo_ns:
                    yield Finding(where, hi, f"use at least lo ({lo}): it is a HI task's pessimistic bound")
                if self.criticality is not Level.HI and wcet.hi_ns > wcet.lo_ns:
                    yield Finding(where, hi, f"use at most lo ({lo}): it is what the task keeps in mode HI")

    @property
    def workloads(self) -> tuple[Container | Command, ...]:
        """Containers, then commands."""
        return (*self.containers, *self.commands)

    @property
    def tasks(self) -> tuple[Task, ...]:
        """Tasks of all workloads."""
        return tuple(task for workload in self.workloads for task in workload.tasks)

    @property
    def assurance_floor(self) -> Fraction:
        """Lowest acceptable node score, in [0, 1]."""
        if self.required_assurance is not None:
            return self.required_assurance
        return _ASSURANCE_FLOOR[self.criticality]


class TaskStatus(Model):
    """Counters of one task since its replica started."""

    name: Name
    periods: Annotated[int, Field(ge=0)] = 0
    misses: Annotated[int, Field(ge=0)] = 0
    overruns: Annotated[int, Field(ge=0)] = 0
    response_max_ns: Duration = 0
    response_p99_ns: Duration = 0
    response_bound_ns: Duration | None = None
    """Proved at admission; absent: none was."""


class WorkloadPlacement(Model):
    """Where one workload of a replica runs, with what server."""

    workload: Name
    core: Whole | None = None
    """Absent: not pinned."""
    budget_ns: Duration = 0
    server_period_ns: Duration = 0


class Replica(Model):
    """One running copy."""

    index: Whole
    node: Name
    workloads: tuple[WorkloadPlacement, ...] = ()
    tasks: tuple[TaskStatus, ...] = ()


class JobPhase(enum.StrEnum):
    """Where a job is in its life."""

    PENDING = "Pending"
    REFUSED = "Refused"
    RUNNING = "Running"
    THROTTLED = "Throttled"
    FROZEN = "Frozen"
    DEGRADED = "Degraded"
    EVICTED = "Evicted"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class CriticalJobStatus(Model):
    """What is the case; written by k4.0s only."""

    phase: JobPhase = JobPhase.PENDING
    observed_generation: Whole = 0
    replicas: tuple[Replica, ...] = ()
    conditions: tuple[Condition, ...] = ()
    refusal: tuple[Text, ...] = ()
    """For each node and core, why not."""


class CriticalJob(Model):
    """A job with a criticality, and what it needs to keep its promises."""

    api_version: Literal["k40s.dev/v1alpha1"] = API_VERSION
    kind: Literal["CriticalJob"] = "CriticalJob"
    metadata: ObjectMeta
    spec: CriticalJobSpec
    status: CriticalJobStatus | None = None
