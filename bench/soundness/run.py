"""Do the admission tests keep their word? Random task sets, each admitted one played by the simulator.

Every set goes through every test. For an admitted one, the critical instant and random legal runs are
simulated; a late job is a violation, and one violation fails the bench (exit code 1). Beside each test stands
an answer that does not come from it: for fixed priorities and EDF, on a core or behind a server, the
simulated critical instant, which is exact; for AMC-rtb and EDF-VD, whether both modes are feasible by
themselves, which no test can exceed.

    python bench/soundness/run.py --sets 100000
"""

import argparse
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from fractions import Fraction
from pathlib import Path
from random import Random

from k40s.analysis.earliest_deadline import earliest_deadline_first
from k40s.analysis.fixed_priority import fixed_priority
from k40s.analysis.mixed import VirtualDeadlines, amc_rtb, virtual_deadlines
from k40s.analysis.simulate import (
    Always,
    Deferrable,
    Job,
    Policy,
    Slices,
    by_deadline,
    by_priority,
    by_virtual_deadline,
    critical_instant,
    random_jobs,
    random_slices,
    simulate,
    worst_slices,
)
from k40s.analysis.supply import WHOLE_CORE, Linear, Server, ServerKind, Supply
from k40s.analysis.task import Task, deadline_monotonic, in_mode
from k40s.analysis.verdict import Proved, Undecided, Verdict

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a script has only its own folder on its path
from bench import report

LEVELS_PERCENT = range(30, 101, 5)
PLAIN_TESTS = ("fp", "edf", "fp-server", "edf-server", "fp-server-linear", "edf-server-linear")
MIXED_TESTS = ("amc-rtb", "edf-vd")
TITLES = {
    "fp": "fixed priorities",
    "edf": "EDF",
    "fp-server": "fixed priorities, server of 80 %",
    "edf-server": "EDF, server of 80 %",
    "fp-server-linear": "fixed priorities, linear bound of the server",
    "edf-server-linear": "EDF, linear bound of the server",
    "amc-rtb": "AMC-rtb",
    "edf-vd": "EDF-VD",
}
CHUNK = 250
LONGEST_WINDOW_NS = 2000


@dataclass(slots=True)
class Tally:
    """Counts per (test, utilisation in percent, what)."""

    counts: Counter[tuple[str, int, str]] = dataclass_field(default_factory=Counter)

    def note(
        self, test: str, percent: int, verdict: Verdict | VirtualDeadlines, reference: bool, late: bool
    ) -> None:
        """One set's outcome; `late` matters only if it was admitted."""
        admitted = isinstance(verdict, Proved | VirtualDeadlines)
        for what, holds in (
            ("sets", True),
            ("admitted", admitted),
            ("undecided", isinstance(verdict, Undecided)),
            ("reference", reference),
            ("violations", admitted and late),
        ):
            self.counts[test, percent, what] += holds


