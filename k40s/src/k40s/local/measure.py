"""What is measured on this machine, by plan; alarms, culprits, and the evidence for its assurance.

Holds the last two readings of each metric, the steal of the last minute, and what each task has told. Reading is done
through `node.sample`; what readings mean is decided in `monitor`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from k40s.api.level import Level
from k40s.assurance.evidence import Capability, Evidence, Measured, Reading, Unknown
from k40s.local.workloads import Wanted
from k40s.monitor.culprit import Culprit, Resource, Suspect, find_culprit
from k40s.monitor.deadlines import AROUND_NS, Misses, judge, spent_budgets
from k40s.monitor.detect import Threshold, ThresholdState
from k40s.monitor.plan import Guarantee, Metric, Plan, make_plan
from k40s.monitor.readings import Counted, count, rate, ratio_ppm
from k40s.node.sample import Source
from k40s.node.wakeup import NONE_YET, Latency, read_latency
from k40s.task import RING, Period, TaskRecord, read_record

SECOND_NS = 1_000_000_000
STEAL_KEPT = 512
PROBED = "0"
"""The core that the wake-up probe runs on."""
NO_MISSES = Misses()
ALARMS: Mapping[str, Threshold] = {
    "deadline-misses": Threshold(1, 1),
    "budget-overruns": Threshold(1, 1, hold_ns=SECOND_NS),
    "beyond-limit": Threshold(1, 1),
    "cpu-pressure": Threshold(900_000, 600_000, hold_ns=5 * SECOND_NS),
    "memory-pressure": Threshold(100_000, 50_000, hold_ns=SECOND_NS),
    "steal": Threshold(20_000, 5_000),
    "wakeup-latency": Threshold(5_000_000, 2_000_000, hold_ns=2 * SECOND_NS),
}
"""What raises an alarm; in the units of the readings, and containers for `beyond-limit`."""
LIMIT_TOLERANCE_PERCENT = 120
SPENDING_MILLI = 50
"""NO jobs that use more than this together have something to give."""
RESOURCE_OF: Mapping[str, Resource] = {"memory-pressure": Resource.MEMORY}
"""What is short when an alarm is raised; CPU where nothing is said."""


@dataclass(slots=True)
class TaskHistory:
    """What a task has told, and how its periods were judged."""

    total: Misses = NO_MISSES
    last: Misses = NO_MISSES
    overruns: int = 0
    new_overruns: int = 0
    responses_ns: deque[int] = field(default_factory=lambda: deque(maxlen=4096))
    record: TaskRecord | None = None
    waiting: tuple[Period, ...] = ()
    """Periods that are too young to be judged: what the host took shows a little later."""
    skips: int = 0
    """Skipped releases that wait for the verdict on the late period before them."""

    @property
    def misses_by_others(self) -> int:
        """New misses that neither the host explains nor an overrun of the task itself: nobody else is to pay for it."""
        return 0 if self.new_overruns else self.last.unexplained


@dataclass(frozen=True, slots=True)
class Alarm:
    """A detector that says that something is wrong, with the container behind it where one was found."""

    name: str
    since_ns: int
    value: int
    culprit: Culprit | None
    culprit_job: str | None
    """`namespace/name`."""
    victims: tuple[str, ...]
    """Jobs that suffer, where that is known."""
    overrun: bool
    """A HI task ran beyond C(LO)."""


@dataclass(slots=True)
class Measurements:
    """Readings of one machine. `step` reads what is due."""

    source: Source
    capabilities: Mapping[str, Capability]
    guarantees: frozenset[Guarantee]
    latency_file: Path
    before: dict[Metric, Counted] = field(default_factory=dict)
    now: dict[Metric, Counted] = field(default_factory=dict)
    steal: dict[str, deque[tuple[int, int]]] = field(default_factory=dict)
    still_ns: int = 0
    """Time that the whole machine stood still so far, and of that in the last reading of steal."""
    new_still_ns: int = 0
    probed_still_ns: int = 0
    tasks: dict[tuple[str, str], TaskHistory] = field(default_factory=dict)
    """By container id and task name."""
    states: dict[str, ThresholdState] = field(default_factory=dict)
    alarms: tuple[Alarm, ...] = ()
    latency: Latency = NONE_YET
    new_latency: Latency = NONE_YET
    plan: Plan = field(default_factory=lambda: make_plan(frozenset(), frozenset()))
    since_ns: int = 0
    """When measuring began: what a task's record tells of the time before was judged by the daemon before this one."""
    cost_ns: int = 0
    """Processor time that measuring has taken so far."""

    def warm_up(self, pause: Callable[[], None]) -> None:
        """Read everything twice, so that the first assessment does not take what was never read for bad."""
        self.since_ns = self.source.clock_ns()
        for _ in range(2):
            self._read(frozenset(Metric), (), self.source.clock_ns())
            pause()

    def step(self, running: Sequence[Wanted], now_ns: int, closely: bool = False) -> frozenset[Metric]:
        """Read what is due now, all containers often when watched closely; what was read."""
        began_ns = time.thread_time_ns()
        levels = {wanted.level for wanted in running}
        self.plan = make_plan(levels, self.guarantees, alarmed=closely or bool(self.alarms))
        due = self.plan.due({metric: counted.at_ns for metric, counted in self.now.items()}, now_ns)
        self._read(due, running, now_ns)
        if due:
            self._judge_alarms(running, now_ns)
        self.cost_ns += time.thread_time_ns() - began_ns
        return due

    def _read(self, due: frozenset[Metric], running: Sequence[Wanted], now_ns: int) -> None:
        groups = [wanted.launch.group for wanted in running]
        records = self._records(running) if Metric.TASKS in due else None
        found = self.source.read(due, groups)
        if Metric.WAKEUP in due:
            latest = read_latency(self.latency_file)
            self.new_latency, self.latency = latest.since(self.latency), latest
        # What a source does not have is marked as read, so that it is not asked for again at once.
        for metric in due:
            self.before[metric] = self.now.get(metric, Counted(now_ns, {}))
            self.now[metric] = found.get(metric, Counted(now_ns, {}))
        if Metric.STEAL in found:
            steal = self.now[Metric.STEAL] = self._with_standstills(found[Metric.STEAL])
            for core, stolen_ns in steal.values.items():
                self.steal.setdefault(core, deque(maxlen=STEAL_KEPT)).append((steal.at_ns, stolen_ns))
        if records is not None:
            self._judge_tasks(running, records)

    def _with_standstills(self, steal: Counted) -> Counted:
        """Steal and the time in which the machine stood still, suspended by its host or by its owner: its clock runs on
        then and no steal is counted. Of a standstill that the probe saw, what the steal of its core does not show."""
        seen_ns = read_latency(self.latency_file).still_ns
        probed_ns, self.probed_still_ns = seen_ns - self.probed_still_ns, seen_ns
        before = self.before[Metric.STEAL].values.get(PROBED, 0) - self.still_ns
        stolen_ns = steal.values.get(PROBED, 0) - max(0, before)
        self.new_still_ns = probed_ns if probed_ns > 2 * stolen_ns else 0
        self.still_ns += self.new_still_ns
        return Counted(steal.at_ns, {core: ns + self.still_ns for core, ns in steal.values.items()})

    def _records(self, running: Sequence[Wanted]) -> dict[tuple[str, str], TaskRecord]:
        records = {}
        for wanted in running:
            for task in wanted.tasks:
                key = (wanted.address.id, task.name)
                history = self.tasks.setdefault(key, TaskHistory())
                seen = history.record.ended if history.record else 0
                if (record := read_record(task.record, seen)) is not None:
                    records[key] = record
        return records

    def _judge_tasks(self, running: Sequence[Wanted], records: Mapping[tuple[str, str], TaskRecord]) -> None:
        kept = {(wanted.address.id, task.name) for wanted in running for task in wanted.tasks}
        self.tasks = {key: history for key, history in self.tasks.items() if key in kept}
        for wanted in running:
            steal = list(self.steal.get(str(wanted.core), ()))
            for task in wanted.tasks:
                history = self.tasks[wanted.address.id, task.name]
                if record := records.get((wanted.address.id, task.name)):
                    _take_in(history, record, task.deadline_ns, steal, self.since_ns)

    def _judge_alarms(self, running: Sequence[Wanted], now_ns: int) -> None:
        alarms = []
        for name, threshold in ALARMS.items():
            value, suspects = self._alarm_value(name, running)
            state = threshold.step(self.states.get(name, ThresholdState()), now_ns, value)
            self.states[name] = state
            if state.alarmed:
                resource = RESOURCE_OF.get(name, Resource.CPU)
                culprit = find_culprit(resource, suspects if suspects else self.suspects(resource, running))
                since_ns = state.above_since_ns if state.above_since_ns is not None else now_ns
                job = next((w.job for w in running if culprit and is_of(w, culprit.suspect)), None)
                victims = self._victims(name, running)
                overrun = name == "budget-overruns" and bool(victims)
                alarms.append(Alarm(name, since_ns, value, culprit, job, victims, overrun))
        self.alarms = tuple(alarms)

    def _victims(self, name: str, running: Sequence[Wanted]) -> tuple[str, ...]:
        """Jobs whose tasks missed, or HI jobs whose tasks overran; for other alarms nobody can say."""
        found = set()
        for wanted in running:
            for task in wanted.tasks:
                history = self.tasks.get((wanted.address.id, task.name))
                if history is None:
                    continue
                missed = name == "deadline-misses" and history.misses_by_others > 0
                overran = name == "budget-overruns" and history.new_overruns > 0 and wanted.level is Level.HI
                if missed or overran:
                    found.add(wanted.job)
        return tuple(sorted(found))

    def _alarm_value(self, name: str, running: Sequence[Wanted]) -> tuple[int, list[Suspect]]:
        match name:
            case "deadline-misses":
                return sum(history.misses_by_others for history in self.tasks.values()), []
            case "budget-overruns":
                return len(self._victims(name, running)), []
            case "beyond-limit":
                beyond = self._beyond_limits(running)
                return len(beyond), beyond
            case "steal":
                return self._steal_worth_saving(running), []
            case "wakeup-latency":
                return self.new_latency.quantile_ns(0.99), []
            case "cpu-pressure" if Guarantee.BUDGETS in self.guarantees:
                return 0, []  # whoever has a budget does not feel it, and who has none was promised nothing
            case "cpu-pressure":
                return _value(self._cpu_pressure()), []
            case _:
                return _value(self._rate(Metric(name), 1000)), []

    def used_milli(self, wanted: Wanted) -> int | None:
        """Thousandths of a core that a container used between the last two readings."""
        return self._used(Metric.USAGE, wanted, 1000)

    def _used(self, metric: Metric, wanted: Wanted, per_second: int) -> int | None:
        before, now, group = self.before.get(metric), self.now.get(metric), wanted.launch.group
        if not before or not now or group not in before.values or group not in now.values:
            return None
        passed_ns = now.at_ns - before.at_ns
        return (now.values[group] - before.values[group]) * per_second // passed_ns if passed_ns > 0 else None

    def _steal_worth_saving(self, running: Sequence[Wanted]) -> int:
        """Steal, while NO jobs use the processor: a host that grants a quota takes less from whoever asks for less.
        Where they do not, or where it stopped the machine, nobody here is to pay for what the host does: this is 0."""
        if self.new_still_ns:
            return 0
        used = [self.used_milli(wanted) or 0 for wanted in running if wanted.level is Level.NO]
        cores = len(self.now[Metric.STEAL].values) if Metric.STEAL in self.now else 1
        return _value(self._rate(Metric.STEAL, 1, cores)) if sum(used) > SPENDING_MILLI else 0

    def _beyond_limits(self, running: Sequence[Wanted]) -> list[Suspect]:
        """Containers that use more than they may: somebody has taken their limit away."""
        found = []
        for wanted in running:
            limit, used = wanted.reservation.cpu_milli, self.used_milli(wanted)
            if wanted.reservation.budget is not None or limit is None or used is None:
                continue
            if used * 100 > (limit + 20) * LIMIT_TOLERANCE_PERCENT:
                found.append(_suspect(wanted, used, limit))
        return found

    def suspects(self, resource: Resource, running: Iterable[Wanted]) -> list[Suspect]:
        """Every container's use beside its promise: milli-cores or bytes."""
        found = []
        for wanted in running:
            budget = wanted.reservation.budget
            if resource is Resource.CPU and (used := self.used_milli(wanted)) is not None:
                promised = int(budget.share * 1000) if budget else wanted.request_milli
                found.append(_suspect(wanted, used, promised))
            elif resource is Resource.MEMORY and Metric.MEMORY in self.now:
                used = self.now[Metric.MEMORY].values.get(wanted.launch.group, 0)
                found.append(_suspect(wanted, used, wanted.request_bytes))
        return found

    def _rate(self, metric: Metric, unit_ns: int, shares: int = 1) -> Reading:
        before, now = self.before.get(metric), self.now.get(metric)
        if now is not None and not now.values:
            return Unknown(f"{metric.value}: this machine does not have it")
        return rate(before, now, unit_ns, metric.value, shares)

    def _cpu_pressure(self) -> Reading:
        """PSI counts a thread that its own limit holds back as stalled. That is no pressure: the longest such time of
        one container is taken off (all of them together could be more than the stall, and would hide some)."""
        whole = self._rate(Metric.CPU_PRESSURE, 1000)
        before, now = self.before.get(Metric.THROTTLED), self.now.get(Metric.THROTTLED)
        if not isinstance(whole, Measured) or before is None or now is None or now.at_ns <= before.at_ns:
            return whole
        held_ns = max(
            (now.values[key] - before.values.get(key, now.values[key]) for key in now.values), default=0
        )
        by_limits = ratio_ppm(held_ns, now.at_ns - before.at_ns)
        return Measured(
            max(0, whole.value - by_limits), f"{whole.found}, less {by_limits / 10_000:.2f} % by limits"
        )

    def evidence(self, running: Sequence[Wanted]) -> Evidence:
        """All that is known now, as the assurance is assessed from it."""
        total = sum((history.last for history in self.tasks.values()), start=NO_MISSES)
        overruns = sum(history.new_overruns for history in self.tasks.values()) + self._dry_budgets(running)
        cores = len(self.now[Metric.STEAL].values) if Metric.STEAL in self.now else 1
        clock = self.now.get(Metric.CLOCK)
        words = f"{total.unexplained} of {total.periods} periods, {total.missed - total.unexplained} more by the host"
        return Evidence(
            self.capabilities,
            {
                "deadline-misses": Measured(ratio_ppm(total.unexplained, total.periods), words),
                "budget-overruns": Measured(
                    ratio_ppm(overruns, max(total.periods, overruns)), f"{overruns} periods"
                ),
                "wakeup-latency": self._latency(),
                "cpu-pressure": self._cpu_pressure(),
                "memory-pressure": self._rate(Metric.MEMORY_PRESSURE, 1000),
                "io-pressure": self._rate(Metric.IO_PRESSURE, 1000),
                "throttling": self._throttling(running),
                "steal": self._rate(Metric.STEAL, 1, cores),
                "thermal-events": self._events(Metric.THERMAL),
                "clock-offset": (
                    Measured(clock.values[""], "largest error that the kernel states")
                    if clock and clock.values
                    else Unknown("the clock follows no other")
                ),
                "link-errors": self._events(Metric.LINK_ERRORS),
            },
        )

    def _dry_budgets(self, running: Sequence[Wanted]) -> int:
        """Budgets spent whole by containers whose tasks tell nothing."""
        before, now = self.before.get(Metric.USAGE), self.now.get(Metric.USAGE)
        if not before or not now:
            return 0
        passed_ns, dry = now.at_ns - before.at_ns, 0
        for wanted in running:
            budget, group = wanted.reservation.budget, wanted.launch.group
            if budget and group in before.values and group in now.values:
                used_ns = now.values[group] - before.values[group]
                dry += spent_budgets(used_ns, passed_ns, budget.runtime_us, budget.period_us)
        return dry

    def _latency(self) -> Reading:
        if self.new_latency.wakeups == 0:
            return Unknown("the wake-up probe has not told anything yet")
        tail_ns = self.new_latency.quantile_ns(0.999)
        return Measured(
            tail_ns, f"99.9 % of {self.new_latency.wakeups} wake-ups within {tail_ns / 1000:.0f} us"
        )

    def _throttling(self, running: Sequence[Wanted]) -> Reading:
        """Of LO and HI containers: a NO one that meets its limit is as it should be."""
        groups = {wanted.launch.group for wanted in running if wanted.level is not Level.NO}
        if not groups:
            return Measured(0, "no LO or HI job runs")
        pair = [
            Counted(counted.at_ns, {group: counted.values[group] for group in groups & counted.values.keys()})
            for counted in (self.before.get(Metric.THROTTLED), self.now.get(Metric.THROTTLED))
            if counted is not None
        ]
        return (
            rate(pair[0], pair[1], 1, "throttling", len(groups))
            if len(pair) == 2
            else Unknown("not read yet")
        )

    def _events(self, metric: Metric) -> Reading:
        now = self.now.get(metric)
        if now is not None and not now.values:
            return Unknown(f"{metric.value}: this machine does not have it")
        return count(self.before.get(metric), now, metric.value)


