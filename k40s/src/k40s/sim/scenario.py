"""Scenario files: nodes, jobs, arrivals and faults of a simulated plant.

The outer edge of the simulator: pydantic types, read with the same messages as every manifest.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import Field, model_validator

from k40s import api
from k40s.api.fields import (
    API_VERSION,
    Duration,
    Finding,
    Model,
    Name,
    ObjectMeta,
    PositiveDuration,
    Size,
    Text,
    Whole,
    refuse,
)
from k40s.api.manifest import parse, parse_documents
from k40s.api.policy import SECOND_NS
from k40s.errors import InvalidManifest, Problem
from k40s.placement import SCORERS

HOUR_NS = 3600 * SECOND_NS
DAY_NS = 24 * HOUR_NS
GENERATED = "generated"
"""Namespace of the jobs that arrivals make."""
MOST_NODES = 5000
MOST_EVENTS = 1_000_000
"""Arrivals and faults of one scenario: what a run may cost is bounded."""


class NodeGroup(Model):
    """Nodes that are alike."""

    name: Name
    """Also their node class; nodes are called NAME-0, NAME-1 and so on."""
    count: Annotated[int, Field(strict=True, ge=1, le=MOST_NODES)]
    cores: Annotated[int, Field(strict=True, ge=1, le=1024)]
    memory_bytes: Size
    trust: Annotated[float, Field(ge=0, le=10)]
    """Alpha plus beta, in points."""
    reserved_cores: Whole = 1
    """Kept for the system: neither servers nor requests may use them."""


class Arrivals(Model):
    """Jobs made by the scenario's generator."""

    at_start: Whole = 0
    per_hour: Annotated[float, Field(ge=0, le=1_000_000)] = 0
    lifetime_ns: PositiveDuration = 4 * 3600 * SECOND_NS
    """Mean; exponentially distributed. Jobs of the start live on to the end."""
    templates: Annotated[int, Field(strict=True, ge=1, le=1000)] = 40


class GivenJob(Model):
    """A job that is written out."""

    at_ns: Duration = 0
    lifetime_ns: PositiveDuration | None = None
    """Absent: to the end."""
    metadata: ObjectMeta
    spec: api.CriticalJobSpec


class Fault(Model):
    """Something goes wrong, once at a time or many times a day."""

    kind: Literal["node-down", "partition", "hog", "steal"]
    """A node dies; it cannot be reached; a NO job of it disturbs the others; the host disturbs it."""
    at_ns: Duration | None = None
    node: Name | None = None
    """Absent: a random one."""
    per_day: Annotated[float, Field(ge=0, le=100_000)] = 0
    """Random times; with `at` once as well."""
    lasts_ns: PositiveDuration = 60 * SECOND_NS
    intensity: Annotated[int, Field(strict=True, ge=1, le=3)] = 1
    """Of a hog: 1 is cured by throttling it, 2 by freezing, 3 by evicting."""

    @model_validator(mode="after")
    def _happens(self) -> Self:
        if self.at_ns is None and not self.per_day:
            refuse(Finding(("perDay",), self.per_day, "give a time as at, or more than 0 perDay"))
        return self


class Failover(Model):
    """From a node's death to the replacement of its jobs, by criticality."""

    hi_ns: Duration = SECOND_NS
    lo_ns: Duration = 5 * SECOND_NS
    no_ns: Duration = 30 * SECOND_NS
    start_ns: Duration = SECOND_NS
    """From the decision to a running replica."""


