"""The journal: whatever a crash leaves of its file, what was set and not undone is known."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k40s.node.journal import Effect, Journal, ResctrlGroup, RuncContainer, ShapedDevice

EFFECTS: list[Effect] = [
    ShapedDevice("eth0"),
    ShapedDevice("eth0", "cell"),
    RuncContainer("a", "/b"),
    ResctrlGroup("a"),
]
moves = st.lists(st.tuples(st.booleans(), st.sampled_from(EFFECTS)), max_size=12)


def play(journal: Journal, steps: list[tuple[bool, Effect]]) -> list[Effect]:
    expected: dict[Effect, None] = {}
    for setting, effect in steps:
        if setting:
            journal.note(effect)
            expected[effect] = None
        else:
            journal.strike(effect)
            expected.pop(effect, None)
    return list(expected)


@given(steps=moves)
def test_what_is_outstanding_survives_a_crash(
    steps: list[tuple[bool, Effect]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("journal") / "journal"
    expected = play(Journal.load(path), steps)
    assert list(Journal.load(path).outstanding()) == expected
    assert list(Journal.load(path).outstanding()) == expected, "rewriting on load loses nothing"


@given(steps=moves, cut=st.integers(0, 400))
def test_a_torn_tail_never_hides_what_was_set_before(
    steps: list[tuple[bool, Effect]], cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("journal") / "journal"
    play(Journal.load(path), steps)
    whole = path.read_bytes()
    end = max(0, len(whole) - cut)
    if whole[end : end + 1] == b"\n":
        end += 1  # a line that lacks nothing but its end is whole
    path.write_bytes(whole[:end])
    reread = Journal.load(path).outstanding()
    path.write_bytes(whole[: whole.rfind(b"\n", 0, end) + 1])
    assert reread == Journal.load(path).outstanding()


def test_a_full_disk_is_told_before_anything_is_set(tmp_path: Path) -> None:
    journal = Journal.load(tmp_path / "journal")
    journal.path = Path("/dev/full")
    with pytest.raises(OSError, match="No space"):
        journal.note(EFFECTS[0])
    assert journal.outstanding() == ()
