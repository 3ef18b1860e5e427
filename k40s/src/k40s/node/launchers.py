"""Processes and containers, made in two steps so that budgets are in force before the first instruction.

`create` makes a process that waits; its caller puts it into its groups and under its policy; `release` lets
it become the job. A waiting process whose creator dies ends without having run anything of the job.

* `PlainLauncher`: a process of this machine's own root file system, without privileges unless it asks for
them.
* `RuncLauncher`: a container from a plain root file system, through `runc create` and `runc start`.
* `FakeLauncher`: in memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from k40s.errors import BadInput, EffectFailed, Unsupported

NOBODY = 65534
WAIT_THEN_BECOME = 'read -r go && exec "$@" </dev/null'
LOG_BYTES = 16 << 20
"""What a container's log holds at most, so that a talkative job fills no disk."""
SAFE_CAPABILITIES = ("CAP_NET_BIND_SERVICE", "CAP_KILL", "CAP_AUDIT_WRITE")


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder of the machine, seen by the job at `inside`."""

    outside: Path
    inside: str
    writable: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    """What to run. `id` is unique on the machine; `group` is its cgroup; output goes to `log`."""

    id: str
    argv: tuple[str, ...]
    group: str
    log: Path
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = "/"
    user: int = NOBODY
    user_group: int = NOBODY
    rootfs: Path | None = None
    mounts: tuple[Mount, ...] = ()
    network_namespace: str = ""
    """A named network namespace (`ip netns`); empty for the machine's own."""

    def __post_init__(self) -> None:
        if not self.argv:
            raise BadInput(f"container {self.id!r}: its command is empty, name a program")


class Launcher(Protocol):
    """Makes processes that wait. Errors: `EffectFailed` with what the tool said, `Unsupported`."""

    def create(self, launch: Launch) -> int:
        """Make the process, waiting, and return its process id."""

    def release(self, launch_id: str) -> None:
        """Let a waiting process become the job."""

    def is_waiting(self, launch_id: str) -> bool:
        """Whether a process was created, by whomever, and never released."""

    def exit_status(self, launch_id: str) -> int | None:
        """Exit status once it ended, negative for a signal; None while it runs or when nobody can know."""

    def destroy(self, launch_id: str) -> None:
        """Forget an ended or waiting process and what was made for it; nothing happens when it is unknown."""


def _append_to(log: Path) -> int:
    log.parent.mkdir(parents=True, exist_ok=True)
    return os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)


