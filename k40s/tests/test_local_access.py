"""Who may do what, with real users: the socket is root's and its group's, and a job is at nobody else's throat."""

import multiprocessing
import os
import subprocess
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from live import Daemon, eventually, live_daemon

from k40s.errors import Unreachable
from k40s.local.client import REFUSED, Client

pytestmark = pytest.mark.root

GROUP, GROUP_ID = "daemon", 1
"""A group that every Linux has."""
ASK = """
import socket, sys
with socket.socket(socket.AF_UNIX) as s:
    s.connect(sys.argv[1])
    try:
        s.sendall(b"GET /v1/health HTTP/1.1\\r\\nhost: k40s\\r\\nconnection: close\\r\\n\\r\\n")
    except BrokenPipeError:
        pass  # shown the door before a byte was read; why, has come already
    print(s.recv(99))
"""
ROGUE = """
import os, pathlib, signal, socket, sys
groups, loop, state, sock, record = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5]
def put(path, text): pathlib.Path(path).open("r+").write(text)
own = groups + "/cpu" + sys.argv[6]
attempts = {
    "quota": lambda: put(own + "/cpu.cfs_quota_us", "-1"),
    "shares": lambda: put(own + "/cpu.shares", "10240"),
    "budget": lambda: put(own + "/cpu.rt_runtime_us", "100000"),
    "leave": lambda: put(groups + "/cpu/cgroup.procs", str(os.getpid())),
    "climb": lambda: put(own.replace("/NO/rogue/", "/HI/loop/") + "/cgroup.procs", str(os.getpid())),
    "memory": lambda: put(groups + "/memory" + sys.argv[6] + "/memory.limit_in_bytes", "-1"),
    "thaw": lambda: put(groups + "/freezer" + sys.argv[6] + "/freezer.state", "THAWED"),
    "forks": lambda: put(groups + "/pids" + sys.argv[6] + "/pids.max", "max"),
    "fifo": lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)),
    "nice": lambda: os.setpriority(os.PRIO_PROCESS, 0, -5),
    "root": lambda: os.setuid(0),
    "kill": lambda: os.kill(loop, signal.SIGKILL),
    "stop": lambda: os.kill(loop, signal.SIGSTOP),
    "demote": lambda: os.sched_setscheduler(loop, os.SCHED_OTHER, os.sched_param(0)),
    "displace": lambda: os.sched_setaffinity(loop, {0}),
    "memory-of": lambda: open(f"/proc/{loop}/mem", "r+b"),
    "record": lambda: put(record, "lie"),
    "state": lambda: open(state + "/state.db"),
    "journal": lambda: put(state + "/journal", "lie"),
    "socket": lambda: socket.socket(socket.AF_UNIX).connect(sock),
}
for name, attempt in attempts.items():
    try:
        attempt()
        print(name, "DONE", flush=True)
    except OSError as error:
        print(name, "refused", error.errno, flush=True)
print("end", flush=True)
signal.pause()
"""


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with live_daemon("access") as daemon:
        daemon.start_and_wait("--group", GROUP)
        yield daemon


def ask(daemon: Daemon, user: int, group: int) -> str:
    """What a process of this user and group gets to hear."""
    words = [
        "setpriv",
        f"--reuid={user}",
        f"--regid={group}",
        "--clear-groups",
        "/usr/bin/python3",
        "-c",
        ASK,
    ]
    done = subprocess.run(
        [*words, str(daemon.socket)], capture_output=True, text=True, timeout=20, check=False
    )
    return done.stdout + done.stderr


def test_only_root_and_the_group_may_talk_to_it(daemon: Daemon) -> None:
    assert "200 OK" in ask(daemon, 0, 0)
    assert "200 OK" in ask(daemon, 65534, GROUP_ID)
    assert "PermissionError" in ask(daemon, 65534, 65534)
    daemon.socket.chmod(0o666)  # even when somebody opens the file to all
    try:
        assert "403" in ask(daemon, 65534, 65534)
        assert "200 OK" in ask(daemon, 65534, GROUP_ID)
    finally:
        daemon.socket.chmod(0o660)


def told_to_a_stranger(path: Path, words: Connection) -> None:
    """Run in a process of its own: what the Python client says to a user outside the group."""
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    try:
        with Client(path) as client:
            client.health()
    except Unreachable as error:
        words.send(str(error))


def test_the_client_says_who_may_talk_to_it(daemon: Daemon) -> None:
    ours, theirs = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(
        target=told_to_a_stranger, args=(daemon.socket, theirs)
    )
    child.start()
    child.join(20)
    assert child.exitcode == 0
    assert ours.poll(1)
    assert ours.recv() == f"socket {daemon.socket}: {REFUSED}"


def test_a_job_cannot_raise_itself_nor_hurt_another(daemon: Daemon) -> None:
    (daemon.folder / "rogue.py").write_text(ROGUE)
    record = f"/dev/shm{daemon.root}/k40s-loop.main/control.task"
    with daemon.client as client:
        client.apply(daemon.loop())
        (loop,) = daemon.pids("HI/loop")
        own = f"{daemon.root}/NO/rogue/main"
        words = [
            f"{daemon.folder}/rogue.py",
            "/sys/fs/cgroup",
            str(loop),
            str(daemon.state),
            str(daemon.socket),
        ]
        client.apply(daemon.job("rogue", "NO", ["/usr/bin/python3", "-S", *words, record, own]))
        eventually(lambda: "end" in daemon.log("rogue"), 20)
        outcomes = dict(line.split(maxsplit=1) for line in daemon.log("rogue").splitlines()[:-1])
        assert len(outcomes) == ROGUE.count("lambda")
        assert {name for name, outcome in outcomes.items() if not outcome.startswith("refused")} == set()
        users = {Path(f"/proc/{pid}").stat().st_uid for pid in (loop, *daemon.pids("NO/rogue"))}
        assert 0 not in users
        assert len(users) == 2, "each job is a user of its own"
        daemon.goes_on()
        assert daemon.pids("HI/loop") == {loop}
        client.delete("rogue")
