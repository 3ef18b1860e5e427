"""Plans from manifests: the best placement beside the online one."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from k40s import api
from k40s.cli import app
from k40s.errors import BadInput
from k40s.local.planning import plan_for

NODE = """
apiVersion: k40s.dev/v1alpha1
kind: NodeClass
metadata: {name: small}
spec: {cores: 1, memory: 1Gi}
---
"""
JOB = """
apiVersion: k40s.dev/v1alpha1
kind: CriticalJob
metadata: {{name: {name}}}
spec:
  criticality: {level}
  requiredAssurance: 0
  commands: [{{name: main, command: [x], resources: {{requests: {{cpu: {cpu}m}}, limits: {{cpu: {cpu}m}}}}}}]
---
"""


def jobs(*shapes: tuple[str, str, int]) -> str:
    return "".join(JOB.format(name=name, level=level, cpu=cpu) for name, level, cpu in shapes)


def test_the_best_placement_takes_at_least_as_many_as_the_online_one() -> None:
    text = NODE + jobs(("a", "LO", 900), ("b", "NO", 500), ("c", "NO", 400))
    found = plan_for(api.load(text), nodes_each=1)
    assert {job for job, where in found.best.items() if where} == {"default/b", "default/c"}
    assert {job for job, where in found.online.items() if where} == {"default/a"}
    assert (found.bound, found.gap, found.is_optimal) == (2, 0.5, True)
    assert "CPU are free" in " ".join(found.refusals["default/b"])


def test_more_nodes_take_all() -> None:
    found = plan_for(api.load(NODE + jobs(("a", "LO", 900), ("b", "NO", 900))), nodes_each=2)
    assert found.gap == 0
    assert {where for (where,) in found.best.values()} == {"small-0", "small-1"}


@pytest.mark.parametrize(("text", "word"), [(NODE, "CriticalJob"), (jobs(("a", "LO", 1)), "NodeClass")])
def test_what_is_missing_is_said(text: str, word: str) -> None:
    with pytest.raises(BadInput, match=word):
        plan_for(api.load(text), 1)


def test_without_a_class_the_command_plans_for_this_machine(tmp_path: Path) -> None:
    path = tmp_path / "jobs.yaml"
    path.write_text(jobs(("a", "LO", 1)))
    result = CliRunner().invoke(app, ["plan", "-f", str(path), "--nodes", "2"])
    assert result.exit_code == 0
    assert "best local-" in result.stdout


def test_the_command_prints_both(tmp_path: Path) -> None:
    path = tmp_path / "jobs.yaml"
    path.write_text(NODE + jobs(("a", "LO", 900)))
    result = CliRunner().invoke(app, ["plan", "-f", str(path)])
    assert result.exit_code == 0
    assert "default/a: best small-0; online small-0" in result.stdout
    path.write_text(NODE)
    assert CliRunner().invoke(app, ["plan", "-f", str(path)]).exit_code == 2
