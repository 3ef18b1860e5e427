"""The example of one machine: a HI loop, a LO service and a NO hog whose limits somebody takes away."""

import socket
from pathlib import Path

import pytest
from live import Daemon, eventually

from k40s.local.bodies import TopContainer
from k40s.local.client import Client
from k40s.node.cgroups import Controller

pytestmark = pytest.mark.root

ROOT = Path(__file__).resolve().parents[2]
HARSHER = ("free again", "throttled", "frozen", "evicted")


def manifest() -> str:
    """`examples/cell.yaml` from anywhere, with a port that is free."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    text = (ROOT / "examples/cell.yaml").read_text()
    for old, new in (
        ("examples/control_loop.py", str(ROOT / "examples/control_loop.py")),
        ("k40s/src", str(ROOT / "k40s/src")),
        ("8088", str(port)),
    ):
        assert old in text
        text = text.replace(old, new)
    return text


def containers(client: Client) -> dict[str, TopContainer]:
    return {one.job.removeprefix("default/"): one for one in client.top().containers}


def reactions(client: Client, job: str) -> list[str]:
    found = client.events(most=1000)
    return [
        one.message.split(":")[0]
        for one in found
        if (one.subject, one.reason) == (f"default/{job}", "Reaction")
    ]


def test_who_loses_its_limits_is_named_and_restrained_and_the_loop_keeps_its_deadlines(
    daemon: Daemon,
) -> None:
    daemon.start_and_wait()
    limit = daemon.group(Controller.CPU, "NO/hog/burn") / "cpu.cfs_quota_us"
    with daemon.client as client:
        assert {one.outcome for one in client.apply(manifest())} == {"admitted"}
        eventually(lambda: bool(containers(client)["loop"].tasks[0].periods > 200))
        loop, service, hog = (containers(client)[name] for name in ("loop", "service", "hog"))
        assert (loop.criticality, service.criticality, hog.criticality) == ("HI", "LO", "NO")
        assert loop.budget_us
        assert loop.core is not None
        assert hog.limit_milli == 400
        assert 0 < client.top().score < 1

        def named_and_frozen() -> bool:
            if containers(client)["hog"].phase in ("Running", "Throttled"):
                limit.write_text("-1")  # again after each step of the ladder, which sets a limit anew
            named = any(
                one.severity == "alarm"
                and one.message.startswith("beyond-limit")
                and "hog/burn (NO)" in one.message
                for one in client.events(most=1000)
            )
            return named and bool({"frozen", "evicted"} & set(reactions(client, "hog")))

        eventually(named_and_frozen)
        steps = [HARSHER.index(word) for word in reactions(client, "hog")]
        assert steps[:2] == sorted(steps[:2]), "gentler steps first"
        assert reactions(client, "loop") == []
        after = containers(client)["loop"].tasks[0].periods
        eventually(lambda: bool(containers(client)["loop"].tasks[0].periods > after + 200))
        assert containers(client)["loop"].tasks[0].misses_unexplained == 0
        assert containers(client)["service"].processes == 1
        client.delete("hog")
        assert daemon.pids("NO/hog") == frozenset()
        assert {job.metadata.name for job in client.jobs()} == {"loop", "service"}
