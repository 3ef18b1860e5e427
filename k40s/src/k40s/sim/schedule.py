"""From a scenario to nodes and events, all made beforehand: the same for every scorer. Randomness comes from its seed
alone."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

from k40s.api.job import CriticalJob
from k40s.api.policy import SECOND_NS
from k40s.assurance.overcommit import Amounts
from k40s.placement import Node
from k40s.sim.generate import Template, job_of, random_templates
from k40s.sim.scenario import DAY_NS, GENERATED, HOUR_NS, Fault, Scenario


@dataclass(frozen=True, slots=True)
class Arrival:
    """A job arrives; without an end it stays."""

    at_ns: int
    make: Callable[[], CriticalJob]
    """The job, which need not be held in memory before it arrives."""
    ends_ns: int | None


@dataclass(frozen=True, slots=True)
class Failure:
    """A fault strikes a node."""

    at_ns: int
    node: str
    fault: Fault


def nodes_of(scenario: Scenario) -> list[Node]:
    """The nodes of a scenario, group by group."""
    return [
        Node(
            name=f"{group.name}-{number}",
            node_class=group.name,
            capacity=Amounts(max(0, group.cores - group.reserved_cores) * 1000, group.memory_bytes),
            cores=max(0, group.cores - group.reserved_cores),
            trust=round(group.trust * 1000),
            uplink_bps=10**9,
            propagation_ns=1_000,
        )
        for group in scenario.spec.nodes
        for number in range(group.count)
    ]


def events_of(scenario: Scenario) -> Iterator[Arrival | Failure]:
    """All arrivals, then all failures; not in order of time."""
    random = Random(scenario.spec.seed)
    yield from _arrivals(scenario, random)
    yield from _failures(scenario, random)


def _arrivals(scenario: Scenario, random: Random) -> Iterator[Arrival]:
    spec = scenario.spec
    for given in spec.jobs:
        ends_ns = None if given.lifetime_ns is None else given.at_ns + given.lifetime_ns
        yield Arrival(given.at_ns, partial(CriticalJob, metadata=given.metadata, spec=given.spec), ends_ns)
    arrivals = spec.arrivals
    templates = random_templates(arrivals.templates, random, [group.name for group in spec.nodes])
    for number in range(arrivals.at_start):
        yield Arrival(0, _job(f"start-{number}", templates, random), None)
    expected = arrivals.per_hour * spec.duration_ns / HOUR_NS
    for number, at_ns in enumerate(_times(expected, spec.duration_ns, random)):
        ends_ns = at_ns + max(SECOND_NS, int(random.expovariate(1) * arrivals.lifetime_ns))
        yield Arrival(at_ns, _job(f"job-{number}", templates, random), ends_ns)


def _job(name: str, templates: Sequence[Template], random: Random) -> Callable[[], CriticalJob]:
    return partial(job_of, name, random.choice(templates), namespace=GENERATED)


def _failures(scenario: Scenario, random: Random) -> Iterator[Failure]:
    spec = scenario.spec
    names = [node.name for node in nodes_of(scenario)]
    for fault in spec.faults:
        times = _times(fault.per_day * spec.duration_ns / DAY_NS, spec.duration_ns, random)
        for at_ns in [*times, *([] if fault.at_ns is None else [fault.at_ns])]:
            yield Failure(at_ns, fault.node or random.choice(names), fault)


def _times(expected: float, duration_ns: int, random: Random) -> list[int]:
    """A Poisson process of that many events on average."""
    times, at = [], 0.0
    while expected > 0 and (at := at + random.expovariate(expected)) < 1:
        times.append(int(at * duration_ns))
    return times
