"""Virtual time around the same pure parts that a real node runs: placement, assurance, reconcile.

Events come from a queue in order of time, then of kind, then of making, so one seed gives one run. Between
events nothing happens, so a quiet day is short. Disturbance is a model: while a hog or the host disturbs a node
and nothing has cured it, jobs with tasks there miss every period, raise alarms, and the evidence of the node
says so. The rest is not modelled but run: who is placed where, what a node's score is, what is done about
alarms.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random

from k40s.api.job import CriticalJob, CriticalJobSpec
from k40s.api.level import Level
from k40s.api.policy import SECOND_NS
from k40s.assurance.evidence import Evidence, Measured
from k40s.assurance.overcommit import Amounts
from k40s.assurance.score import Memory as Harm
from k40s.assurance.score import assess
from k40s.placement import (
    Demand,
    Node,
    Placement,
    Scorer,
    Snapshot,
    demand_of,
    place,
    reserve,
    snapshot_of,
    unreserve,
    with_nodes,
)
from k40s.placement.filters import level_counts
from k40s.placement.redundancy import needed_of
from k40s.reconcile import (
    Alarm,
    DesiredJob,
    Memory,
    Move,
    ObservedNode,
    SetMode,
    Start,
    Stop,
    Treat,
    Treatment,
    Watch,
    reconcile,
)
from k40s.sim.generate import job_of, random_templates
from k40s.sim.scenario import Fault, Scenario

HOUR_NS = 3_600 * SECOND_NS
DAY_NS = 24 * HOUR_NS
TICK_NS = SECOND_NS
CALM_TICK_NS = 30 * SECOND_NS
RETRIES = 20
"""Waiting jobs that are tried again when room appears, most critical first."""
MISSING_PPM = 100_000
_CURE = {1: Treatment.THROTTLED, 2: Treatment.FROZEN, 3: Treatment.EVICTED}


@dataclass(frozen=True, slots=True)
class Sample:
    """The plant at one time."""

    at_ns: int
    running: dict[str, int]
    """Jobs by criticality."""
    waiting: dict[str, int]
    node_levels: dict[str, int]
    """Nodes by level of assurance."""
    assurance_mean: float
    misses: int
    outage_s: dict[str, float]
    """Time without a working replica so far, summed over the jobs of a criticality."""
    actions: dict[str, int]
    """Orders so far, by kind."""


@dataclass(slots=True)
class Outcome:
    """What one run came to."""

    scorer: str
    offered: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)
    """At the first try."""
    misses: Counter[str] = field(default_factory=Counter)
    outage_ns: Counter[str] = field(default_factory=Counter)
    outages_beyond_promise: int = 0
    """Outages longer than the job's maxOutage."""
    actions: Counter[str] = field(default_factory=Counter)
    samples: list[Sample] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Disturbance:
    """What disturbs a node, until when; without a culprit it is the host."""

    culprit: str | None
    intensity: int
    until_ns: int


@dataclass(slots=True)
class Trouble:
    """Memory about a node that is not as it should be."""

    disturbances: list[Disturbance] = field(default_factory=list)
    reaction: Memory = field(default_factory=Memory)
    harm: Harm = field(default_factory=Harm)
    mode: Level = Level.LO
    watched: bool = False
    treatment: dict[str, Treatment] = field(default_factory=dict)
    last_ns: int = 0


