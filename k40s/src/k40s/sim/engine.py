"""Virtual time around the same pure parts that a real node runs: placement, assurance, reconcile.

Events come from a queue in order of time, then of making, so one seed gives one run. Between events nothing
happens, so a quiet day is short. Disturbance is a model: while a hog or the host disturbs a node and nothing
has cured it, jobs with tasks there miss every period, raise alarms, and the evidence of the node says so; a hog
that was evicted behaves when it is started again elsewhere. The rest is not modelled but run: who is placed
where, what a node's score is, what is done about alarms.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial

from k40s.api.job import CriticalJob, CriticalJobSpec
from k40s.api.level import Level
from k40s.api.policy import SECOND_NS
from k40s.assurance.evidence import Evidence, Measured
from k40s.assurance.score import Memory as Harm
from k40s.assurance.score import assess
from k40s.placement import (
    Demand,
    Placement,
    Scorer,
    Snapshot,
    demand_of,
    narrowed,
    place,
    reserve,
    snapshot_of,
    unreserve,
    with_nodes,
)
from k40s.placement.filters import level_counts, view
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
    isolated,
    reconcile,
)
from k40s.sim.outcome import Outcome, Sample
from k40s.sim.scenario import Fault, Scenario
from k40s.sim.schedule import Arrival, events_of, nodes_of
from k40s.sim.waiting import Waiting

TICK_NS = SECOND_NS
CALM_TICK_NS = 30 * SECOND_NS
MISSING_PPM = 100_000
_CURE = {1: Treatment.THROTTLED, 2: Treatment.FROZEN, 3: Treatment.EVICTED}


Progress = Callable[[str, float], None]
"""Told the scorer and the share of its run that is done, 0 to 1."""


def unheard(_scorer: str, _share: float) -> None:
    """For those who do not watch."""


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
    progress: Progress = unheard
    now_ns: int = 0
    snapshot: Snapshot = field(init=False)
    outcome: Outcome = field(init=False)
    queue: list[tuple[int, int, Callable[[], None]]] = field(default_factory=list)
    made: int = 0
    demands: dict[str, Demand] = field(default_factory=dict)
    specs: dict[str, CriticalJobSpec] = field(default_factory=dict)
    waiting: Waiting = field(default_factory=Waiting)
    """Offered or lost, and not placed."""
    out_since_ns: dict[str, int] = field(default_factory=dict)
    troubles: dict[str, Trouble] = field(default_factory=dict)
    down: set[str] = field(default_factory=set)
    cut_off_since_ns: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """The queue holds all that the scenario brings, and the times to look."""
        spec = self.scenario.spec
        self.snapshot = snapshot_of(nodes_of(self.scenario))
        self.outcome = Outcome(self.scorer.name)
        for event in events_of(self.scenario):
            if isinstance(event, Arrival):
                self.at(event.at_ns, partial(self.offer, event.make, event.ends_ns))
            else:
                self.at(event.at_ns, partial(self.fault, event.node, event.fault))
        for sample in range(spec.samples + 1):
            self.at(spec.duration_ns * sample // spec.samples, self.sample)

    def at(self, when_ns: int, what: Callable[[], None]) -> None:
        """Queue an event."""
        self.made += 1
        heapq.heappush(self.queue, (when_ns, self.made, what))

    def run(self) -> Outcome:
        """To the end of the scenario."""
        while self.step():
            pass
        for job in list(self.out_since_ns):
            self.end_outage(job)
        return self.outcome

    def step(self) -> bool:
        """The next event; False when there is none before the end."""
        end_ns = self.scenario.spec.duration_ns
        if not self.queue or self.queue[0][0] > end_ns:
            self.now_ns = end_ns
            return False
        self.now_ns, _, what = heapq.heappop(self.queue)
        what()
        return True

    # Jobs

    def offer(self, make: Callable[[], CriticalJob], ends_ns: int | None) -> None:
        """A job arrives."""
        job = make()
        demand = demand_of(job)
        level = demand.criticality.name
        self.demands[demand.job], self.specs[demand.job] = demand, job.spec
        self.outcome.offered[level] += 1
        if self.try_place(demand.job):
            self.outcome.accepted[level] += 1
        else:
            self.wait(demand.job)
        if ends_ns is not None:
            self.at(ends_ns, partial(self.finish, demand.job))

    def wait(self, job: str) -> None:
        """A job is not placed."""
        self.waiting.add(job, self.demands[job].criticality, self.specs[job].model_dump_json())

    def try_place(self, job: str) -> bool:
        """Put a job where the scorer wants it, if anywhere."""
        found = place(self.snapshot, self.demands[job], self.scorer)
        if isinstance(found, Placement):
            self.settle(job, found)
        return isinstance(found, Placement)

    def settle(self, job: str, placement: Placement) -> None:
        """Put a job where it was found to fit."""
        self.snapshot = reserve(self.snapshot, self.demands[job], placement)
        self.waiting.drop(job)
        for seat in placement.seats:
            if seat.node in self.troubles:
                self.troubles[seat.node].treatment[job] = Treatment.FREE

    def replace(self, job: str) -> None:
        """A job that lost its place gets another and is started there, or waits."""
        if self.try_place(job):
            self.at(self.now_ns + self.scenario.spec.failover.start_ns, partial(self.back, job))
        else:
            self.wait(job)

    def finish(self, job: str) -> None:
        """A job is done."""
        self.waiting.drop(job)
        if job in self.out_since_ns:
            self.end_outage(job)
        freed = self.take_off(job)
        del self.demands[job], self.specs[job]
        self.retry(freed)

    def take_off(self, job: str) -> list[str]:
        """A job leaves its nodes; their names."""
        if job not in self.snapshot.placed:
            return []
        nodes = [seat.node for seat in self.snapshot.placed[job][1].seats]
        for node in nodes:
            if node in self.troubles:
                self.troubles[node].treatment.pop(job, None)
        self.snapshot = unreserve(self.snapshot, job)
        return nodes

    def retry(self, freed: Iterable[str]) -> None:
        """Waiting jobs get what has become free on some nodes, the most critical first."""
        freed = list(freed)
        if not freed:
            return
        for kind in sorted(self.waiting.kinds):
            for job in list(self.waiting.kinds[kind]):
                if not (self.may_fit(job, freed) and self.try_place(job)):
                    break
                self.at(self.now_ns + self.scenario.spec.failover.start_ns, partial(self.back, job))

    def may_fit(self, job: str, freed: Iterable[str]) -> bool:
        """False if room on these nodes cannot be what a job has waited for."""
        demand = self.demands[job]
        return bool(demand.flows) or bool(view(narrowed(self.snapshot, freed), demand).feasible.any())

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

    def fault(self, node: str, fault: Fault) -> None:
        """Something goes wrong on a node."""
        until_ns = self.now_ns + fault.lasts_ns
        match fault.kind:
            case "node-down":
                self.die(node, until_ns)
            case "partition":
                self.cut_off(node, until_ns)
            case "hog":
                hogs = [
                    j for j in self.snapshot.occupancy(node).jobs if self.demands[j].criticality is Level.NO
                ]
                if hogs:
                    self.disturb(node, Disturbance(min(hogs), fault.intensity, until_ns))
            case "steal":
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
        """A lost job is placed anew, unless its node has come back, or it has ended or left it by now."""
        if job not in self.snapshot.placed or self.works(job):
            return
        if self.down.isdisjoint(seat.node for seat in self.snapshot.placed[job][1].seats):
            return
        self.take_off(job)
        self.replace(job)

    def revive(self, node: str) -> None:
        """A node is there again, with the jobs that nobody has placed elsewhere meanwhile."""
        self.down.discard(node)
        self.set_node(node, ready=True)
        for job in self.snapshot.occupancy(node).jobs:
            self.back(job)
        self.retry([node])

    def cut_off(self, node: str, until_ns: int) -> None:
        """A node cannot be reached; after the lease its own agent ends the jobs that want it so."""
        if node in self.cut_off_since_ns:
            return
        self.cut_off_since_ns[node] = self.now_ns
        lease_ns = self.scenario.spec.policy.partition_lease_ns
        if self.now_ns + lease_ns < until_ns:
            self.at(self.now_ns + lease_ns, partial(self.isolate, node))
        self.at(until_ns, partial(self.reach, node))
        self.disturb(node)

    def reach(self, node: str) -> None:
        """A node that was cut off can be reached again; the ladder brings back what its agent ended."""
        del self.cut_off_since_ns[node]

    def isolate(self, node: str) -> None:
        """What the agent of a node that is cut off does."""
        desired, seen = self.seen(node, ())
        cut_off_ns = self.now_ns - self.cut_off_since_ns[node]
        for stop in isolated(desired, node, seen, self.scenario.spec.policy, cut_off_ns):
            self.outcome.actions["stop"] += 1
            self.troubles[node].treatment[stop.job] = Treatment.EVICTED
            if not self.works(stop.job):
                self.out(stop.job)

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
            (memory is None or memory.rung < 0)
            and not trouble.disturbances
            and node not in self.cut_off_since_ns
        )
        if at_rest and not any(trouble.harm.harm_ppm.values()):
            del self.troubles[node]
            self.retry([node])
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
            ready=on_ground and node not in self.down and node not in self.cut_off_since_ns,
        )

    def react(self, node: str, trouble: Trouble, alarms: tuple[Alarm, ...]) -> None:
        """The real ladder for this node; its orders are carried out at once."""
        desired, seen = self.seen(node, alarms)
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
                    self.move(job)
                case Start() | Stop():
                    raise AssertionError("every job of a simulated node is both wanted and there")

    def seen(self, node: str, alarms: tuple[Alarm, ...]) -> tuple[dict[str, DesiredJob], ObservedNode]:
        """What should run on a node, and what does."""
        trouble = self.troubles[node]
        here = self.snapshot.occupancy(node).jobs
        reachable = node not in self.cut_off_since_ns and node not in self.down
        observed = ObservedNode(
            jobs={job: trouble.treatment.get(job, Treatment.FREE) for job in here},
            alarms=alarms,
            watched_closely=trouble.watched,
            mode=trouble.mode,
            reachable=reachable,
        )
        return {job: self.desired(job, node) for job in here}, observed

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

    def move(self, job: str) -> None:
        """A job is started on a node that is proved for it, then ended where it was; else it stays."""
        left = unreserve(self.snapshot, job)
        found = place(left, self.demands[job], self.scorer)
        if not isinstance(found, Placement):
            return
        self.outcome.actions["move"] += 1
        self.take_off(job)
        self.settle(job, found)
        self.at(self.now_ns + self.scenario.spec.failover.start_ns, partial(self.back, job))

    def treat(self, trouble: Trouble, job: str, treatment: Treatment) -> None:
        """What the ladder orders for a job."""
        self.outcome.actions[treatment.name.lower()] += 1
        if treatment is Treatment.EVICTED:
            self.take_off(job)
            self.out(job)
            self.replace(job)
            return
        trouble.treatment[job] = treatment
        if treatment is Treatment.FROZEN:
            self.out(job)
        elif job in self.out_since_ns:
            self.back(job)

    # Report

    def sample(self) -> None:
        """One point of every curve."""
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
                offered=self.outcome.offered.total(),
                accepted=self.outcome.accepted.total(),
                running={level.name: running[level.name] for level in Level},
                waiting=self.waiting.by_level(),
                node_levels=levels,
                assurance_mean=mean,
                misses=self.outcome.misses.total(),
                outage_s={level.name: outage_ns[level.name] / SECOND_NS for level in Level},
                actions=dict(self.outcome.actions),
            )
        )
        self.progress(self.scorer.name, self.now_ns / self.scenario.spec.duration_ns)
