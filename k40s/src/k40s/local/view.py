"""Tables for the terminal. Takes what the API returns, draws it, and asks nothing."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from k40s import api
from k40s.local.bodies import EventBody, Top, TopContainer, TopTask

COLOURS = {
    "HI": "bold red",
    "LO": "yellow",
    "NO": "dim",
    "alarm": "bold red",
    "warning": "yellow",
    "info": "",
}


def _ms(ns: int) -> str:
    return f"{ns / 1e6:.2f}"


def _level(name: str) -> Text:
    return Text(name, style=COLOURS.get(name, ""))


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="left" if column.isupper() else "right")
    return table


def jobs_table(jobs: Sequence[api.CriticalJob]) -> RenderableType:
    """One line a job."""
    table = _table("JOB", "CRITICALITY", "PHASE", "periods", "misses", "worst ms", "NOTE")
    for job in jobs:
        status = job.status or api.CriticalJobStatus()
        tasks = [task for replica in status.replicas for task in replica.tasks]
        notes = [*status.refusal[:1], *(condition.message for condition in status.conditions)]
        table.add_row(
            f"{job.metadata.namespace}/{job.metadata.name}",
            _level(job.spec.criticality.name),
            status.phase.value,
            str(sum(task.periods for task in tasks)),
            str(sum(task.misses for task in tasks)),
            _ms(max((task.response_max_ns for task in tasks), default=0)),
            (notes or [""])[0],
        )
    return table


def _budget(container: TopContainer) -> str:
    if container.budget_us is None or container.period_us is None:
        return "-" if container.limit_milli is None else f"<= {container.limit_milli}m"
    return f"{container.budget_us}/{container.period_us} us"


def _use(container: TopContainer) -> str:
    return "-" if container.used_milli is None else f"{container.used_milli}m"


def _container_row(container: TopContainer) -> list[str | Text]:
    return [
        f"{container.job}/{container.container}",
        _level(container.criticality),
        container.phase,
        "-" if container.core is None else str(container.core),
        _budget(container),
        _use(container),
    ]


def _task_row(container: TopContainer, task: TopTask) -> list[str | Text]:
    unexplained = Text(str(task.misses_unexplained), style="bold red" if task.misses_unexplained else "")
    return [
        f"{container.job}/{task.name}",
        str(task.periods),
        str(task.misses),
        unexplained,
        str(task.overruns),
        _ms(task.response_p99_ns),
        _ms(task.response_max_ns),
        _ms(task.deadline_ns),
    ]


def top_view(top: Top) -> RenderableType:
    """The node, its alarms, its containers and their tasks, 80 columns wide. Of the misses, `ours` are those that the
    host does not explain."""
    head = Text.assemble(
        (f"{top.node}  ", "bold"),
        f"assurance {top.score:.3f} ",
        _level(top.level),
        f"  mode {top.mode}  daemon {top.daemon_cpu_ppm / 10_000:.2f} % of a core"
        f" (measuring {top.monitor_cpu_ppm / 10_000:.2f} %)",
    )
    alarms = [
        Text(
            f"ALARM {alarm.name} {alarm.value}: {alarm.culprit or 'no container stands out'}",
            style="bold red",
        )
        for alarm in top.alarms
    ]
    containers = _table("CONTAINER", "CRITICALITY", "PHASE", "core", "budget", "use")
    tasks = _table("TASK", "periods", "misses", "ours", "overruns", "p99 ms", "max ms", "due ms")
    for container in top.containers:
        containers.add_row(*_container_row(container))
        for task in container.tasks:
            tasks.add_row(*_task_row(container, task))
    return Group(head, *alarms, Text(), containers, *((Text(), tasks) if tasks.row_count else ()))


def events_table(events: Sequence[EventBody]) -> RenderableType:
    """One line an event."""
    table = _table("AT", "SEVERITY", "SUBJECT", "REASON", "MESSAGE")
    for event in events:
        severity = Text(event.severity, style=COLOURS.get(event.severity, ""))
        table.add_row(event.at[11:], severity, event.subject, event.reason, event.message)
    return table