@dataclass(slots=True)
class Plant:
    """One run. Mutable: the shell around the pure parts."""

    scenario: Scenario
    scorer: Scorer
    now_ns: int = 0
    snapshot: Snapshot = field(init=False)
    outcome: Outcome = field(init=False)
    queue: list[tuple[int, int, Callable[[], None]]] = field(default_factory=list)
    made: int = 0
    demands: dict[str, Demand] = field(default_factory=dict)
    specs: dict[str, CriticalJobSpec] = field(default_factory=dict)
    waiting: dict[str, None] = field(default_factory=dict)
    """Offered or lost, and not running; in order."""
    out_since_ns: dict[str, int] = field(default_factory=dict)
    troubles: dict[str, Trouble] = field(default_factory=dict)
    down: set[str] = field(default_factory=set)
    cut_off: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.snapshot = snapshot_of(_nodes(self.scenario))
        self.outcome = Outcome(self.scorer.name)

    def at(self, when_ns: int, what: Callable[[], None]) -> None:
        """Queue an event."""
        self.made += 1
        heapq.heappush(self.queue, (when_ns, self.made, what))

    def run(self) -> Outcome:
        """To the end of the scenario."""
        spec = self.scenario.spec
        _schedule(self, Random(spec.seed))
        for sample in range(spec.samples + 1):
            self.at(spec.duration_ns * sample // spec.samples, self.sample)
        while self.queue and self.queue[0][0] <= spec.duration_ns:
            self.now_ns, _, what = heapq.heappop(self.queue)
            what()
        self.now_ns = spec.duration_ns
        for job in list(self.out_since_ns):
            self.end_outage(job)
        return self.outcome

    # Jobs

    def offer(self, job: CriticalJob, ends_ns: int | None) -> None:
        """A job arrives."""
        demand = demand_of(job)
        level = demand.criticality.name
        self.demands[demand.job], self.specs[demand.job] = demand, job.spec
        self.outcome.offered[level] += 1
        if self.try_place(demand.job):
            self.outcome.accepted[level] += 1
        else:
            self.waiting[demand.job] = None
        if ends_ns is not None:
            self.at(ends_ns, partial(self.finish, demand.job))

    def try_place(self, job: str) -> bool:
        found = place(self.snapshot, self.demands[job], self.scorer)
        if not isinstance(found, Placement):
            return False
        self.snapshot = reserve(self.snapshot, self.demands[job], found)
        self.waiting.pop(job, None)
        for seat in found.seats:
            if seat.node in self.troubles:
                self.troubles[seat.node].treatment[job] = Treatment.FREE
        return True

    def finish(self, job: str) -> None:
        """A job is done."""
        self.waiting.pop(job, None)
        if job in self.out_since_ns:
            self.end_outage(job)
        self.take_off(job)
        del self.demands[job], self.specs[job]
        self.retry()

    def take_off(self, job: str) -> None:
        for trouble in self.troubles.values():
            trouble.treatment.pop(job, None)
        self.snapshot = unreserve(self.snapshot, job)

    def retry(self) -> None:
        """Waiting jobs get what has become free, the most critical first."""
        for job in sorted(self.waiting, key=lambda name: -self.demands[name].criticality)[:RETRIES]:
            if self.try_place(job):
                self.at(self.now_ns + self.scenario.spec.failover.start_ns, partial(self.back, job))

    def out(self, job: str) -> None:
        """A job that ran does so no longer."""
        self.out_since_ns.setdefault(job, self.now_ns)

    def back(self, job: str) -> None:
        """It may run again; if it does, the outage is over."""
        if job in self.out_since_ns and self.works(job):
            self.end_outage(job)

    def end_outage(self, job: str) -> None:
        lasted_ns = self.now_ns - self.out_since_ns.pop(job)
        self.outcome.outage_ns[self.demands[job].criticality.name] += lasted_ns
        promised_ns = self.specs[job].max_outage_ns
        self.outcome.outages_beyond_promise += promised_ns is not None and lasted_ns > promised_ns

    def works(self, job: str) -> bool:
        """Whether enough replicas are alive and not frozen."""
        if job not in self.snapshot.placed:
            return False
        seats = self.snapshot.placed[job][1].seats
        alive = sum(
            seat.node not in self.down
            and (
                seat.node not in self.troubles
                or self.troubles[seat.node].treatment.get(job, 0) < Treatment.FROZEN
            )
            for seat in seats
        )
        return alive >= needed_of(self.demands[job].redundancy.mode, len(seats))

    # Faults

    def fault(self, kind: str, node: str, fault: Fault) -> None:
        """Something goes wrong on a node."""
        until_ns = self.now_ns + fault.lasts_ns
        match kind:
            case "node-down":
                self.die(node, until_ns)
            case "partition":
                self.cut_off.add(node)
                self.at(until_ns, partial(self.cut_off.discard, node))
                self.disturb(node)
            case "hog":
                hogs = [
                    j for j in self.snapshot.occupancy(node).jobs if self.demands[j].criticality is Level.NO
                ]
                if hogs:
                    self.disturb(node, Disturbance(min(hogs), fault.intensity, until_ns))
            case _:
                self.disturb(node, Disturbance(None, fault.intensity, until_ns))

    def die(self, node: str, until_ns: int) -> None:
        """A node dies with all that runs on it; its jobs are placed anew after the failover time of their
        criticality."""
        if node in self.down:
            return
        self.down.add(node)
        self.set_node(node, ready=False)
        failover = self.scenario.spec.failover
        delay_ns = {Level.HI: failover.hi_ns, Level.LO: failover.lo_ns, Level.NO: failover.no_ns}
        for job in self.snapshot.occupancy(node).jobs:
            if not self.works(job):
                self.out(job)
                when_ns = self.now_ns + delay_ns[self.demands[job].criticality]
                self.at(when_ns, partial(self.replace_lost, job))
        self.at(until_ns, partial(self.revive, node))

    def replace_lost(self, job: str) -> None:
        """A lost job is placed anew, unless its node has come back or it has ended."""
        if job not in self.demands or job in self.waiting or self.works(job):
            return
        self.take_off(job)
        self.waiting[job] = None
        if self.try_place(job):
            self.at(self.now_ns + self.scenario.spec.failover.start_ns, partial(self.back, job))

    def revive(self, node: str) -> None:
        self.down.discard(node)
        self.set_node(node, ready=True)
        for job in self.snapshot.occupancy(node).jobs:
            self.back(job)
        self.retry()

    def set_node(self, name: str, **changes: object) -> None:
        node = self.snapshot.nodes[self.snapshot.index[name]]
        changed = replace(node, **changes)  # type: ignore[arg-type]  # field names of Node, given by the callers here
        if changed != node:
            self.snapshot = with_nodes(self.snapshot, [changed])

    # Reaction

    def disturb(self, node: str, disturbance: Disturbance | None = None) -> None:
        """A node gets into trouble: from now on it is looked after every second."""
        fresh = node not in self.troubles
        trouble = self.troubles.setdefault(node, Trouble(last_ns=self.now_ns))
        if fresh:
            trouble.treatment = dict.fromkeys(self.snapshot.occupancy(node).jobs, Treatment.FREE)
            self.at(self.now_ns, partial(self.tick, node))
        if disturbance is not None:
            trouble.disturbances.append(disturbance)

    def tick(self, node: str) -> None:
        """One look at a node in trouble: misses, evidence, reaction."""
        trouble = self.troubles[node]
        trouble.disturbances = [one for one in trouble.disturbances if one.until_ns > self.now_ns]
        active = [one for one in trouble.disturbances if not self.is_cured(one, trouble)]
        alarms = self.alarms(node, active)
        self.count_misses(node, trouble, alarms)
        self.react(node, trouble, alarms)
        self.judge(node, trouble, bool(alarms))
        memory = trouble.reaction.nodes.get(node)
        at_rest = (
            (memory is None or memory.rung < 0) and not trouble.disturbances and node not in self.cut_off
        )
        if at_rest and not any(trouble.harm.harm_ppm.values()):
            del self.troubles[node]
            return
        self.at(self.now_ns + (CALM_TICK_NS if at_rest else TICK_NS), partial(self.tick, node))

    def is_cured(self, disturbance: Disturbance, trouble: Trouble) -> bool:
        if disturbance.culprit is None:
            return False
        return trouble.treatment.get(disturbance.culprit, Treatment.EVICTED) >= _CURE[disturbance.intensity]

    def alarms(self, node: str, active: Iterable[Disturbance]) -> tuple[Alarm, ...]:
        """Every job with promises suffers from every disturbance that is not cured."""
        if node in self.down:
            return ()
        victims = [
            job
            for job in self.snapshot.occupancy(node).jobs
            if self.demands[job].criticality is not Level.NO
            and any(w.tasks for w in self.demands[job].workloads)
        ]
        return tuple(
            Alarm(victim, "deadline misses", one.culprit)
            for one in active
            for victim in victims
            if victim != one.culprit
        )

    def count_misses(self, node: str, trouble: Trouble, alarms: tuple[Alarm, ...]) -> None:
        passed_ns, trouble.last_ns = self.now_ns - trouble.last_ns, self.now_ns
        node_class = self.snapshot.nodes[self.snapshot.index[node]].node_class
        for victim in {alarm.victim for alarm in alarms}:
            demand = self.demands[victim]
            periods = sum(
                passed_ns // need.period_ns
                for workload in demand.workloads
                for need in workload.needs.get(node_class, ())
            )
            self.outcome.misses[demand.criticality.name] += periods

    def judge(self, node: str, trouble: Trouble, missing: bool) -> None:
        """The node's evidence, through the real scoring, into its scale."""
        policy = self.scenario.spec.policy
        at = self.snapshot.index[node]
        readings = {name: Measured(0) for name in policy.signals}
        readings["deadline-misses"] = Measured(MISSING_PPM if missing else 0)
        assurance, trouble.harm = assess(
            Evidence(readings=readings),
            self.snapshot.occupied[at].load,
            self.snapshot.nodes[at].capacity,
            policy,
            trouble.harm,
            self.now_ns,
        )
        memory = trouble.reaction.nodes.get(node)
        on_ground = memory is None or memory.rung < 0
        self.set_node(
            node,
            scale_ppm=assurance.scale_ppm,
            ready=on_ground and node not in self.down and node not in self.cut_off,
        )

    def react(self, node: str, trouble: Trouble, alarms: tuple[Alarm, ...]) -> None:
        """The real ladder for this node; its orders are carried out at once."""
        here = self.snapshot.occupancy(node).jobs
        desired = {job: self.desired(job, node) for job in here}
        seen = ObservedNode(
            jobs={job: trouble.treatment.get(job, Treatment.FREE) for job in here},
            alarms=alarms,
            watched_closely=trouble.watched,
            mode=trouble.mode,
            reachable=node not in self.cut_off and node not in self.down,
        )
        outcome = reconcile(
            desired, {node: seen}, self.scenario.spec.policy, trouble.reaction, self.now_ns, self.target
        )
        trouble.reaction = outcome.memory
        for action in outcome.actions:
            match action:
                case Watch(closely=closely):
                    trouble.watched = closely
                    self.outcome.actions["watch" if closely else "unwatch"] += 1
                case SetMode(mode=mode):
                    trouble.mode = mode
                    self.outcome.actions[f"mode {mode}"] += 1
                case Treat(job=job, treatment=treatment):
                    self.treat(trouble, job, treatment)
                case Move(job=job):
                    self.outcome.actions["move"] += 1
                    self.take_off(job)
                    self.waiting[job] = None
                    self.try_place(job)
                case Start() | Stop():
                    raise AssertionError("every job of a simulated node is both wanted and there")

    def desired(self, job: str, node: str) -> DesiredJob:
        spec = self.specs[job]
        return DesiredJob(
            name=job,
            node=node,
            criticality=spec.criticality,
            may_preempt=spec.preemption.capability == "may-preempt",
            preemptable=spec.preemption.vulnerability == "preemptable",
            priority=spec.preemption.priority,
            on_partition=spec.on_partition,
        )

    def target(self, job: str, node: str) -> str | None:
        """Where the job would be proved feasible if it left."""
        self.set_node(node, ready=False)
        found = place(unreserve(self.snapshot, job), self.demands[job], self.scorer)
        return found.seats[0].node if isinstance(found, Placement) else None

    def treat(self, trouble: Trouble, job: str, treatment: Treatment) -> None:
        self.outcome.actions[treatment.name.lower()] += 1
        if treatment is Treatment.EVICTED:
            self.take_off(job)
            self.out(job)
            self.waiting[job] = None
            if self.try_place(job):
                self.at(self.now_ns + self.scenario.spec.failover.start_ns, partial(self.back, job))
            return
        trouble.treatment[job] = treatment
        if treatment is Treatment.FROZEN:
            self.out(job)
        elif job in self.out_since_ns:
            self.back(job)

    # Report

    def sample(self) -> None:
        running: Counter[str] = Counter()
        for demand, _ in self.snapshot.placed.values():
            running[demand.criticality.name] += 1
        levels, mean = level_counts(self.snapshot, self.scenario.spec.policy.thresholds)
        outage_ns = Counter(self.outcome.outage_ns)
        for job, since_ns in self.out_since_ns.items():
            outage_ns[self.demands[job].criticality.name] += self.now_ns - since_ns
        self.outcome.samples.append(
            Sample(
                at_ns=self.now_ns,
                running={level.name: running[level.name] for level in Level},
                waiting=dict(Counter(self.demands[job].criticality.name for job in self.waiting)),
                node_levels=levels,
                assurance_mean=mean,
                misses=self.outcome.misses.total(),
                outage_s={level.name: outage_ns[level.name] / SECOND_NS for level in Level},
                actions=dict(self.outcome.actions),
            )
        )


def _nodes(scenario: Scenario) -> list[Node]:
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


def _schedule(plant: Plant, random: Random) -> None:
    """All arrivals and faults, made beforehand: the same for every scorer."""
    spec = plant.scenario.spec
    for given in spec.jobs:
        ends_ns = None if given.lifetime_ns is None else given.at_ns + given.lifetime_ns
        _arrive(plant, given.at_ns, CriticalJob(metadata=given.metadata, spec=given.spec), ends_ns)
    arrivals = spec.arrivals
    templates = random_templates(arrivals.templates, random, [group.name for group in spec.nodes])
    for number in range(arrivals.at_start):
        _arrive(plant, 0, job_of(f"start-{number}", random.choice(templates)), None)
    expected = arrivals.per_hour * spec.duration_ns / HOUR_NS
    for number, at_ns in enumerate(_times(expected, spec.duration_ns, random)):
        ends_ns = at_ns + max(SECOND_NS, int(random.expovariate(1) * arrivals.lifetime_ns))
        _arrive(plant, at_ns, job_of(f"job-{number}", random.choice(templates)), ends_ns)
    names = [node.name for node in plant.snapshot.nodes]
    for fault in spec.faults:
        times = _times(fault.per_day * spec.duration_ns / DAY_NS, spec.duration_ns, random)
        for at_ns in [*times, *([] if fault.at_ns is None else [fault.at_ns])]:
            node = fault.node or random.choice(names)
            plant.at(at_ns, partial(plant.fault, fault.kind, node, fault))


def _arrive(plant: Plant, at_ns: int, job: CriticalJob, ends_ns: int | None) -> None:
    plant.at(at_ns, partial(plant.offer, job, ends_ns))


def _times(expected: float, duration_ns: int, random: Random) -> list[int]:
    """A Poisson process of that many events on average."""
    times, at = [], 0.0
    while expected > 0 and (at := at + random.expovariate(expected)) < 1:
        times.append(int(at * duration_ns))
    return times
