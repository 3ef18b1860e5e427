"""Scenario files: what is read is what was meant, and what cannot be is said with field, value and remedy."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from k40s.cli import app
from k40s.errors import InvalidManifest
from k40s.sim import read_scenario, scenario_yaml, with_choices

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "scenarios"
SMALL = {
    "apiVersion": "k40s.dev/v1alpha1",
    "kind": "Scenario",
    "metadata": {"name": "small"},
    "spec": {
        "duration": "5m",
        "samples": 5,
        "nodes": [{"name": "n", "count": 2, "cores": 4, "memory": "8Gi", "trust": 9}],
        "arrivals": {"atStart": 8, "perHour": 60},
        "faults": [{"kind": "node-down", "at": "1m", "node": "n-0"}],
    },
}
JOB = {
    "metadata": {"name": "loop"},
    "spec": {
        "criticality": "LO",
        "commands": [
            {
                "name": "main",
                "command": ["x"],
                "resources": {
                    "requests": {"cpu": "1", "memory": "1Gi"},
                    "limits": {"cpu": "1", "memory": "1Gi"},
                },
            }
        ],
    },
}


def changed(**spec: object) -> str:
    return json.dumps({**SMALL, "spec": {**SMALL["spec"], **spec}})


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_examples_are_read_and_written_back(path: Path) -> None:
    scenario = read_scenario(path.read_text())
    assert read_scenario(scenario_yaml(scenario)) == scenario


NODE = SMALL["spec"]["nodes"][0]


@pytest.mark.parametrize(
    ("text", "path", "words"),
    [
        (changed(scorers=["LeastUsed"]), "spec.scorers[0]", ("LeastUsed", "LeastAllocated")),
        (changed(scorers=["first-fit", "first-fit"]), "spec.scorers[1]", ("first-fit", "once")),
        (changed(nodes=[{**NODE, "count": 5001}]), "spec.nodes[0].count", ("5001", "5000")),
        (
            changed(nodes=[{**NODE, "count": 3000}, {**NODE, "name": "m", "count": 2001}]),
            "spec.nodes",
            ("5001 nodes", "5000"),
        ),
        (changed(nodes=[NODE, NODE]), "spec.nodes[1].name", ("n", "its own")),
        (changed(nodes=[{**NODE, "reservedCores": 5}]), "spec.nodes[0].reservedCores", ("5", "4 cores")),
        (changed(nodes=[]), "spec.nodes", ("at least",)),
        (changed(faults=[{"kind": "hog"}]), "spec.faults[0].perDay", ("at", "perDay")),
        (
            changed(faults=[{"kind": "hog", "at": "1s", "node": "n-2"}]),
            "spec.faults[0].node",
            ("n-2", "n-1"),
        ),
        (changed(faults=[{"kind": "quake", "at": "1s"}]), "spec.faults[0].kind", ("quake", "steal")),
        (changed(jobs=[JOB, JOB]), "spec.jobs[1].metadata", ("default/loop", "its own")),
        (changed(duration="0s"), "spec.duration", ("more than zero",)),
        (changed(duration="5"), "spec.duration", ("unit",)),
        (changed(duration="90d", arrivals={"perHour": 1000}), "spec.arrivals", ("2160000", "1000000")),
        (changed(colour="blue"), "spec.colour", ("blue",)),
        ("[]", "", ("one document",)),
        ("", "", ("one document",)),
        ("a: b: c", "line 1, column 5", ("YAML",)),
    ],
)
def test_bad_input_is_named_with_field_value_and_remedy(text: str, path: str, words: tuple[str, ...]) -> None:
    with pytest.raises(InvalidManifest) as caught:
        read_scenario(text)
    problem = caught.value.problems[0]
    assert problem.path == path
    for word in words:
        assert word in str(problem)
    result = CliRunner().invoke(app, ["simulate", "-"], input=text)
    assert result.exit_code == 2
    assert str(problem) in result.stderr


def test_every_problem_is_said_at_once() -> None:
    with pytest.raises(InvalidManifest) as caught:
        read_scenario(changed(scorers=["a"], nodes=[NODE, NODE]))
    assert [problem.path for problem in caught.value.problems] == ["spec.scorers[0]", "spec.nodes[1].name"]


def test_choices_replace_what_the_file_says() -> None:
    scenario = read_scenario(changed())
    other = with_choices(scenario, seed=9, scorers=("MostAllocated",))
    assert (other.spec.seed, other.spec.scorers) == (9, ("MostAllocated",))
    assert with_choices(scenario) == scenario
    assert with_choices(other, scenario.spec.seed, scenario.spec.scorers) == scenario
    with pytest.raises(InvalidManifest, match="LeastAllocated"):
        with_choices(scenario, scorers=("nobody",))
