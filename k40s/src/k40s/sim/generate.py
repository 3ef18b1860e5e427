"""Random jobs and nodes of a given mix, from a generator that is handed in: for scenarios and for the placement bench.

Shapes are those of a factory: short control loops (HI), services with soft deadlines (LO), batch work without any (NO);
few nodes of high trust, many ordinary ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from random import Random

from k40s import api
from k40s.api.level import Level
from k40s.assurance.overcommit import Amounts
from k40s.placement.demand import Demand, demand_of
from k40s.placement.snapshot import Node

GIB = 2**30
MS = 1_000_000


@dataclass(frozen=True, slots=True)
class NodeKind:
    """A kind of node: how many of a hundred, how trusted, how large."""

    name: str
    percent: int
    trust: int
    """Alpha and beta, in thousandths of a point."""
    cores: int
    memory_gib: int
    scale_ppm: int = 950_000


KINDS: Sequence[NodeKind] = (
    NodeKind("controller", 20, 9_000, 4, 8),
    NodeKind("edge", 40, 5_000, 6, 16),
    NodeKind("server", 40, 1_500, 8, 32),
)
"""Trusted controllers are few and small; servers are large and little trusted."""

CLASSES = tuple(kind.name for kind in KINDS)

LEVELS = {Level.NO: 50, Level.LO: 30, Level.HI: 20}
"""Jobs of each criticality among a hundred."""


REQUESTS_MILLI = {Level.NO: (500, 750, 1000), Level.LO: (250, 500, 1000), Level.HI: (250, 500)}
"""CPU that jobs ask for besides what their servers need."""


def random_nodes(count: int, random: Random, kinds: Sequence[NodeKind] = KINDS) -> list[Node]:
    """Nodes in the proportions of the kinds, in random order; one core of each is kept for the system."""
    chosen = [kinds[-1]] * count
    at = 0
    for kind in kinds:
        for _ in range(count * kind.percent // 100):
            chosen[at] = kind
            at += 1
    random.shuffle(chosen)
    return [
        Node(
            name=f"{kind.name}-{number}",
            node_class=kind.name,
            capacity=Amounts((kind.cores - 1) * 1000, (kind.memory_gib - 1) * GIB),
            cores=kind.cores - 1,
            trust=kind.trust,
            scale_ppm=kind.scale_ppm,
            core_numbers=tuple(range(1, kind.cores)),
            uplink_bps=10**9,
            propagation_ns=1_000,
        )
        for number, kind in enumerate(chosen)
    ]


@dataclass(frozen=True, slots=True)
class Template:
    """A kind of job; many jobs share one, as replicas of one image do."""

    level: Level
    tasks: tuple[api.Task, ...]
    resources: api.Resources
    flow: bool


def random_templates(count: int, random: Random, classes: Sequence[str] = CLASSES) -> list[Template]:
    """Kinds of jobs, in the proportions of `LEVELS`, with WCETs for the node classes."""
    levels = [level for level, percent in LEVELS.items() for _ in range(percent)]
    return [_template(levels[number * 100 // count], random, classes) for number in range(count)]


def _template(level: Level, random: Random, classes: Sequence[str]) -> Template:
    tasks = (
        ()
        if level is Level.NO
        else tuple(_task(f"t{number}", level, random, classes) for number in range(random.randint(1, 2)))
    )
    served = sum(
        max(w.lo_ns, w.hi_ns or 0) * 1000 // task.period_ns for task in tasks for w in task.wcet.values()
    )
    request_milli = max(served // len(classes), random.choice(REQUESTS_MILLI[level]))
    memory_bytes = random.choice((256, 512, 1024)) * 2**20
    slack = {Level.NO: 3, Level.LO: 2, Level.HI: 1}[level]
    return Template(
        level=level,
        tasks=tasks,
        resources=api.Resources(
            requests=api.Amount(cpu_milli=request_milli, memory_bytes=memory_bytes),
            limits=api.Limit(cpu_milli=request_milli * slack, memory_bytes=memory_bytes),
        ),
        flow=level is not Level.NO and random.random() < 0.2,
    )


def _task(name: str, level: Level, random: Random, classes: Sequence[str]) -> api.Task:
    period_ns = random.choice((5, 10, 20, 50) if level is Level.HI else (20, 50, 100, 200)) * MS
    lo_ns = int(period_ns * random.uniform(0.04, 0.2)) // 1000 * 1000
    hi_ns = lo_ns * 3 // 2 if level is Level.HI else lo_ns // 2
    return api.Task(
        name=name,
        period_ns=period_ns,
        wcet={name: api.Wcet(lo_ns=lo_ns, hi_ns=hi_ns) for name in classes},
        policy=api.Policy.DEADLINE,
    )


def job_of(
    name: str, template: Template, peer: str | None = None, namespace: str = "default"
) -> api.CriticalJob:
    """A job of the kind; one that sends does so to `peer`."""
    flows: tuple[api.Flow, ...] = ()
    if template.flow and peer is not None:
        flows = (
            api.Flow(
                name="state",
                peer=api.Peer(job=peer),
                traffic=api.TrafficType.CYCLIC_ASYNCHRONOUS,
                rate_bps=2_000_000,
                burst_bytes=3084,
                latency_bound_ns=5 * MS,
            ),
        )
    command = api.Command(name="main", command=("run",), tasks=template.tasks, resources=template.resources)
    return api.CriticalJob(
        metadata=api.ObjectMeta(name=name, namespace=namespace),
        spec=api.CriticalJobSpec(criticality=template.level, commands=(command,), flows=flows),
    )


def random_demands(count: int, templates: Sequence[Template], random: Random) -> list[Demand]:
    """Jobs in random order, each of a random kind."""
    return [
        demand_of(job_of(f"j{number}", random.choice(templates), f"j{random.randrange(count)}"))
        for number in range(count)
    ]


def share_of(demands: Sequence[Demand], placed: int) -> Fraction:
    """Acceptance: the share of jobs that were placed."""
    return Fraction(placed, len(demands)) if demands else Fraction(1)