def _take_in(
    history: TaskHistory,
    record: TaskRecord,
    deadline_ns: int,
    steal: Sequence[tuple[int, int]],
    since_ns: int,
) -> None:
    """Judge the periods that are new; a task that began anew counts from zero, one older than us from now."""
    if history.record is None and record.periods and record.periods[0].release_ns < since_ns:
        history.record = record
        return
    began_anew = history.record is not None and record.ended < history.record.ended
    before = None if began_anew else history.record
    fed_until_ns = steal[-1][0] - AROUND_NS if steal else 0
    known = (*history.waiting, *record.periods)
    ripe = [period for period in known if period.end_ns <= fed_until_ns or not steal]
    history.waiting = tuple(period for period in known if period.end_ns > fed_until_ns and steal)[-RING:]
    judged = judge(ripe, deadline_ns, steal)
    # A skipped release has no end; it follows a period that is late for the same reason, and shares its verdict.
    history.skips += max(0, record.skipped - (before.skipped if before else 0))
    skipped = history.skips if judged.missed or not history.waiting else 0
    history.skips -= skipped
    blamed = 0 if judged.missed and not judged.unexplained else skipped
    history.last = judged + Misses(skipped, skipped, blamed)
    history.total = history.total + history.last
    history.new_overruns = max(0, record.overruns - (before.overruns if before else 0))
    history.overruns += history.new_overruns
    history.responses_ns.extend(period.response_ns for period in record.periods)
    history.record = record


def _value(reading: Reading) -> int:
    return reading.value if isinstance(reading, Measured) else 0


def is_of(wanted: Wanted, suspect: Suspect) -> bool:
    """Whether a suspect is this container."""
    return (wanted.address.job, wanted.address.container) == (suspect.job, suspect.container)


def _suspect(wanted: Wanted, used: int, promised: int) -> Suspect:
    return Suspect(wanted.address.job, wanted.address.container, wanted.level, used, promised)