def shorten_log(log: Path, most_bytes: int = LOG_BYTES) -> None:
    """Of a log longer than `most_bytes` keep the last half of that, from a line's beginning on.

    The job goes on writing behind it, as its file is open for appending; what it writes at that very moment may be
    lost. A log that is not there (yet) is left alone.
    """
    try:
        if log.stat().st_size <= most_bytes:
            return
        with log.open("r+b") as file:
            file.seek(-(most_bytes // 2), os.SEEK_END)
            kept = file.read(most_bytes // 2)
            file.truncate(0)
    except FileNotFoundError:
        return
    with log.open("ab") as file:
        file.write(kept[kept.find(b"\n") + 1 :])


def _inside_namespace(name: str) -> list[str]:
    return ["nsenter", f"--net=/run/netns/{name}"] if name else []


@dataclass(slots=True)
class PlainLauncher:
    """Processes held by a shell that reads one line before it becomes the job."""

    _held: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def create(self, launch: Launch) -> int:
        if launch.rootfs is not None or launch.mounts:
            raise BadInput(f"container {launch.id!r}: a root file system or mounts need the runc launcher")
        if not Path(launch.cwd).is_dir():
            raise EffectFailed(f"container {launch.id!r}: working folder {launch.cwd!r} does not exist")
        as_user = [
            "setpriv",
            f"--reuid={launch.user}",
            f"--regid={launch.user_group}",
            "--clear-groups",
            "--no-new-privs",
            *(("--bounding-set=-all", "--inh-caps=-all") if launch.user != 0 else ()),
        ]
        held = ["sh", "-c", WAIT_THEN_BECOME, "k40s-held"]
        log = _append_to(launch.log)
        try:
            process = subprocess.Popen(
                [*held, *_inside_namespace(launch.network_namespace), *as_user, *launch.argv],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=launch.cwd,
                env={"PATH": os.defpath + ":/usr/local/bin:/usr/sbin:/sbin", **launch.env},
                start_new_session=True,
            )
        except OSError as error:
            raise EffectFailed(f"container {launch.id!r}: {error}") from error
        finally:
            os.close(log)
        self._held[launch.id] = process
        return process.pid

    def release(self, launch_id: str) -> None:
        process = self._held[launch_id]
        assert process.stdin is not None
        try:
            process.stdin.write(b"go\n")
            process.stdin.close()
        except BrokenPipeError as error:
            raise EffectFailed(f"container {launch_id!r} ended before it could start") from error

    def is_waiting(self, launch_id: str) -> bool:
        # One that another daemon made and did not release has read the end of its input, and is gone.
        process = self._held.get(launch_id)
        return process is not None and process.stdin is not None and not process.stdin.closed

    def exit_status(self, launch_id: str) -> int | None:
        process = self._held.get(launch_id)
        return process.poll() if process else None

    def destroy(self, launch_id: str) -> None:
        process = self._held.pop(launch_id, None)
        if process is None:
            return
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()  # a waiting shell reads the end of its input and goes
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=2)


@dataclass(slots=True)
class RuncLauncher:
    """Containers through runc; `state` holds its root and the bundles."""

    state: Path
    program: str = "runc"

    def _run(self, *arguments: str, log: int = subprocess.DEVNULL) -> str:
        said = self.state / "runc.json"
        command = [self.program, "--root", str(self.state / "runc")]
        command += ["--log", str(said), "--log-format", "json"]
        said.unlink(missing_ok=True)
        done = subprocess.run(
            [*command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log if arguments[0] == "create" else subprocess.PIPE,
            stderr=log if arguments[0] == "create" else subprocess.PIPE,
            timeout=30,
            check=False,
        )
        if done.returncode != 0:
            raise EffectFailed(f"runc {arguments[0]} {arguments[-1]}: {_last_message(said)}")
        return (done.stdout or b"").decode(errors="replace")

    def bundle(self, launch_id: str) -> Path:
        """The folder that runc reads a container's configuration from."""
        return self.state / "bundles" / launch_id

    def create(self, launch: Launch) -> int:
        if shutil.which(self.program) is None:
            raise Unsupported(f"program {self.program!r} is not installed: containers need it (package runc)")
        if launch.rootfs is None or not launch.rootfs.is_dir():
            raise EffectFailed(f"container {launch.id!r}: root file system {launch.rootfs} is not a folder")
        bundle = self.bundle(launch.id)
        bundle.mkdir(parents=True, exist_ok=True)
        (bundle / "config.json").write_text(json.dumps(oci_config(launch)))
        pid_file = bundle / "pid"
        log = _append_to(launch.log)
        try:
            self._run("create", "--bundle", str(bundle), "--pid-file", str(pid_file), launch.id, log=log)
        finally:
            os.close(log)
        return int(pid_file.read_text())

    def release(self, launch_id: str) -> None:
        self._run("start", launch_id)

    def is_waiting(self, launch_id: str) -> bool:
        try:
            return bool(json.loads(self._run("state", launch_id))["status"] == "created")
        except (EffectFailed, json.JSONDecodeError, KeyError):
            return False

    def exit_status(self, launch_id: str) -> int | None:  # noqa: ARG002 - the port's signature
        return None  # runc's child belongs to init: its status is gone with it

    def destroy(self, launch_id: str) -> None:
        with contextlib.suppress(EffectFailed):  # runc does not know it, which is what is wanted
            self._run("delete", "--force", launch_id)
        shutil.rmtree(self.bundle(launch_id), ignore_errors=True)


def _last_message(log: Path) -> str:
    try:
        return str(json.loads(log.read_text().splitlines()[-1])["msg"])
    except (OSError, IndexError, KeyError, json.JSONDecodeError):
        return "it gave no reason"


def oci_config(launch: Launch) -> dict[str, Any]:
    """Configuration of a container, OCI runtime specification 1.0.

    The cgroup is `launch.group`, limits are not set.
    """
    namespaces: list[dict[str, str]] = [{"type": kind} for kind in ("pid", "ipc", "uts", "mount")]
    if launch.network_namespace:
        namespaces.append({"type": "network", "path": f"/run/netns/{launch.network_namespace}"})
    mounts = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {
            "destination": "/dev",
            "type": "tmpfs",
            "source": "tmpfs",
            "options": ["nosuid", "strictatime", "mode=755", "size=65536k"],
        },
        {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "nodev"]},
        *(
            {
                "destination": mount.inside,
                "type": "bind",
                "source": str(mount.outside),
                "options": ["rbind", "nosuid", "nodev", "rw" if mount.writable else "ro"],
            }
            for mount in launch.mounts
        ),
    ]
    capabilities = list(SAFE_CAPABILITIES) if launch.user == 0 else []
    return {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": launch.user, "gid": launch.user_group},
            "args": list(launch.argv),
            "env": [f"{key}={value}" for key, value in {"PATH": os.defpath, **launch.env}.items()],
            "cwd": launch.cwd,
            "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), capabilities),
            "noNewPrivileges": True,
        },
        "root": {"path": str(launch.rootfs), "readonly": True},
        "hostname": launch.id[:63],
        "mounts": mounts,
        "linux": {
            "cgroupsPath": launch.group,
            "namespaces": namespaces,
            "maskedPaths": ["/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/sched_debug"],
            "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"],
        },
    }


