"""The command line: help with examples, errors of one sentence with exit code 2."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lynx import __version__, cli

COMMANDS = ["bench", "decode", "demo", "eval", "model", "prefill", "route", "up"]


def lynx(*words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "lynx.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_help_names_every_command() -> None:
    shown = CliRunner().invoke(cli.app, ["--help"]).output
    assert all(f"│ {command} " in shown for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_shows_an_example(command: str) -> None:
    shown = CliRunner().invoke(cli.app, [command, "--help"])
    assert shown.exit_code == 0
    assert f"lynx {command}" in shown.output.split("Example", 1)[1]


def test_version() -> None:
    assert CliRunner().invoke(cli.app, ["--version"]).output == f"{__version__}\n"


def test_model_prints_json(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    shown = CliRunner().invoke(cli.app, ["model", str(tmp_path), "--json"])
    assert json.loads(shown.stdout) == {"model": tmp_path.name, "path": str(tmp_path)}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["model", "/nowhere"], "model '/nowhere' is not a directory"),
        (["prefill", "--model", "/nowhere"], "model '/nowhere' is not a directory"),
        (["prefill", "--rate", "fast"], "link rate is 'fast'; write it as 200mbit"),
        (["decode", "--codec", "zip", "--model", "{model}"], "codec is 'zip'; use one of nested"),
        (["decode", "--drafts", "999", "--model", "{model}"], "drafts is 999; it must be 0 to 256"),
        (["decode", "--port", "{taken}", "--model", "{model}"], "is in use; give another --port"),
        (["decode", "--host", "192.0.2.1", "--model", "{model}"], "give an address of this machine"),
        (
            ["decode", "--netns", "lynx-none", "--port", "0", "--model", "{model}"],
            "'lynx-none' cannot be entered",
        ),
        (["route", "--prefill", "x", "--decode", "http://y:1", "--port", "0"], "instance address is 'x'"),
        (["up", "--link", "200", "--model", "{model}"], "link rate is '200'"),
        (["up", "--prefills", "0", "--model", "{model}"], "prefills is 0; it must be 1 to 64"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    words: list[str],
    sentence: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "config.json").write_text("{}")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        monkeypatch.setattr(
            sys, "argv", ["lynx", *(word.format(model=tmp_path, taken=port) for word in words)]
        )
        with pytest.raises(SystemExit) as ended:
            cli.main()
    assert ended.value.code == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("lynx: ")
    assert sentence in last


def test_the_module_runs_as_a_program() -> None:
    done = lynx("model", "/nowhere")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