def random_set(random: Random, percent: int) -> tuple[Task, ...]:
    """2 to 5 tasks whose C(LO) add up to the utilisation: uniform on the simplex, as UUniFast, in integers.

    Whole nanoseconds of short periods leave a share between two budgets; chance rounds it, up as often as down.

    A third have deadlines below or above the period, a quarter jitter, a fifth of the sets equal priorities.
    Half of the tasks are HI with C(HI) up to 3 C(LO); of the others half are dropped in HI, half degraded.
    """
    count = random.randint(2, 5)
    total = percent * 10_000
    cuts = sorted(random.randint(0, total) for _ in range(count - 1))
    shares = [after - before for before, after in zip((0, *cuts), (*cuts, total), strict=True)]
    tasks = []
    for number, share in enumerate(shares):
        period_ns = random.choice((random.randint(5, 20), random.randint(10, 40), random.randint(20, 80)))
        low_ns = max(1, (share * period_ns + random.randrange(1_000_000)) // 1_000_000)
        if random.random() < 0.5:
            high_ns = random.randint(low_ns, 3 * low_ns)
        else:
            high_ns = random.choice((0, random.randint(0, low_ns)))
        deadline_ns = period_ns
        if random.random() < 1 / 3:
            deadline_ns = random.randint(max(low_ns, period_ns // 2), 2 * period_ns)
        jitter_ns = random.randint(1, max(1, period_ns // 4)) if random.random() < 0.25 else 0
        tasks.append(Task(f"t{number}", period_ns, deadline_ns, low_ns, high_ns, jitter_ns))
    ranked = deadline_monotonic(tasks)
    if random.random() < 0.2:
        return tuple(Task(*_fields(task), (task.priority + 1) // 2) for task in ranked)
    return ranked


def _fields(task: Task) -> tuple[str, int, int, int, int, int]:
    return task.name, task.period_ns, task.deadline_ns, task.wcet_lo_ns, task.wcet_hi_ns, task.jitter_ns


def busy_window_is_late(tasks: Sequence[Task], policy: Policy, slices: Callable[[], Slices]) -> bool:
    """Whether the critical instant makes a job late, played until the core falls idle.

    The window doubles until all that was released in it was done in it. One that never ends (full utilisation
    with jitter or a gap) is given up at `LONGEST_WINDOW_NS` and counts as not late.
    """
    until_ns = 2 * max(task.period_ns for task in tasks)
    while True:
        run = simulate(tasks, critical_instant(tasks, until_ns), policy, slices(), stop_when_late=True)
        if run.late or run.ended_ns <= until_ns or until_ns > LONGEST_WINDOW_NS:
            return bool(run.late)
        until_ns *= 2


def late_at_critical_instant(tasks: Sequence[Task], scheduler: str, server: Server | None) -> bool:
    """Known from the utilisation when that is too high; else for each task that may lose a tie, the run
    itself.
    """
    rate = server.rate if server else Fraction(1)
    if sum(Fraction(task.wcet_ns, task.period_ns) for task in tasks) > rate:
        return True

    def slices() -> Slices:
        return worst_slices(server) if server else Always()

    if scheduler == "edf":
        return busy_window_is_late(tasks, by_deadline(tasks), slices)
    uses = Counter(task.priority for task in tasks)
    losers = [index for index, task in enumerate(tasks) if uses[task.priority] > 1] or [0]
    return any(busy_window_is_late(tasks, by_priority(tasks, loser), slices) for loser in losers)


def any_legal(server: Server, random: Random) -> Slices:
    if server.kind is ServerKind.CONSTANT_BANDWIDTH:
        return random_slices(server, random)
    phase_ns = random.randint(1, server.period_ns)
    return Deferrable(server, phase_ns, random.randint(0, min(server.budget_ns, server.period_ns - phase_ns)))


def examine_plain(tasks: Sequence[Task], percent: int, random: Random, tally: Tally) -> None:
    """Fixed priorities and EDF on a core and behind a server."""
    server = Server(period := random.choice((5, 10, 20)), 4 * period // 5, random.choice(list(ServerKind)))
    jobs = random_jobs(tasks, 2 * max(task.period_ns for task in tasks), random)
    for scheduler, test in (("fp", fixed_priority), ("edf", earliest_deadline_first)):
        policy = by_priority(tasks, random.randrange(len(tasks))) if scheduler == "fp" else by_deadline(tasks)
        critical_late = late_at_critical_instant(tasks, scheduler, None)
        verdict = test(tasks, WHOLE_CORE)
        late = critical_late or (isinstance(verdict, Proved) and bool(simulate(tasks, jobs, policy).late))
        tally.note(scheduler, percent, verdict, not critical_late, late)

        supplies: list[tuple[str, Supply]] = [("server", server), ("server-linear", Linear(server))]
        verdicts = [(name, test(tasks, supply)) for name, supply in supplies]
        critical_late = late_at_critical_instant(tasks, scheduler, server)
        late = critical_late
        if not late and any(isinstance(verdict, Proved) for _, verdict in verdicts):
            late = bool(simulate(tasks, jobs, policy, any_legal(server, random)).late)
        for name, verdict in verdicts:
            tally.note(f"{scheduler}-{name}", percent, verdict, not critical_late, late)


def examine_mixed(tasks: Sequence[Task], percent: int, random: Random, tally: Tally) -> None:
    """AMC-rtb and EDF-VD over random mode changes."""
    modes = in_mode(tasks, "LO"), in_mode(tasks, "HI")
    horizon_ns = 2 * max(task.period_ns for task in tasks)
    runs = [critical_instant(tasks, horizon_ns), *(random_jobs(tasks, horizon_ns, random) for _ in range(2))]
    verdict = amc_rtb(tasks)
    policy = by_priority(tasks, random.randrange(len(tasks)), changes_mode=True)
    reference = all(isinstance(fixed_priority(mode), Proved) for mode in modes)
    tally.note(
        "amc-rtb", percent, verdict, reference, isinstance(verdict, Proved) and is_late(tasks, runs, policy)
    )
    plan = virtual_deadlines(tasks)
    reference = all(isinstance(earliest_deadline_first(mode), Proved) for mode in modes)
    late = isinstance(plan, VirtualDeadlines) and is_late(tasks, runs, by_virtual_deadline(plan))
    tally.note("edf-vd", percent, plan, reference, late)


def is_late(tasks: Sequence[Task], runs: Sequence[Sequence[Job]], policy: Policy) -> bool:
    return any(simulate(tasks, jobs, policy, stop_when_late=True).late for jobs in runs)


def examine(chunk: tuple[int, int, int]) -> Counter[tuple[str, int, str]]:
    """All tests on the sets numbered [first, last); each set has its own generator, so the result has no
    order.
    """
    seed, first, last = chunk
    tally = Tally()
    for number in range(first, last):
        random = Random(f"{seed}/{number}")
        percent = LEVELS_PERCENT[number % len(LEVELS_PERCENT)]
        tasks = random_set(random, percent)
        examine_plain(in_mode(tasks, "LO"), percent, random, tally)
        examine_mixed(tasks, percent, random, tally)
    return tally.counts


def count_all(sets: int, seed: int, workers: int) -> Counter[tuple[str, int, str]]:
    """Sum over all chunks, with a line of progress on the terminal."""
    chunks = [(seed, first, min(sets, first + CHUNK)) for first in range(0, sets, CHUNK)]
    total: Counter[tuple[str, int, str]] = Counter()
    started = time.monotonic()
    with multiprocessing.Pool(workers) as pool:
        for done, counts in enumerate(pool.imap_unordered(examine, chunks), start=1):
            total.update(counts)
            violations = sum(number for (_, _, what), number in total.items() if what == "violations")
            sys.stderr.write(
                f"\r{min(sets, done * CHUNK)} of {sets} sets, {violations} violations, "
                f"{time.monotonic() - started:.0f} s "
            )
    sys.stderr.write("\n")
    return total


def rows_of(counts: Counter[tuple[str, int, str]]) -> Iterator[dict[str, object]]:
    """A row per test; `reference` is the answer beside it, see the module's text."""
    whats = ("sets", "admitted", "undecided", "reference", "violations")
    for test in (*PLAIN_TESTS, *MIXED_TESTS):
        whole = {what: sum(counts[test, percent, what] for percent in LEVELS_PERCENT) for what in whats}
        by_level = [
            {"utilisation_percent": percent, **{what: counts[test, percent, what] for what in whats}}
            for percent in LEVELS_PERCENT
        ]
        yield {"test": test, **whole, "by_utilisation": by_level}


def draw(counts: Counter[tuple[str, int, str]], path: Path) -> None:
    """Acceptance over utilisation: each test solid, the answer beside it dotted."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = (
        ("Whole core", ("fp", "edf"), "simulated critical instant"),
        (
            "Server of 80 %",
            ("fp-server", "edf-server", "fp-server-linear", "edf-server-linear"),
            "critical instant",
        ),
        ("Two criticalities", MIXED_TESTS, "each mode alone"),
    )
    figure, axes = pyplot.subplots(1, 3, figsize=(15, 4.6), sharey=True)
    for axis, (title, tests, reference) in zip(axes, panels, strict=True):
        for test in tests:
            for what, style, label in (
                ("admitted", "-", TITLES[test]),
                ("reference", ":", f"{TITLES[test]}: {reference}"),
            ):
                if what == "reference" and test.endswith("linear"):
                    continue
                shares = [
                    100 * counts[test, at, what] / max(1, counts[test, at, "sets"]) for at in LEVELS_PERCENT
                ]
                lines = axis.get_lines()
                colour = lines[-1].get_color() if what == "reference" else None
                width = 1.5 if what == "admitted" else 3.5
                axis.plot(
                    LEVELS_PERCENT, shares, style, color=colour, linewidth=width, alpha=0.8, label=label
                )
        axis.set_title(title)
        axis.set_xlabel("utilisation in mode LO, %")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7, loc="lower left")
    axes[0].set_ylabel("task sets admitted, %")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def main() -> int:
    """Count, print, write; 1 when an admitted set was late."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--sets", type=int, default=100_000, help="task sets, a fifteenth at each utilisation"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=min(2, multiprocessing.cpu_count()), help="processes")
    options = parser.parse_args()
    if options.sets < 1 or options.workers < 1:
        parser.error("--sets and --workers must be 1 or more")
    started = time.monotonic()
    counts = count_all(options.sets, options.seed, options.workers)
    rows = list(rows_of(counts))
    print(f"{'test':<20}{'sets':>9}{'admitted':>10}{'reference':>11}{'undecided':>11}{'violations':>12}")
    for row in rows:
        print(
            f"{row['test']:<20}{row['sets']:>9}{row['admitted']:>10}{row['reference']:>11}"
            f"{row['undecided']:>11}{row['violations']:>12}"
        )
    draw(counts, report.FOLDER / "soundness.png")
    print(report.write("soundness", rows, report.FOLDER / "soundness.png"))
    violations = sum(counts[key] for key in counts if key[2] == "violations")
    took_s = time.monotonic() - started
    print(
        f"{violations} admitted sets were late; {options.sets} sets in {took_s:.0f} s with {options.workers} processes"
    )
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