class Processes(Protocol):
    """What is done to processes that exist; nothing happens when one is gone."""

    def send(self, pid: int, number: signal.Signals) -> None:
        """Send a signal."""

    def offer_to_oom(self, pid: int, score: int) -> None:
        """Let the kernel kill it sooner than others when memory runs out, 0 to 1000."""


@dataclass(frozen=True, slots=True)
class LinuxProcesses:
    """The kernel's."""

    def send(self, pid: int, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    def offer_to_oom(self, pid: int, score: int) -> None:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            Path("/proc", str(pid), "oom_score_adj").write_text(str(score))


@dataclass(slots=True)
class FakeLauncher:
    """Processes in memory; also takes their signals. `stubborn` ones ignore all but SIGKILL."""

    first_pid: int = 1000
    born: Callable[[int], None] = lambda _: None
    """Told each new process id."""
    stubborn: frozenset[str] = frozenset()
    failing: str = ""
    """While not empty, nothing can be created, for this reason."""
    waiting: dict[str, int] = field(default_factory=dict)
    running: dict[str, int] = field(default_factory=dict)
    ended: dict[str, int] = field(default_factory=dict)
    launched: dict[str, Launch] = field(default_factory=dict)
    oom_scores: dict[int, int] = field(default_factory=dict)

    def create(self, launch: Launch) -> int:
        if self.failing:
            raise EffectFailed(self.failing)
        if launch.id in self.waiting or launch.id in self.running:
            raise EffectFailed(f"container {launch.id!r} exists already")
        pid = self.first_pid + len(self.launched)
        self.launched[launch.id] = launch
        self.waiting[launch.id] = pid
        self.born(pid)
        return pid

    def release(self, launch_id: str) -> None:
        if launch_id not in self.waiting:
            raise EffectFailed(f"container {launch_id!r} ended before it could start")
        self.running[launch_id] = self.waiting.pop(launch_id)

    def is_waiting(self, launch_id: str) -> bool:
        return launch_id in self.waiting

    def exit_status(self, launch_id: str) -> int | None:
        return self.ended.get(launch_id)

    def destroy(self, launch_id: str) -> None:
        self.waiting.pop(launch_id, None)
        self.running.pop(launch_id, None)
        self.ended.pop(launch_id, None)

    def alive(self, pid: int) -> bool:
        """Whether a process id is one of ours and has not ended."""
        return pid in self.waiting.values() or pid in self.running.values()

    def send(self, pid: int, number: signal.Signals) -> None:
        for launch_id, running in {**self.waiting, **self.running}.items():
            if running == pid and (number == signal.SIGKILL or launch_id not in self.stubborn):
                self.waiting.pop(launch_id, None)
                self.running.pop(launch_id, None)
                self.ended[launch_id] = -number

    def offer_to_oom(self, pid: int, score: int) -> None:
        self.oom_scores[pid] = score
