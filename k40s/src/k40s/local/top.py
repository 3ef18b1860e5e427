"""What runs now, as `k40s top` and the API show it."""

from __future__ import annotations

from k40s.local.bodies import Top, TopAlarm, TopContainer, TopTask
from k40s.local.engine import Engine
from k40s.local.workloads import Wanted
from k40s.monitor.readings import PPM, ratio_ppm


def top_of(engine: Engine) -> Top:
    """One look."""
    with engine.lock:
        measured = engine.measurements
        passed_ns = max(1, engine.clock_ns() - engine.began_ns)
        return Top(
            node=engine.config.node,
            score=float(engine.assurance.score),
            level=engine.assurance.level.name,
            mode=engine.reaction.mode.name,
            containers=tuple(_container(engine, wanted) for wanted in engine.all_wanted()),
            alarms=tuple(
                TopAlarm(
                    name=alarm.name, value=alarm.value, culprit=str(alarm.culprit) if alarm.culprit else None
                )
                for alarm in measured.alarms
            ),
            daemon_cpu_ppm=min(PPM, (engine.cpu_ns() - engine.began_cpu_ns) * PPM // passed_ns),
            monitor_cpu_ppm=ratio_ppm(measured.cost_ns, passed_ns),
        )


def _container(engine: Engine, wanted: Wanted) -> TopContainer:
    budget = wanted.reservation.budget
    return TopContainer(
        job=wanted.job,
        container=wanted.address.container,
        criticality=wanted.level.name,
        phase=engine.states[wanted.job].phase(engine.jobs[wanted.job]).value,
        core=wanted.core,
        budget_us=budget.runtime_us if budget else None,
        period_us=budget.period_us if budget else None,
        limit_milli=wanted.reservation.cpu_milli,
        used_milli=engine.measurements.used_milli(wanted),
        processes=len(engine.machine.members(wanted.address)),
        tasks=tuple(_task(engine, wanted, task.name, task.deadline_ns) for task in wanted.tasks),
    )


def _task(engine: Engine, wanted: Wanted, name: str, deadline_ns: int) -> TopTask:
    history = engine.measurements.tasks.get((wanted.address.id, name))
    responses = sorted(history.responses_ns) if history else []
    record = history.record if history else None
    return TopTask(
        name=name,
        deadline_ns=deadline_ns,
        periods=history.total.periods if history else 0,
        misses=history.total.missed if history else 0,
        misses_unexplained=history.total.unexplained if history else 0,
        overruns=history.overruns if history else 0,
        response_p99_ns=responses[len(responses) * 99 // 100] if responses else 0,
        response_max_ns=record.worst_response_ns if record else 0,
    )
