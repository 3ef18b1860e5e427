"""The oracle: one core, preemptive, in exact integer time, running the jobs that it is given.

Fixed priorities, EDF, and both with the mode change of `mixed`; on a whole core or behind a server. It
decides nothing and shares no formula with the tests: it only plays a run and reports who was late. Release
patterns (the critical instant, offsets, random ones from a generator that is handed in) are made here too.
Reads no clock.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple, Protocol

from k40s.analysis.mixed import VirtualDeadlines
from k40s.analysis.supply import Server
from k40s.analysis.task import Task
from k40s.analysis.verdict import Mode


class Job(NamedTuple):
    """One activation of the task at index `task`: it arrives, may run from `release_ns`, and needs `work_ns`."""

    task: int
    arrival_ns: int
    release_ns: int
    work_ns: int


# Release patterns


def critical_instant(tasks: Sequence[Task], until_ns: int) -> list[Job]:
    """All tasks released together at 0 after their largest jitter, then as early and as long as they may be."""
    return offset_jobs(tasks, [-task.jitter_ns for task in tasks], until_ns)


def offset_jobs(tasks: Sequence[Task], first_arrivals_ns: Sequence[int], until_ns: int) -> list[Job]:
    """Strictly periodic arrivals from the given ones on, none released before 0; every job takes `wcet_ns`."""
    return [
        Job(index, arrival_ns, max(0, arrival_ns), task.wcet_ns)
        for index, (task, first_ns) in enumerate(zip(tasks, first_arrivals_ns, strict=True))
        for arrival_ns in range(first_ns, until_ns, task.period_ns)
    ]


def random_jobs(tasks: Sequence[Task], until_ns: int, random: Random) -> list[Job]:
    """A random legal run: offsets, gaps, jitter and execution times vary, the largest and least often among
    them.
    """
    jobs = []
    for index, task in enumerate(tasks):
        late_often, short_often = random.random(), random.random() / 2
        arrival_ns = random.randrange(task.period_ns + 1) - task.jitter_ns
        release_ns = 0
        while arrival_ns < until_ns:
            jitter_ns = random.choice((0, task.jitter_ns, random.randint(0, task.jitter_ns)))
            work_ns = task.wcet_ns
            if task.wcet_hi_ns > task.wcet_lo_ns and random.random() < late_often:
                work_ns = task.wcet_lo_ns
            elif random.random() < short_often:
                work_ns = random.randint(1, task.wcet_ns)
            release_ns = max(release_ns, arrival_ns + jitter_ns)
            jobs.append(Job(index, arrival_ns, release_ns, work_ns))
            gap_ns = random.randint(0, task.period_ns) if random.random() < late_often else 0
            arrival_ns += task.period_ns + gap_ns
    return jobs


# Supplies: when the core is there


class Slices(Protocol):
    """When the core may be used. Asked with rising times; told what was used."""

    def next_slice(self, now_ns: int) -> tuple[int, int]:
        """The first slice [start, end) that ends after `now_ns`, for something that has been ready since."""
        ...

    def use(self, start_ns: int, end_ns: int) -> None:
        """Part of the last slice was run in."""
        ...


class Always:
    """A whole core."""

    def next_slice(self, now_ns: int) -> tuple[int, int]:
        return now_ns, now_ns + (1 << 62)

    def use(self, start_ns: int, end_ns: int) -> None:
        """Nothing is used up."""


class FixedSlices:
    """One slice per server period, wherever `offset_ns(period number)` puts it within the period.

    `phase_ns` is when period 0 begins; the slice of period k is [phase + k * P + offset(k), that + Q).
    """

    def __init__(self, server: Server, phase_ns: int, offset_ns: Callable[[int], int]) -> None:
        self.server, self.phase_ns, self.offset_ns = server, phase_ns, offset_ns

    def next_slice(self, now_ns: int) -> tuple[int, int]:
        number = (now_ns - self.phase_ns) // self.server.period_ns
        while True:
            start_ns = self.phase_ns + number * self.server.period_ns + self.offset_ns(number)
            if start_ns + self.server.budget_ns > now_ns:
                return max(start_ns, now_ns), start_ns + self.server.budget_ns
            number += 1

    def use(self, start_ns: int, end_ns: int) -> None:
        """A slice that is not used is lost."""


class Deferrable:
    """A deferrable server served first on its core: full budget at `phase_ns` + k * P, kept while nothing is
    ready.

    `spent_ns` of the budget of the period before `phase_ns` are gone at time 0, by earlier runs of its tasks.
    """

    def __init__(self, server: Server, phase_ns: int, spent_ns: int) -> None:
        self.server, self.phase_ns = server, phase_ns
        self.period, self.left_ns = self._number(0), server.budget_ns - spent_ns

    def _number(self, now_ns: int) -> int:
        return (now_ns - self.phase_ns) // self.server.period_ns

    def next_slice(self, now_ns: int) -> tuple[int, int]:
        if self._number(now_ns) > self.period:
            self.period, self.left_ns = self._number(now_ns), self.server.budget_ns
        replenished_ns = self.phase_ns + (self.period + 1) * self.server.period_ns
        if self.left_ns:
            return now_ns, min(now_ns + self.left_ns, replenished_ns)
        return replenished_ns, replenished_ns + self.server.budget_ns

    def use(self, start_ns: int, end_ns: int) -> None:
        if self._number(start_ns) > self.period:
            self.period, self.left_ns = self._number(start_ns), self.server.budget_ns
        self.left_ns -= end_ns - start_ns


def worst_slices(server: Server) -> FixedSlices:
    """The slices of the supply bound: nothing for the first gap, then a budget at the start of every P."""
    unused_ns = server.period_ns - server.budget_ns
    place_ns = server.gap_ns - unused_ns
    return FixedSlices(server, unused_ns, lambda number: 0 if number < 0 else place_ns)


def random_slices(server: Server, random: Random) -> FixedSlices:
    """A random phase, and a random place for the slice in each of seven periods that repeat."""
    unused_ns = server.period_ns - server.budget_ns
    places = [random.choice((0, unused_ns, random.randint(0, unused_ns))) for _ in range(7)]
    return FixedSlices(server, -random.randrange(server.period_ns), lambda number: places[number % 7])


# Scheduling


Rank = Callable[[Mode, Job], tuple[int, ...]]
"""Order of ready jobs in a mode: the smallest runs."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How ready jobs are ranked, and what the mode change does to LO jobs that are already there.

    Args:
        rank: order of ready jobs; jobs of one task must rank in order of arrival.
        changes_mode: whether a job that runs for C(LO) without being done switches to mode HI.
        cuts_carried: whether LO jobs active at the switch keep only C(HI); otherwise they may finish.
    """

    rank: Rank
    changes_mode: bool = False
    cuts_carried: bool = False


def by_priority(tasks: Sequence[Task], loser: int = 0, changes_mode: bool = False) -> Policy:
    """Fixed priorities; the task at `loser` loses ties, the others tie by index. With the mode change it is
    AMC.
    """
    ranks = [(-task.priority, index == loser, index) for index, task in enumerate(tasks)]
    return Policy(lambda _, job: (*ranks[job.task], job.arrival_ns), changes_mode)


def by_deadline(tasks: Sequence[Task]) -> Policy:
    """Earliest deadline first; ties by index."""
    deadlines = [task.deadline_ns for task in tasks]
    return Policy(lambda _, job: (job.arrival_ns + deadlines[job.task], job.task))


def by_virtual_deadline(plan: VirtualDeadlines) -> Policy:
    """EDF-VD: virtual deadlines in LO, given ones in HI."""

    def rank(mode: Mode, job: Job) -> tuple[int, ...]:
        deadlines = plan.lo_ns if mode == "LO" else plan.hi_ns
        return (job.arrival_ns + deadlines[job.task], job.task)

    return Policy(rank, changes_mode=True, cuts_carried=True)


@dataclass(frozen=True, slots=True)
class Late:
    """A job that was not done when due; `done_ns` is when it was."""

    task: int
    due_ns: int
    done_ns: int


@dataclass(slots=True)
class Run:
    """What happened: late jobs in the order they were done, worst response from arrival per task, mode
    changes.
    """

    late: list[Late] = field(default_factory=list)
    worst_response_ns: dict[int, int] = field(default_factory=dict)
    switched_ns: list[int] = field(default_factory=list)
    ended_ns: int = 0


def simulate(
    tasks: Sequence[Task],
    jobs: Sequence[Job],
    policy: Policy,
    slices: Slices | None = None,
    *,
    stop_when_late: bool = False,
) -> Run:
    """Play the jobs to the end (or to the first late one) and report.

    A dropped job (of a LO task with C(HI) = 0, in mode HI) counts neither as late nor as a response.
    """
    return _Core(tasks, policy, slices or Always()).play(sorted(jobs, key=_by_release), stop_when_late)


def _by_release(job: Job) -> tuple[int, int]:
    return job.release_ns, job.arrival_ns


@dataclass(slots=True)
class _Active:
    """A job on the core: how much it has run, and how much it may."""

    job: Job
    allowed_ns: int
    done_ns: int = 0
    is_dropped: bool = False


class _Core:
    """State of the core while a run is played."""

    def __init__(self, tasks: Sequence[Task], policy: Policy, slices: Slices) -> None:
        self.tasks, self.policy, self.slices = tasks, policy, slices
        self.mode: Mode = "LO"
        self.ready: list[tuple[tuple[int, ...], int, _Active]] = []
        self.run = Run()
        self.admitted = 0

    def play(self, jobs: Sequence[Job], stop_when_late: bool) -> Run:
        """Run from one event to the next: a release, the end of a slice, of a job, or of its budget C(LO)."""
        now_ns, position = 0, 0
        while position < len(jobs) or self.ready:
            if not self.ready:
                self.mode = "LO"
                now_ns = max(now_ns, jobs[position].release_ns)
            while position < len(jobs) and jobs[position].release_ns <= now_ns:
                self._admit(jobs[position])
                position += 1
            if not self.ready:
                continue
            start_ns, end_ns = self.slices.next_slice(now_ns)
            if position < len(jobs):
                end_ns = min(end_ns, jobs[position].release_ns)
            now_ns = self._advance(start_ns, end_ns) if start_ns < end_ns else end_ns
            if stop_when_late and self.run.late:
                break
        self.run.ended_ns = now_ns
        return self.run

    def _admit(self, job: Job) -> None:
        allowed_ns = job.work_ns
        if self.mode == "HI":
            allowed_ns = min(allowed_ns, self.tasks[job.task].wcet_hi_ns)
        if allowed_ns:
            self._push(_Active(job, allowed_ns))

    def _push(self, active: _Active) -> None:
        self.admitted += 1
        heapq.heappush(self.ready, (self.policy.rank(self.mode, active.job), self.admitted, active))

    def _advance(self, start_ns: int, end_ns: int) -> int:
        """Run the first job until it is done, overruns or must stop; the time reached."""
        active = self.ready[0][2]
        stop_ns = min(end_ns, start_ns + active.allowed_ns - active.done_ns)
        budget_ns = active.allowed_ns
        if self.policy.changes_mode and self.mode == "LO":
            budget_ns = self.tasks[active.job.task].wcet_lo_ns
            stop_ns = min(stop_ns, start_ns + budget_ns - active.done_ns)
        self.slices.use(start_ns, stop_ns)
        active.done_ns += stop_ns - start_ns
        if active.done_ns == active.allowed_ns:
            heapq.heappop(self.ready)
            self._complete(active, stop_ns)
        elif active.done_ns == budget_ns:
            self._switch(stop_ns)
        return stop_ns

    def _complete(self, active: _Active, now_ns: int) -> None:
        if active.is_dropped:
            return
        task, arrival_ns = active.job.task, active.job.arrival_ns
        response_ns = now_ns - arrival_ns
        if response_ns > self.run.worst_response_ns.get(task, 0):
            self.run.worst_response_ns[task] = response_ns
        deadline_ns = self.tasks[task].deadline_ns
        if response_ns > deadline_ns:
            self.run.late.append(Late(task, arrival_ns + deadline_ns, now_ns))

    def _switch(self, now_ns: int) -> None:
        """To mode HI: LO jobs lose their guarantee or what exceeds C(HI), and all are ranked anew."""
        self.mode = "HI"
        self.run.switched_ns.append(now_ns)
        carried = [active for _, _, active in sorted(self.ready, key=lambda entry: entry[:2])]
        self.ready = []
        for active in carried:
            task = self.tasks[active.job.task]
            if task.wcet_hi_ns >= task.wcet_lo_ns:
                self._push(active)
                continue
            if now_ns > active.job.arrival_ns + task.deadline_ns:
                self._complete(active, now_ns)  # late before the switch, which excuses nothing
            active.is_dropped = task.wcet_hi_ns == 0
            if self.policy.cuts_carried:
                active.allowed_ns = min(active.allowed_ns, task.wcet_hi_ns)
            if active.done_ns < active.allowed_ns:
                self._push(active)
