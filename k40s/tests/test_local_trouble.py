"""Trouble for a real daemon: a full disk, a group that cannot be read, jobs that fork for ever or do not go."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from live import Daemon, eventually

from k40s.errors import EffectFailed
from k40s.node.cgroups import Controller
from k40s.node.launchers import LOG_BYTES

pytestmark = pytest.mark.root

SLEEP = ["sleep", "600"]
BOMB = """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    try:
        os.fork()
    except OSError:
        pass
"""

TALK = """
import time
for number in range(40):
    print(f"{number:04}", "x" * (1 << 20), flush=True)
    time.sleep(0.05)
print("end", flush=True)
time.sleep(600)
"""


@contextmanager
def small_disk(path: Path, size: str) -> Iterator[None]:
    """A file system of its own at `path`."""
    path.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "tmpfs", str(path)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(path)], check=True)


def fill(path: Path) -> None:
    """Every byte of the disk that `path` lies on."""
    with path.open("wb", buffering=0) as file:
        for block in (1 << 16, 1 << 12, 1):
            try:
                while file.write(bytes(block)):
                    pass
            except OSError:
                continue


def test_a_full_disk_takes_no_new_job_and_keeps_the_old_ones(daemon: Daemon) -> None:
    disk = daemon.folder / "disk"
    with small_disk(disk, "2M"):
        daemon.state = disk / "state"
        daemon.start_and_wait()
        with daemon.client as client:
            assert [one.outcome for one in client.apply(daemon.loop())] == ["admitted"]
            fill(disk / "filler")
            with pytest.raises(EffectFailed, match="disk"):
                for number in range(60):
                    client.apply(daemon.job(f"guest{number}", "NO", SLEEP, limit="20m"))
            stored = {job.metadata.name for job in client.jobs()}
            running = {path.name for path in daemon.group(Controller.CPU, "NO").glob("*") if path.is_dir()}
            assert running == stored - {"loop"}, "what was not stored does not run"
            daemon.goes_on()
        first = daemon.pids("HI/loop")
        daemon.kill()
        daemon.start_and_wait()  # with the disk still full
        assert daemon.pids("HI/loop") == first
        (disk / "filler").unlink()
        with daemon.client as client:
            assert {job.metadata.name for job in client.jobs()} == stored
            assert [one.outcome for one in client.apply(daemon.job("late", "NO", SLEEP))] == ["admitted"]
            client.down(everything=True)
        assert daemon.process is not None
        assert daemon.process.wait(timeout=60) == 0
    daemon.state = daemon.folder / "state"


def test_a_talkative_job_fills_no_disk(daemon: Daemon) -> None:
    (daemon.folder / "talk.py").write_text(TALK)
    daemon.start_and_wait()
    with daemon.client as client:
        client.apply(daemon.job("talk", "NO", ["/usr/bin/python3", "-S", f"{daemon.folder}/talk.py"]))
        eventually(lambda: daemon.log("talk").endswith("end\n"), 60)
        eventually(lambda: len(daemon.log("talk")) <= LOG_BYTES, 10)
        lines = daemon.log("talk").splitlines()
        assert int(lines[0].split()[0]) > 0, "the oldest lines are gone"
        assert len({len(line) for line in lines[:-1]}) == 1, "each line that is left is whole"
        client.delete("talk")


def test_a_group_that_cannot_be_read_keeps_nobody_else_waiting(daemon: Daemon) -> None:
    daemon.start_and_wait()
    with daemon.client as client:
        client.apply(daemon.loop() + daemon.job("hog", "NO", SLEEP))
        with small_disk(daemon.group(Controller.CPU, "NO/hog/main"), "64k"):  # over its files
            with pytest.raises(EffectFailed, match="hog"):
                client.delete("hog")
            assert [one.outcome for one in client.apply(daemon.job("other", "NO", SLEEP))] == ["admitted"]
            assert daemon.pids("NO/other")
            daemon.goes_on()

            def told() -> list[str]:
                return [one.message for one in client.events(most=1000) if one.reason == "EffectFailed"]

            eventually(lambda: bool(told()), 10)
            assert len(told()) == len(set(told())), "once for each trouble, not at every tick"
        eventually(lambda: {job.metadata.name for job in client.jobs()} == {"loop", "other"}, 20)
        assert daemon.pids("NO/hog") == frozenset(), "what could not be finished then is finished now"


def test_jobs_that_fork_for_ever_or_ignore_sigterm_are_ended(daemon: Daemon) -> None:
    (daemon.folder / "bomb.py").write_text(BOMB)
    daemon.start_and_wait()
    with daemon.client as client:
        client.apply(daemon.loop())
        client.apply(daemon.job("bomb", "NO", ["/usr/bin/python3", "-S", f"{daemon.folder}/bomb.py"]))
        eventually(lambda: len(daemon.pids("NO/bomb")) > 20, 20)
        assert len(daemon.pids("NO/bomb")) <= 512
        daemon.goes_on()
        client.delete("bomb")
        assert daemon.pids("NO/bomb") == frozenset()
        assert not daemon.group(Controller.CPU, "NO/bomb").exists()
        daemon.goes_on()
