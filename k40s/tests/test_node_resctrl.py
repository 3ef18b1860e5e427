"""Cache allocation on a folder that stands for the file system, which this repository's machines lack."""

from pathlib import Path

import pytest

from k40s.errors import Unsupported
from k40s.node.resctrl import Resctrl


def test_a_group_is_made_changed_and_only_ours_are_listed(tmp_path: Path) -> None:
    (tmp_path / "schemata").write_text("L3:0=f")
    (tmp_path / "theirs").mkdir()
    resctrl = Resctrl(tmp_path)
    resctrl.allocate("loop", {"L3": "0=3"}, [1])
    assert (tmp_path / "k40s-loop/schemata").read_text() == "L3:0=3\n"
    assert resctrl.groups() == ("loop",)
    resctrl.release("gone")


def test_without_it_the_reason_is_said(tmp_path: Path) -> None:
    resctrl = Resctrl(tmp_path)
    assert resctrl.groups() == ()
    with pytest.raises(Unsupported, match="no cache allocation"):
        resctrl.allocate("loop", {"L3": "0=3"}, [1])
