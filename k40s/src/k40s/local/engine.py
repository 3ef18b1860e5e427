"""The loop of one machine: what is wanted becomes what is, again and again, whatever happened in between.

Level-triggered: a tick compares and acts, and remembers nothing that the store or the kernel does not know, so that a
crash at any point is an interruption and no more. A job is stored before it is started and forgotten after it is
stopped. One lock: the loop's thread and the API's take turns.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from fractions import Fraction
from functools import partial
from pathlib import Path

from k40s import api
from k40s.assurance import Assurance, Load, Memory, Present, assess, explain, to_status
from k40s.errors import BadInput, Conflict, K40sError, NotFound, Unsupported
from k40s.local.config import Config
from k40s.local.measure import Measurements
from k40s.local.reaction import ADJUSTMENT, Reaction
from k40s.local.running import Containers
from k40s.local.state import Adjustment, JobState
from k40s.local.store import Event, Store
from k40s.local.workloads import Wanted, flows_of, lacking, seat_from, wanted_of
from k40s.monitor.plan import Metric
from k40s.node.budgets import free_ppm, read_budget
from k40s.node.capabilities import Feature, Found
from k40s.node.images import Image, unpack
from k40s.node.launchers import shorten_log
from k40s.node.links import Device, check_fits
from k40s.node.machine import Machine
from k40s.node.probe import Hardware
from k40s.placement import (
    Placement,
    Refusal,
    Snapshot,
    capacity_of,
    demand_of,
    node_of,
    place,
    reserve,
    snapshot_of,
    unreserve,
    with_nodes,
)
from k40s.reconcile import SetMode, Start, Treat, Watch

JOB = "CriticalJob"
RESERVED_BYTES = 512 * 2**20
"""Memory that the built-in node class keeps for the system."""
REMOVAL_AGAIN_NS = 5_000_000_000


@dataclass(frozen=True, slots=True)
class Applied:
    """What became of one object: `admitted`, `refused`, `unchanged` or `stored`, and the reasons of a refusal."""

    kind: str
    name: str
    outcome: str
    reasons: tuple[str, ...] = ()


def class_of(hardware: Hardware) -> api.NodeClass:
    """The class of this machine when nobody has described it: all cores, all memory but half a gibibyte."""
    spec = api.NodeClassSpec(
        description="this machine",
        cores=hardware.cores,
        memory_bytes=hardware.memory_bytes,
        reserved_memory_bytes=min(RESERVED_BYTES, hardware.memory_bytes // 2),
    )
    return api.NodeClass(metadata=api.ObjectMeta(name="local"), spec=spec)


@dataclass(slots=True)
class Engine:
    """All of one machine. Public verbs take the lock; what they return is a value."""

    config: Config
    machine: Machine
    store: Store
    measurements: Measurements
    features: Mapping[Feature, Found]
    hardware: Hardware
    clock_ns: Callable[[], int] = time.monotonic_ns
    wall: Callable[[], datetime] = lambda: datetime.now(UTC)
    jobs: dict[str, api.CriticalJob] = field(default_factory=dict)
    states: dict[str, JobState] = field(default_factory=dict)
    wanted: dict[str, tuple[Wanted, ...]] = field(default_factory=dict)
    reaction: Reaction = field(default_factory=Reaction)
    memory: Memory = field(default_factory=Memory)
    lock: threading.RLock = field(default_factory=threading.RLock)
    containers: Containers = field(init=False)
    node_class: api.NodeClass = field(init=False)
    policy: api.AssurancePolicy = field(init=False)
    assurance: Assurance = field(init=False)
    snapshot: Snapshot = field(init=False)
    shaped: tuple[object, ...] | None = None
    alarmed: frozenset[str] = frozenset()
    troubles: dict[str, str] = field(default_factory=dict)
    removals: dict[str, int] = field(default_factory=dict)
    """Of each unfinished deletion, when it may be tried again."""
    lost_events: int = 0
    cpu_ns: Callable[[], int] = time.process_time_ns
    began_ns: int = 0
    began_cpu_ns: int = 0

    def __post_init__(self) -> None:
        self.began_ns, self.began_cpu_ns = self.clock_ns(), self.cpu_ns()
        self.containers = Containers(self.machine, self._set_state, self._throttle_percent)
        self.policy = self._stored_policy()
        self.node_class = self._find_class()
        self._assess_first()
        for name, body in self.store.objects(JOB).items():
            self.jobs[name] = api.CriticalJob.model_validate_json(body)
        self.reaction = Reaction.from_json(self.store.objects("Reaction").get(self.config.node, ""))
        self.states = {name: JobState.from_json(body) for name, body in self.store.states().items()}
        for name, job in self.jobs.items():
            state = self.states.setdefault(name, JobState())
            if state.placed:
                self._take_seat(name, job, state)
        self._recover()

    # -- start ---------------------------------------------------------------------------------------------------

    def _stored_policy(self) -> api.AssurancePolicy:
        for body in self.store.objects("AssurancePolicy").values():
            return api.AssurancePolicy.model_validate_json(body)
        return api.AssurancePolicy(metadata=api.ObjectMeta(name="default"))

    def _find_class(self) -> api.NodeClass:
        for body in self.store.objects("NodeClass").values():
            found = api.NodeClass.model_validate_json(body)
            match = found.spec.match
            if self.hardware.is_like(match.cpu_model, match.architecture, match.kernel):
                return found
        return class_of(self.hardware)

    def _assess_first(self) -> None:
        """Before anything is placed; the node that placement sees has this assurance until the first tick."""
        evidence, capacity = self.measurements.evidence(()), capacity_of(self.node_class)
        assessed = assess(evidence, Load(), capacity, self.policy.spec, Memory(), self.clock_ns())
        self.assurance, self.memory = assessed
        self.snapshot = snapshot_of([node_of(self.config.node, self.node_class, self.assurance)])

    def _take_seat(self, name: str, job: api.CriticalJob, state: JobState) -> None:
        seat = seat_from(job, state.cores, self.config.node, self.node_class)
        if seat is None:
            # The node class has changed under it: what was proved then is not proved now.
            self._set_state(name, JobState(refusal=("its node class has changed: apply it again",)))
            return
        placement = Placement(demand_of(job).job, (seat,))
        self.snapshot = reserve(self.snapshot, demand_of(job), placement)
        self.wanted[name] = self._wanted(job, placement)

    def _wanted(self, job: api.CriticalJob, placement: Placement) -> tuple[Wanted, ...]:
        (seat,) = placement.seats
        return wanted_of(
            job, seat, self.node_class, self.config, self._user_of(demand_of(job).job), self._image
        )

    def _user_of(self, key: str) -> int:
        """The user that a job runs as: the one that it has, or the first that no other job has."""
        if (own := self.states.get(key)) is not None and own.user:
            return own.user
        taken = {state.user for state in self.states.values()}
        free = next((user for user in self.config.users if user not in taken), None)
        if free is None:
            raise Unsupported(f"{len(taken)} jobs have all users of {self.config.users}: delete one first")
        return free

    def _image(self, layout: Path) -> Image:
        return unpack(layout, self.config.state / "images")

    def _recover(self) -> None:
        keep = frozenset(wanted.address for wanted in self.all_wanted())
        kept = self.machine.recover(keep, frozenset(self._devices()))
        for wanted in self.all_wanted():
            if wanted.address in kept:
                self.event("info", wanted.job, "Adopted", f"{wanted.address.container} ran on meanwhile")

    # -- reading -------------------------------------------------------------------------------------------------

    def all_wanted(self) -> Iterator[Wanted]:
        """Containers of all placed jobs."""
        for containers in self.wanted.values():
            yield from containers

    def running(self) -> list[Wanted]:
        """Those that have processes now."""
        return [wanted for wanted in self.all_wanted() if self.machine.members(wanted.address)]

    def job(self, name: str) -> api.CriticalJob:
        """A job with its status. `NotFound`."""
        with self.lock:
            key = self._key(name)
            return self.jobs[key].model_copy(update={"status": self._status(key)})

    def all_jobs(self) -> list[api.CriticalJob]:
        """All jobs with their status, the most critical first."""
        with self.lock:
            order = sorted(self.jobs, key=lambda name: (-self.jobs[name].spec.criticality, name))
            return [self.job(name) for name in order]

    def _key(self, name: str) -> str:
        key = name if "/" in name else f"default/{name}"
        if key not in self.jobs:
            raise NotFound(f"job {name!r} is not here: `k40s get` lists those that are")
        return key

    def _status(self, key: str) -> api.CriticalJobStatus:
        job, state = self.jobs[key], self.states[key]
        workloads, tasks = [], []
        for wanted in self.wanted.get(key, ()):
            budget = wanted.reservation.budget
            workloads.append(
                api.WorkloadPlacement(
                    workload=wanted.address.container,
                    core=wanted.core,
                    budget_ns=budget.runtime_us * 1000 if budget else 0,
                    server_period_ns=budget.period_us * 1000 if budget else 0,
                )
            )
            tasks += [self._task_status(wanted, task.name) for task in wanted.tasks]
        replicas = (
            (api.Replica(index=0, node=self.config.node, workloads=tuple(workloads), tasks=tuple(tasks)),)
            if state.placed
            else ()
        )
        trouble = (
            (api.Condition(type="Started", status="False", reason="StartFailed", message=state.trouble),)
            if state.trouble
            else ()
        )
        return api.CriticalJobStatus(
            phase=state.phase(job),
            observed_generation=job.metadata.generation,
            replicas=replicas,
            conditions=trouble,
            refusal=tuple(line[:4096] for line in state.refusal),
        )

    def _task_status(self, wanted: Wanted, task: str) -> api.TaskStatus:
        history = self.measurements.tasks.get((wanted.address.id, task))
        if history is None or history.record is None:
            return api.TaskStatus(name=task)
        responses = sorted(history.responses_ns)
        return api.TaskStatus(
            name=task,
            periods=history.total.periods,
            misses=history.total.missed,
            overruns=history.overruns,
            response_max_ns=min(history.record.worst_response_ns, 2**62),
            response_p99_ns=responses[len(responses) * 99 // 100] if responses else 0,
        )

    def why_not(self, name: str) -> tuple[str, ...]:
        """Why a job does not run: what was said when it was refused, or what keeps its containers from starting."""
        with self.lock:
            key = self._key(name)
            state = self.states[key]
            if state.refusal:
                return state.refusal
            if state.trouble:
                return (state.trouble,)
            if state.adjustment is not Adjustment.NONE:
                return (
                    f"it is {state.adjustment.value} for the sake of more critical jobs: see `k40s events`",
                )
            return (f"nothing keeps it: its phase is {state.phase(self.jobs[key]).value}",)

    def node(self) -> api.NodeAssurance:
        """The node's assurance with all its evidence."""
        with self.lock:
            status = to_status(self.assurance, self.reaction.mode, self._now())
            meta = api.ObjectMeta(name=self.config.node)
            spec = api.NodeAssuranceSpec(
                node_class=self.node_class.metadata.name, policy=self.policy.metadata.name
            )
            return api.NodeAssurance(metadata=meta, spec=spec, status=status)

    def explanation(self) -> tuple[str, ...]:
        """Every point of the score in words, then what can be enforced here, then what is measured how often."""
        with self.lock:
            plan = self.measurements.plan
            return (
                *explain(self.assurance),
                *(
                    f"can     {feature.value:24} {'yes' if isinstance(found, Present) else 'no ':14} {found.found}"
                    for feature, found in self.features.items()
                ),
                *(
                    f"measure {metric.value:24} every {plan.period_ns[metric] / 1e9:<7g} s {plan.why[metric]}"
                    for metric in plan.period_ns
                ),
            )

    def events(self, after: int, most: int) -> Sequence[Event]:
        """Stored events."""
        return self.store.events(after, most)

    # -- changing ------------------------------------------------------------------------------------------------

    def apply(self, resources: Sequence[api.Resource]) -> list[Applied]:
        """Take objects in, jobs last and the most critical first, and start what is admitted."""
        with self.lock:
            jobs = [resource for resource in resources if isinstance(resource, api.CriticalJob)]
            others = [resource for resource in resources if not isinstance(resource, api.CriticalJob)]
            done = [self._apply_other(resource) for resource in others]
            done += [self._apply_job(job) for job in sorted(jobs, key=lambda job: -job.spec.criticality)]
            if done:
                self.converge()
            return done

    def _apply_other(self, resource: api.Resource) -> Applied:
        kind, name = resource.kind, resource.metadata.name
        match resource:
            case api.NodeClass() if self.wanted:
                raise Conflict(f"node class {name!r}: jobs are placed by the one in use, delete them first")
            case api.NodeAssurance():
                raise BadInput(f"node assurance {name!r} is measured, not given: leave it out")
            case _:
                self.store.put_object(kind, name, resource.model_dump_json(by_alias=True))
        if isinstance(resource, api.AssurancePolicy):
            self.policy = resource
        elif isinstance(resource, api.NodeClass):
            self.node_class = self._find_class()
            self._assess_first()
        return Applied(kind, name, "stored")

    def _apply_job(self, job: api.CriticalJob) -> Applied:
        key = demand_of(job).job
        old, old_state = self.jobs.get(key), self.states.get(key, JobState())
        if old is not None and old.spec == job.spec and old_state.placed and not old_state.deleting:
            return Applied(JOB, key, "unchanged")
        without = unreserve(self.snapshot, key)
        decided = self._decide(job, without)
        generation = (old.metadata.generation if old else 0) + 1
        stored = job.model_copy(
            update={"metadata": job.metadata.model_copy(update={"generation": generation}), "status": None}
        )
        if isinstance(decided, tuple):
            if not old_state.placed:  # one that runs keeps running as it was
                self._keep(key, stored, JobState(refusal=decided))
            self.event("warning", key, "Refused", decided[0])
            return Applied(JOB, key, "refused", decided)
        for wanted in self.wanted.get(key, ()):
            self.containers.stop(wanted)
        (seat,) = decided.seats
        cores = {workload: core for workload, core, _ in seat.cores}
        state = JobState(placed=True, cores=cores, user=self._user_of(key))
        self._keep(key, stored, state)
        self.snapshot = reserve(without, demand_of(job), decided)
        self.wanted[key] = self._wanted(job, decided)
        self.event("info", key, "Admitted", self._proof(self.wanted[key]))
        return Applied(JOB, key, "admitted")

    def _keep(self, key: str, job: api.CriticalJob, state: JobState) -> None:
        with self.store.change(durable=True):
            self.store.put_object(JOB, key, job.model_dump_json(by_alias=True))
            self.store.put_state(key, state.to_json())
        self.jobs[key], self.states[key] = job, state

    def _proof(self, containers: Sequence[Wanted]) -> str:
        parts = [
            f"{wanted.address.container}: {budget.runtime_us} us every {budget.period_us} us on core {wanted.core}"
            for wanted in containers
            if (budget := wanted.reservation.budget)
        ]
        return "proved: " + "; ".join(parts) if parts else "fits; nothing real-time to prove"

    def _decide(self, job: api.CriticalJob, world: Snapshot) -> Placement | tuple[str, ...]:
        """A placement, or the reasons against it."""
        missing = lacking(job, self.features, lambda found: isinstance(found, Present))
        if missing:
            return tuple(missing)
        found = place(world, demand_of(job))
        if isinstance(found, Refusal):
            return found.lines()
        try:
            containers = self._wanted(job, found)
            self._check_flows(job)
        except K40sError as error:
            return (str(error),)
        return self._kernel_share(job, containers) or found

    def _check_flows(self, job: api.CriticalJob) -> None:
        others = [other for key, other in self._placed() if key != demand_of(job).job]
        if flows_of([job]):
            device, rate_bps = self._uplink()
            check_fits(device, rate_bps, flows_of([*others, job]))

    def _kernel_share(self, job: api.CriticalJob, containers: Sequence[Wanted]) -> tuple[str, ...]:
        """The kernel adds up real-time budgets of all cores as if they were one core's;

        placement does not know that.
        """
        own = {wanted.address for wanted in self.wanted.get(demand_of(job).job, ())}
        others = [wanted for wanted in self.all_wanted() if wanted.address not in own]
        budgets = (wanted.reservation.budget for wanted in (*others, *containers))
        total = sum((budget.share for budget in budgets if budget), Fraction(0))
        if Feature.RT_BUDGETS not in self.features or not total:
            return ()
        free = Fraction(free_ppm(self.machine.files) + self._ours_ppm(), 1_000_000)
        if total <= free:
            return ()
        return (
            f"{self.config.node}: the kernel grants real-time budgets of {float(free):.3f} core in all, "
            f"on whichever cores, and with this job they would be {float(total):.3f}",
        )

    def _ours_ppm(self) -> int:
        try:
            return int(read_budget(self.machine.files, self.machine.files.root).share * 1_000_000)
        except K40sError:
            return 0  # our root is not there yet

    def delete(self, name: str) -> None:
        """Stop a job and forget it. `NotFound`."""
        with self.lock:
            key = self._key(name)
            self._set_state(key, replace(self.states[key], deleting=True))
            self._remove(key)

    def _remove(self, key: str) -> None:
        for wanted in self.wanted.get(key, ()):
            self.containers.stop(wanted)
            self.containers.forget(wanted)
        self.store.remove_object(JOB, key)
        self.snapshot = unreserve(self.snapshot, key)
        self.wanted.pop(key, None)
        self.jobs.pop(key, None)
        self.states.pop(key, None)
        self.removals.pop(key, None)
        self._shape()
        self.event("info", key, "Deleted", "stopped, and nothing of it is left")

    def stop_all(self) -> None:
        """Stop every container and forget none: what `down` does."""
        with self.lock:
            for wanted in self.all_wanted():
                self.containers.stop(wanted)
            self.machine.uninstall()

    # -- the loop ------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Measure, assess, react, converge."""
        with self.lock:
            running = self.running()
            due = self.measurements.step(running, self.clock_ns(), self.reaction.watched_closely)
            if due:
                self._assess(running)
                self._tell_alarms()
            if Metric.STEAL in due and (still_ns := self.measurements.new_still_ns):
                words = (
                    f"the machine stood still for {still_ns / 1e9:.1f} s: its host or its owner stopped it"
                )
                self.event("warning", self.config.node, "Standstill", words)
            self._react()
            self.converge()

    def converge(self) -> None:
        """Every container as it should be; trouble with one job is told and keeps nobody else waiting."""
        for key in sorted(self.jobs, key=lambda name: -self.jobs[name].spec.criticality):
            if self.states[key].deleting:
                self._try_removal(key)
                continue
            for wanted in self.wanted.get(key, ()):
                self._guarded(key, partial(self._ensure, key, wanted))
        self._guarded("", self._shape)

    def _try_removal(self, key: str) -> None:
        """Finish a deletion; one that fails takes seconds, and is not tried at every tick."""
        if self.clock_ns() >= self.removals.get(key, 0):
            self.removals[key] = self.clock_ns() + REMOVAL_AGAIN_NS
            self._guarded(key, partial(self._remove, key))

    def _ensure(self, key: str, wanted: Wanted) -> None:
        state, told = self.containers.ensure(self.jobs[key], self.states[key], wanted, self.clock_ns())
        if state != self.states[key]:
            self._set_state(key, state)
        for one in told:
            self.event(one.severity, key, one.reason, one.message)
        shorten_log(wanted.launch.log)

    def _guarded(self, key: str, act: Callable[[], None]) -> None:
        try:
            act()
        except (K40sError, OSError) as error:
            subject = key or self.config.node
            if self.troubles.get(subject) != str(error):
                self.troubles[subject] = str(error)
                self.event("warning", subject, "EffectFailed", str(error))
        else:
            self.troubles.pop(key or self.config.node, None)

    def _assess(self, running: Sequence[Wanted]) -> None:
        evidence = self.measurements.evidence(running)
        load = self.snapshot.occupancy(self.config.node).load
        level = self.assurance.level
        self.assurance, self.memory = assess(
            evidence, load, capacity_of(self.node_class), self.policy.spec, self.memory, self.clock_ns()
        )
        self.snapshot = with_nodes(
            self.snapshot, [node_of(self.config.node, self.node_class, self.assurance)]
        )
        if self.assurance.level is not level:
            score = float(self.assurance.score)
            severity = "warning" if self.assurance.level < level else "info"
            words = f"assurance went from {level.name} to {self.assurance.level.name}, score {score:.3f}"
            self.event(severity, self.config.node, "Assurance", words)

    def _tell_alarms(self) -> None:
        now = {alarm.name: alarm for alarm in self.measurements.alarms}
        for name in now.keys() - self.alarmed:
            culprit = now[name].culprit
            who = culprit or f"no container stands out{self._probe_says()}"
            self.event("alarm", self.config.node, "Alarm", f"{name} {now[name].value}; {who}")
        for name in self.alarmed - now.keys():
            self.event("info", self.config.node, "Cleared", f"{name} is as it should be again")
        self.alarmed = frozenset(now)

    def _probe_says(self) -> str:
        """What nobody's container did: even the probe above all jobs had to wait, for the kernel or for the host."""
        worst_ms = self.measurements.new_latency.worst_ns / 1_000_000
        return f", the probe above all jobs woke up to {worst_ms:.1f} ms late" if worst_ms >= 1 else ""

    def _react(self) -> None:
        """One pass of the ladder; what it decides is kept, then done, in its order."""
        placed = dict(self._placed())
        adjustments = {key: self.states[key].adjustment for key in placed}
        before = self.reaction.to_json()
        actions = self.reaction.decide(
            self.config.node, placed, adjustments, self.measurements.alarms, self.policy.spec, self.clock_ns()
        )
        if self.reaction.to_json() != before:
            self.store.put_reaction(self.config.node, self.reaction.to_json())
        for action in actions:
            match action:
                case (
                    Treat(job=key, treatment=treatment, reason=reason)
                    | Start(job=key, treatment=treatment, reason=reason)
                ):
                    self._treat(key, ADJUSTMENT[treatment], reason)
                case SetMode(mode=mode, reason=reason):
                    self.event("warning", self.config.node, "Mode", f"mode {mode.name}: {reason}")
                case Watch(closely=closely, reason=reason):
                    words = "watches closely" if closely else "watches as usual"
                    self.event("info", self.config.node, "Watch", f"{words}: {reason}")
                case _:
                    pass  # there is no other node to move to, and nothing here that is not wanted

    def _treat(self, key: str, adjustment: Adjustment, reason: str) -> None:
        self._set_state(key, replace(self.states[key], adjustment=adjustment))
        words = "free again" if adjustment is Adjustment.NONE else adjustment.value
        self.event(
            "warning" if adjustment is not Adjustment.NONE else "info", key, "Reaction", f"{words}: {reason}"
        )
        for wanted in self.wanted[key]:
            # Whoever is restrained may have lost its limits to somebody else: they are written whatever they were.
            self.containers.reassert(wanted)
            self._guarded(key, partial(self._ensure, key, wanted))

    def _throttle_percent(self) -> int:
        return int(self.policy.spec.throttle_share * 100)

    # -- links ---------------------------------------------------------------------------------------------------

    def _placed(self) -> list[tuple[str, api.CriticalJob]]:
        return [(key, self.jobs[key]) for key in self.wanted if not self.states[key].deleting]

    def _uplink(self) -> tuple[Device, int]:
        links = self.node_class.spec.links
        if not links:
            raise BadInput(f"node class {self.node_class.metadata.name}: it has no link, name one for flows")
        return Device(links[0].name), links[0].rate_bps

    def _devices(self) -> list[Device]:
        flows = flows_of(job for _, job in self._placed())
        return [self._uplink()[0]] if flows else []

    def _shape(self) -> None:
        """The uplink's classes, when they are not those of the placed jobs."""
        flows = flows_of(job for _, job in self._placed())
        if flows == self.shaped or (not flows and not self.shaped):
            return
        device, rate_bps = self._uplink()
        self.machine.shape(device, rate_bps, flows)
        self.shaped = flows

    # -- telling -------------------------------------------------------------------------------------------------

    def _now(self) -> str:
        return self.wall().isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def event(self, severity: str, subject: str, reason: str, message: str) -> None:
        """Keep an event. That the disk is full must not keep the loop from acting: the event is lost then."""
        try:
            self.store.add_event(self._now(), severity, subject, reason, message)
        except K40sError:
            self.lost_events += 1

    def _set_state(self, key: str, state: JobState) -> None:
        self.store.put_state(key, state.to_json())
        self.states[key] = state
