"""The task model: what is refused, what a mode leaves, how priorities follow deadlines."""

from typing import Any

import pytest

from k40s.analysis.task import Task, deadline_monotonic, in_mode, plain
from k40s.errors import BadInput


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("period_ns", 0),
        ("deadline_ns", 0),
        ("wcet_lo_ns", 0),
        ("wcet_hi_ns", -1),
        ("jitter_ns", -1),
        ("period_ns", 2.5),
        ("priority", True),
        ("wcet_lo_ns", "5"),
    ],
)
def test_fields_out_of_range_are_named_with_their_value(field: str, value: Any) -> None:
    fields: dict[str, Any] = {"period_ns": 10, "deadline_ns": 10, "wcet_lo_ns": 1, "wcet_hi_ns": 1}
    with pytest.raises(BadInput, match=f"{field} is {value!r}"):
        Task("loop", **(fields | {field: value}))


def test_a_mode_leaves_its_budgets_and_drops_what_has_none() -> None:
    control, service, hog = Task("c", 10, 10, 2, 5), Task("s", 10, 10, 4, 1), Task("h", 10, 10, 3, 0)
    assert [task.wcet_ns for task in in_mode((control, service, hog), "LO")] == [2, 4, 3]
    assert [(task.name, task.wcet_ns) for task in in_mode((control, service, hog), "HI")] == [
        ("c", 5),
        ("s", 1),
    ]


def test_released_jobs_are_counted_with_jitter() -> None:
    task = plain("t", 10, 10, 1, jitter_ns=3)
    assert [task.arrivals_released_in(window) for window in (0, 1, 7, 8, 17, 18)] == [0, 1, 1, 2, 2, 3]


def test_shortest_deadline_less_jitter_comes_first() -> None:
    tasks = deadline_monotonic(
        (plain("a", 20, 20, 1), plain("b", 9, 9, 1), plain("c", 30, 15, 1, jitter_ns=10), plain("d", 9, 9, 1))
    )
    assert [task.name for task in sorted(tasks, key=lambda task: -task.priority)] == ["c", "b", "d", "a"]
