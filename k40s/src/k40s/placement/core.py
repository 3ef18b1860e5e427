"""Whether all servers of one core get their budgets: the admission test of a core.

Three claims, each proved by a test of `analysis`: together the servers take at most the core's real-time
share; those served by deadline meet theirs under EDF with their largest budgets; and every group server gets
its budget within each of its periods under fixed priorities (shorter period first, equal ones lose to one
another), while each rival, deadline servers among them, may spend its budget late in one period and early in
the next (a jitter of P - Q; Strosnider, Lehoczky and Sha 1995; Bernat and Burns 1999). Budgets are enforced,
so a job that runs away changes none of this.

Two modes, with static enforcement (Baruah, Burns and Davis, RTSS 2011, SMC): a LO server is proved against
C(LO) budgets of all, in mode LO; a HI server and what a LO server keeps in mode HI are proved against the
largest budgets of all, so neither needs the mode change to be quick.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache

from k40s.analysis.earliest_deadline import earliest_deadline_first
from k40s.analysis.fixed_priority import fixed_priority
from k40s.analysis.task import Task
from k40s.analysis.verdict import Bound, Overload, Proved, Refuted, Verdict
from k40s.placement.reservation import OCTAVES, Reservation, Server, octave_of

_NEVER_NS = 2**62
"""A deadline that nothing admitted misses: for rivals, which are judged in a run of their own."""


def core_verdict(reservations: Iterable[Reservation], share: Fraction) -> Verdict:
    """The verdict about a core with these reservations, of which servers may take `share`; remembered by
    content."""
    return _core_verdict(tuple(sorted(reservations, key=lambda reservation: reservation.serial)), share)


@lru_cache(maxsize=262_144)
def _core_verdict(reservations: tuple[Reservation, ...], share: Fraction) -> Verdict:
    servers = tuple(server for reservation in reservations for server in reservation.servers)
    taken = sum((server.share for server in servers), Fraction(0))
    if taken > share:
        return Refuted(Overload("real-time share of the core", taken, share))
    bounds: list[Bound] = []
    by_deadline = earliest_deadline_first([_whole(server) for server in servers if server.by_deadline])
    if not isinstance(by_deadline, Proved):
        return by_deadline
    bounds += by_deadline.bounds
    for run in _runs(servers):
        verdict = fixed_priority(run)
        if not isinstance(verdict, Proved):
            return verdict
        bounds += [bound for bound in verdict.bounds if bound.limit_ns < _NEVER_NS]
    return Proved(tuple(bounds))


def _whole(server: Server) -> Task:
    """A deadline server with its largest budget, as a task."""
    return Task(server.name, server.period_ns, server.due_ns, server.budget_ns, server.budget_ns)


def _runs(servers: Sequence[Server]) -> list[list[Task]]:
    """The task sets to prove; in each the servers that are judged have a real deadline."""
    groups = [server for server in servers if not server.by_deadline]
    runs = []
    if any(not server.high for server in groups):
        runs.append([_rival(s, s.budget_lo_ns, judged=not s.high and not s.by_deadline) for s in servers])
    if any(server.high for server in groups):
        runs.append([_rival(s, s.budget_ns, judged=s.high and not s.by_deadline) for s in servers])
    for kept in groups:
        if not kept.high and kept.budget_hi_ns:
            others = [_rival(s, s.budget_ns, judged=False) for s in servers if s is not kept]
            runs.append([_rival(kept, kept.budget_hi_ns, judged=True), *others])
    return runs


def _rival(server: Server, budget_ns: int, judged: bool) -> Task:
    """A server as a task that arrives every period and may be released as late as still fits.

    Its deadline, counted from arrival, is a period after the latest release: the budget within any period
    that starts busy.
    """
    jitter_ns = server.period_ns - budget_ns
    urgency = OCTAVES + 1 if server.by_deadline else OCTAVES - octave_of(server.period_ns)
    deadline_ns = jitter_ns + server.period_ns if judged else _NEVER_NS
    task = Task(server.name, server.period_ns, deadline_ns, budget_ns, budget_ns)
    return replace(task, jitter_ns=jitter_ns, priority=urgency)
