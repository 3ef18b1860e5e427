"""The commands: help with examples, bad input in one sentence with exit code 2, no daemon in one with exit code 1."""

import json
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from k40s.cli import app
from k40s.local.client import Client
from k40s.local.fakes import World
from k40s.local.service import make_app

RUN = CliRunner()
COMMANDS = ["up", "apply", "get", "describe", "why-not", "delete", "events", "top", "down", "uninstall"]
HOG = """
apiVersion: k40s.dev/v1alpha1
kind: CriticalJob
metadata: {name: hog}
spec:
  criticality: NO
  commands: [{name: main, command: [sleep, '60'], resources: {requests: {cpu: 50m}, limits: {cpu: 200m}}}]
"""


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """Commands reach an engine in this process instead of a socket."""
    world = World(tmp_path)
    http = TestClient(make_app(world.engine(), lambda _: None))

    def connect(client: Client, path: Path | None = None) -> None:
        client.path = path or tmp_path / "sock"
        vars(client)["_http"] = http

    monkeypatch.setattr(Client, "__init__", connect)
    monkeypatch.setattr(Client, "close", lambda _: None)
    return world


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_an_example_in_its_help(command: str) -> None:
    result = RUN.invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert "Example:" in result.stdout


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("kind: [", ""),
        (HOG.replace("NO", "TOP"), "criticality"),
        (HOG.replace("cpu: 50m", "cpu: many"), "cpu"),
        (HOG.replace("commands", "comands"), "comands"),
    ],
)
def test_bad_manifests_are_two(text: str, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("K40S_SOCKET", str(tmp_path / "none"))
    path = tmp_path / "job.yaml"
    path.write_text(text)
    result = RUN.invoke(app, ["apply", "-f", str(path)])
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert word in result.stderr


def test_a_file_that_is_not_there_is_two(tmp_path: Path) -> None:
    result = RUN.invoke(app, ["apply", "-f", str(tmp_path / "none.yaml")])
    assert result.exit_code == 2
    assert "cannot be read" in result.stderr


@pytest.mark.parametrize(
    "words", [["get"], ["events"], ["node", "explain"], ["top", "--once"], ["delete", "x"]]
)
def test_without_a_daemon_the_way_out_is_said(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("K40S_SOCKET", str(tmp_path / "none"))
    result = RUN.invoke(app, words)
    assert result.exit_code == 1
    assert "k40s up" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_bad_options_are_two() -> None:
    assert RUN.invoke(app, ["up", "--tick-ms", "1"]).exit_code == 2
    assert RUN.invoke(app, ["top", "--interval-s", "0"]).exit_code == 2


def test_a_job_from_apply_to_delete(daemon: World, tmp_path: Path) -> None:
    path = tmp_path / "hog.yaml"
    path.write_text(HOG)
    assert "admitted" in RUN.invoke(app, ["apply", "-f", str(path)]).stdout
    assert "default/hog" in RUN.invoke(app, ["get"]).stdout
    assert json.loads(RUN.invoke(app, ["get", "hog", "--json"]).stdout)[0]["status"]["phase"] == "Running"
    assert "Admitted" in RUN.invoke(app, ["describe", "hog"]).stdout
    assert "hog" in RUN.invoke(app, ["top", "--once"]).stdout
    assert json.loads(RUN.invoke(app, ["top", "--json"]).stdout)["containers"][0]["job"] == "default/hog"
    assert RUN.invoke(app, ["why-not", "hog"]).stdout.startswith("nothing keeps it")
    assert "score" in RUN.invoke(app, ["node", "explain"]).stdout
    assert json.loads(RUN.invoke(app, ["events", "--json"]).stdout.splitlines()[0])["reason"] == "Admitted"
    assert RUN.invoke(app, ["delete", "hog"]).exit_code == 0
    assert RUN.invoke(app, ["get", "hog"]).exit_code == 1
    assert daemon.alive() == set()


def test_a_refusal_is_one_with_its_reasons(daemon: World, tmp_path: Path) -> None:
    path = tmp_path / "hog.yaml"
    path.write_text(HOG.replace("cpu: 50m", "cpu: 64").replace("cpu: 200m", "cpu: 64"))
    result = RUN.invoke(app, ["apply", "-f", str(path)])
    assert result.exit_code == 1
    assert "CPU are free" in result.stdout
    assert daemon.alive() == set()
