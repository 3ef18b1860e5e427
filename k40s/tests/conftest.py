"""What the tests of this half share: a real daemon, and plain words about what the machine lacks."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from live import Daemon, live_daemon

from k40s.assurance import Present
from k40s.errors import K40sError
from k40s.node.capabilities import discover
from k40s.node.cgroups import LinuxCgroups
from k40s.node.resctrl import Resctrl
from k40s.node.scheduling import LinuxScheduling


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Counted, with the reason, where real cgroups are out of reach."""
    if item.get_closest_marker("root") and os.geteuid() != 0:
        pytest.skip("needs root for real cgroups, namespaces and real-time scheduling: run the tests as root")


def pytest_report_header() -> list[str]:
    """What this machine cannot do, and so no test can show on it. The tests of what needs it fail, but for root."""
    if os.geteuid() != 0:
        return ["k4.0s: not root, everything that touches the kernel is skipped"]
    try:
        found = discover(LinuxCgroups.open(), LinuxScheduling.open(), Resctrl())
    except K40sError as error:
        return [f"k4.0s: {error}"]
    lacking = [f"{name.value} ({why.found})" for name, why in found.items() if not isinstance(why, Present)]
    return [f"k4.0s: this machine lacks {', '.join(lacking) or 'nothing that k4.0s uses'}"]


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    with live_daemon("test") as daemon:
        yield daemon
