"""The report of a simulation, and the command that makes it."""

import json
from pathlib import Path

import pytest
from test_sim_scenario import changed
from typer.testing import CliRunner

from k40s.cli import app
from k40s.sim import read_scenario, report, simulate

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("scenario") / "small.yaml"
    path.write_text(changed(seed=3))
    return path


def test_the_command_prints_and_writes_the_same_rows(scenario: Path, tmp_path: Path) -> None:
    folder = tmp_path / "report"
    result = CliRunner().invoke(app, ["simulate", str(scenario), "--json", "--report", str(folder)])
    assert result.exit_code == 0
    printed = json.loads(result.stdout)["rows"]
    written = json.loads((folder / "simulation.json").read_text())
    assert printed == written["rows"]
    assert printed == report.rows(simulate(read_scenario(scenario.read_text())))
    assert [row["scorer"] for row in printed] == ["assurance-waste", "LeastAllocated"]
    assert [sample["at_ns"] for sample in written["samples"]["LeastAllocated"]] == [
        n * 60 * 10**9 for n in range(6)
    ]
    assert (folder / "simulation.png").read_bytes().startswith(PNG)


def test_for_people_there_is_a_paragraph_for_each_scorer(scenario: Path) -> None:
    words = ["simulate", str(scenario), "--scorer", "RequestedToCapacityRatio", "--seed", "4"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0
    assert result.stdout.startswith("RequestedToCapacityRatio: ")
    assert "jobs placed at once" in result.stdout
    assert "seconds out" in result.stdout


def test_nothing_offered_is_all_accepted() -> None:
    (row, _) = report.rows(simulate(read_scenario(changed(arrivals={}, faults=[]))))
    assert (row["offered"], row["acceptance"], row["misses"]) == (0, 1.0, {})


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["simulate", "nowhere.yaml"], "nowhere.yaml"),
        (["simulate", "-", "--seed", "-1"], "-1"),
        (["simulate", "-", "--scorer", "x"], "LeastAllocated"),
    ],
)
def test_bad_words_end_with_2(words: list[str], said: str) -> None:
    result = CliRunner().invoke(app, words, input=changed())
    assert result.exit_code == 2
    assert said in result.stderr
