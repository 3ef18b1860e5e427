"""Where models come from, and what is said when there is none."""

from pathlib import Path

import pytest

from lynx import model
from lynx.errors import BadInput


def test_a_directory_with_a_config_is_a_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert model.ensure(str(tmp_path)) == tmp_path


@pytest.mark.parametrize("name", ["nix", "./nix", "/nowhere/model", "a/b/c", ""])
def test_what_is_no_model_is_said_in_a_sentence(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match=r"name (one|a Hugging Face model directory)"):
        model.ensure(name)


def test_a_directory_without_a_config_is_none(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"has no config\.json"):
        model.ensure(str(tmp_path))


def test_the_default_is_made_once_by_one_and_awaited_by_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LYNX_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(model, "_gguf_file", lambda: Path("a.gguf"))
    made: list[Path] = []

    def dequantise(_: Path, target: Path) -> None:
        made.append(target)
        (target / "config.json").write_text("{}")

    monkeypatch.setattr(model, "_dequantise", dequantise)
    said: list[str] = []
    first = model.ensure(say=said.append)
    assert model.ensure(say=said.append) == first == tmp_path / "home" / model.DEFAULT_MODEL
    assert (first / "config.json").is_file()
    assert (len(made), len(said)) == (1, 1)
    assert made[0] != first  # made beside, then renamed: never seen half done


def test_a_model_that_fails_half_way_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(model, "_gguf_file", lambda: Path("a.gguf"))

    def dequantise(_: Path, target: Path) -> None:
        (target / "part").write_text("half")
        raise OSError("disk full")

    monkeypatch.setattr(model, "_dequantise", dequantise)
    with pytest.raises(OSError, match="disk full"):
        model.make(tmp_path / "m")
    assert [entry.name for entry in tmp_path.iterdir()] == [".m.lock"]


def test_a_missing_package_names_the_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(model, "_PACKAGE", "lynx_no_such_package")
    with pytest.raises(BadInput, match="pip install"):
        model.make(tmp_path / "m")


def test_the_name_is_the_last_part() -> None:
    assert model.name_of("Qwen/Qwen2.5-0.5B", Path("/cache/snapshots/abc")) == "Qwen2.5-0.5B"
    assert model.name_of(".", Path("/srv/mine")) == "mine"
