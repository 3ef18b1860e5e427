"""Scenario files: nodes, jobs, arrivals and faults of a simulated plant.

The outer edge of the simulator: pydantic types, read with the same messages as every manifest.
"""

from typing import Annotated, Any, Literal

import yaml
from pydantic import Field

from k40s import api
from k40s.api.fields import (
    API_VERSION,
    Duration,
    Model,
    Name,
    ObjectMeta,
    PositiveDuration,
    Size,
    Text,
    Whole,
)
from k40s.api.manifest import parse, parse_documents
from k40s.api.policy import SECOND_NS
from k40s.errors import InvalidManifest, Problem
from k40s.placement import SCORERS

GIB = 2**30


class NodeGroup(Model):
    """Nodes that are alike."""

    name: Name
    """Also their node class; nodes are called NAME-0, NAME-1 and so on."""
    count: Annotated[int, Field(strict=True, ge=1, le=5000)]
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
        found = f"{len(documents)} documents"
        raise InvalidManifest([Problem("", found, "write one document of kind Scenario")])
    scenario = parse(Scenario, documents[0])
    unknown = [name for name in scenario.spec.scorers if name not in SCORERS]
    if unknown:
        raise InvalidManifest([Problem("spec.scorers", unknown[0], f"use some of {', '.join(SCORERS)}")])
    most = sum(group.count for group in scenario.spec.nodes)
    if most > 5000:
        raise InvalidManifest([Problem("spec.nodes", f"{most} nodes", "use at most 5000")])
    return scenario


def scenario_yaml(scenario: Scenario) -> str:
    """The text that `read_scenario` reads back."""
    data = scenario.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return str(yaml.safe_dump({"apiVersion": API_VERSION, "kind": "Scenario", **data}, sort_keys=False))