class ScenarioSpec(Model):
    """What happens."""

    seed: Whole = 1
    duration_ns: PositiveDuration = 24 * 3600 * SECOND_NS
    scorers: Annotated[tuple[Text, ...], Field(min_length=1)] = ("assurance-waste", "LeastAllocated")
    """One run for each, with the same events."""
    nodes: Annotated[tuple[NodeGroup, ...], Field(min_length=1)]
    arrivals: Arrivals = Arrivals()
    jobs: tuple[GivenJob, ...] = ()
    faults: tuple[Fault, ...] = ()
    failover: Failover = Failover()
    policy: api.AssurancePolicySpec = api.AssurancePolicySpec()
    samples: Annotated[int, Field(strict=True, ge=2, le=10_000)] = 200
    """Points in time of the report's curves."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        findings = [
            *_unknown_scorers(self.scorers),
            *_bad_nodes(self.nodes),
            *_twice([job.metadata for job in self.jobs]),
            *_unknown_nodes(self.faults, self.nodes),
            *_too_much(self),
        ]
        if findings:
            refuse(*findings)
        return self


def _unknown_scorers(scorers: Sequence[str]) -> Iterator[Finding]:
    for at, name in enumerate(scorers):
        if name not in SCORERS:
            yield Finding(("scorers", at), name, f"use some of {', '.join(SCORERS)}")
        elif name in scorers[:at]:
            yield Finding(("scorers", at), name, "name each scorer once")


def _bad_nodes(groups: Sequence[NodeGroup]) -> Iterator[Finding]:
    for at, group in enumerate(groups):
        if group.name in (other.name for other in groups[:at]):
            yield Finding(("nodes", at, "name"), group.name, "give each group a name of its own")
        if group.reserved_cores > group.cores:
            remedy = f"keep at most the {group.cores} cores that there are"
            yield Finding(("nodes", at, "reservedCores"), group.reserved_cores, remedy)
    if (nodes := sum(group.count for group in groups)) > MOST_NODES:
        yield Finding(("nodes",), f"{nodes} nodes", f"use at most {MOST_NODES}")


def _twice(jobs: Sequence[ObjectMeta]) -> Iterator[Finding]:
    seen: set[tuple[str, str]] = set()
    for at, job in enumerate(jobs):
        if (job.namespace, job.name) in seen or job.namespace == GENERATED:
            remedy = f"give each job a name of its own, outside the namespace {GENERATED}"
            yield Finding(("jobs", at, "metadata"), f"{job.namespace}/{job.name}", remedy)
        seen.add((job.namespace, job.name))


def _unknown_nodes(faults: Sequence[Fault], groups: Sequence[NodeGroup]) -> Iterator[Finding]:
    last = {f"{group.name}-{group.count - 1}" for group in groups}
    names = {f"{group.name}-{number}" for group in groups for number in range(group.count)}
    for at, fault in enumerate(faults):
        if fault.node is not None and fault.node not in names:
            remedy = f"name a node that there is, numbered from 0 to {', '.join(sorted(last))}"
            yield Finding(("faults", at, "node"), fault.node, remedy)


def _too_much(spec: ScenarioSpec) -> Iterator[Finding]:
    jobs = spec.arrivals.at_start + spec.arrivals.per_hour * spec.duration_ns / HOUR_NS
    faults = sum(fault.per_day for fault in spec.faults) * spec.duration_ns / DAY_NS
    for field, expected in (("arrivals", jobs), ("faults", faults)):
        if expected > MOST_EVENTS:
            yield Finding((field,), f"{expected:.0f} {field}", f"let it be at most {MOST_EVENTS} in all")


class Scenario(Model):
    """A simulated plant."""

    api_version: Literal["k40s.dev/v1alpha1"] = API_VERSION
    kind: Literal["Scenario"] = "Scenario"
    metadata: ObjectMeta
    spec: ScenarioSpec


def read_scenario(text: str) -> Scenario:
    """The scenario in a YAML text. Raises InvalidManifest with every problem."""
    documents: list[Any] = [document for document in parse_documents(text) if document is not None]
    if len(documents) != 1 or not isinstance(documents[0], dict):
        found = f"{len(documents)} documents" if len(documents) != 1 else "no mapping"
        raise InvalidManifest([Problem("", found, "write one document of kind Scenario")])
    return parse(Scenario, documents[0])


def with_choices(scenario: Scenario, seed: int | None = None, scorers: Sequence[str] = ()) -> Scenario:
    """The scenario with another seed or other scorers, where given. Raises InvalidManifest as `read_scenario`."""
    chosen = {"seed": seed, "scorers": list(scorers) or None}
    changes = {name: value for name, value in chosen.items() if value is not None}
    if not changes:
        return scenario
    data = scenario.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return parse(Scenario, {**data, "spec": {**data["spec"], **changes}})


def scenario_yaml(scenario: Scenario) -> str:
    """The text that `read_scenario` reads back."""
    data = scenario.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return str(yaml.safe_dump({"apiVersion": API_VERSION, "kind": "Scenario", **data}, sort_keys=False))
