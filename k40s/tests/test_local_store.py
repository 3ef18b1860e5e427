"""State that survives: transactions whole or not at all, a full disk said."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k40s.errors import EffectFailed
from k40s.local.state import Adjustment, JobState
from k40s.local.store import Store


def test_what_is_put_is_there_after_a_restart(tmp_path: Path) -> None:
    store = Store(tmp_path / "state.db")
    store.put_object("CriticalJob", "default/a", "{}")
    store.put_state("default/a", "{}")
    store.add_event("t", "info", "s", "r", "m")
    again = Store(tmp_path / "state.db")
    assert again.objects("CriticalJob") == {"default/a": "{}"}
    assert again.states() == {"default/a": "{}"}
    assert [event.message for event in again.events()] == ["m"]
    again.remove_object("CriticalJob", "default/a")
    assert again.objects("CriticalJob") == again.states() == {}


def test_a_change_that_fails_leaves_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path / "state.db")
    with pytest.raises(RuntimeError), store.change():
        store.put_object("CriticalJob", "default/a", "{}")
        raise RuntimeError
    assert store.objects("CriticalJob") == {}
    store.put_object("CriticalJob", "default/b", "{}")
    assert list(Store(tmp_path / "state.db").objects("CriticalJob")) == ["default/b"]


def test_a_full_disk_is_said_and_changes_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path / "state.db")
    store.put_object("CriticalJob", "default/a", "{}")
    pages = store._database.execute("pragma page_count").fetchone()[0]
    store._database.execute(f"pragma max_page_count = {pages}")
    with pytest.raises(EffectFailed, match="free some disk space"):
        store.put_object("CriticalJob", "default/b", "x" * 100_000)
    assert list(store.objects("CriticalJob")) == ["default/a"]
    store.put_state("default/a", "{}")


def test_only_the_newest_events_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("k40s.local.store.MOST_EVENTS", 5)
    store = Store(tmp_path / "state.db")
    for number in range(12):
        store.add_event("t", "info", "s", "r", str(number))
    assert [event.message for event in store.events()] == ["7", "8", "9", "10", "11"]
    assert [event.message for event in store.events(after=10, most=1)] == ["11"]


def test_a_file_of_another_version_is_left_alone(tmp_path: Path) -> None:
    store = Store(tmp_path / "state.db")
    store._database.execute("pragma user_version = 99")
    store.close()
    with pytest.raises(EffectFailed, match="version 99"):
        Store(tmp_path / "state.db")


states = st.builds(
    JobState,
    placed=st.booleans(),
    cores=st.dictionaries(st.text(max_size=5), st.integers(0, 64), max_size=3),
    refusal=st.lists(st.text(max_size=9), max_size=3).map(tuple),
    adjustment=st.sampled_from(Adjustment),
    deleting=st.booleans(),
    begun=st.lists(st.text(max_size=5), max_size=3).map(tuple),
    ended=st.dictionaries(st.text(max_size=5), st.none() | st.integers(-64, 255), max_size=3),
    trouble=st.text(max_size=9),
)


@given(states)
def test_a_state_is_read_as_it_was_written(state: JobState) -> None:
    assert JobState.from_json(state.to_json()) == state


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", json.dumps({"adjustment": "x", "refusal": [], "begun": []})]
)
def test_a_damaged_state_is_said(text: str) -> None:
    with pytest.raises(EffectFailed, match="damaged"):
        JobState.from_json(text)
