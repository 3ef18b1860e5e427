"""The daemon: one process with a loop and a socket. Survives being killed at any point; its jobs run on meanwhile."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from k40s.assurance import Present
from k40s.errors import Conflict, EffectFailed, K40sError, Unsupported
from k40s.local.config import Config
from k40s.local.engine import Engine
from k40s.local.measure import Measurements
from k40s.local.service import guarded_protocol, listen, make_app
from k40s.local.store import Store
from k40s.monitor.plan import Guarantee
from k40s.node.capabilities import Feature, discover
from k40s.node.cgroups import LinuxCgroups
from k40s.node.journal import Journal
from k40s.node.launchers import LinuxProcesses, PlainLauncher, RuncLauncher
from k40s.node.links import TcLinks
from k40s.node.machine import Machine
from k40s.node.probe import hardware, probe
from k40s.node.resctrl import Resctrl
from k40s.node.sample import Source
from k40s.node.scheduling import LinuxScheduling
from k40s.node.wakeup import start_probe

WAKEUP_PERIOD_MS = 100
WARM_UP_S = 0.5
GUARANTEES = {
    Feature.RT_BUDGETS: Guarantee.BUDGETS,
    Feature.MEMORY_LIMITS: Guarantee.MEMORY_LIMITS,
    Feature.FLOW_RATES: Guarantee.FLOW_RATES,
}
log = logging.getLogger("k40s")


def linux_machine(config: Config) -> Machine:
    """This machine with its real ports."""
    return Machine(
        files=LinuxCgroups.open(config.cgroup_root),
        scheduling=LinuxScheduling.open(),
        links=TcLinks(),
        resctrl=Resctrl(),
        plain=PlainLauncher(),
        runc=RuncLauncher(config.state / "runc"),
        processes=LinuxProcesses(),
        journal=Journal.load(config.state / "journal"),
    )


@contextmanager
def only_one(config: Config) -> Iterator[None]:
    """Holds the state folder. `Conflict` when another daemon has it."""
    config.state.mkdir(parents=True, exist_ok=True)
    config.state.chmod(0o711)
    with (config.state / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Conflict(
                f"state {config.state}: another daemon uses it, stop it with `k40s down`"
            ) from error
        yield


def build_engine(config: Config, machine: Machine) -> Engine:
    """The engine on this machine, with what it left recovered."""
    features = discover(machine.files, machine.scheduling, machine.resctrl)
    guarantees = {
        guarantee for feature, guarantee in GUARANTEES.items() if isinstance(features[feature], Present)
    }
    measurements = Measurements(
        Source(machine.files), probe(), frozenset(guarantees), config.state / "wakeup-latency"
    )
    measurements.warm_up(lambda: time.sleep(WARM_UP_S))
    store = Store(config.state / "state.db")
    return Engine(config, machine, store, measurements, features, hardware())


def run(config: Config) -> None:
    """Run until told to stop. Errors: those of `k40s.errors`, before anything is served."""
    if os.geteuid() != 0:
        raise Unsupported("the daemon needs root: cgroups and real-time scheduling are root's to give")
    with only_one(config):
        listening = listen(config.socket, config.group)
        latency = start_probe(config.state / "wakeup-latency", WAKEUP_PERIOD_MS, core=0)
        try:
            engine = build_engine(config, linux_machine(config))
            _serve(config, engine, listening.fileno())
        finally:
            _end(latency)
            listening.close()
            config.socket.unlink(missing_ok=True)


def _serve(config: Config, engine: Engine, listening: int) -> None:
    everything = threading.Event()
    app = make_app(engine, lambda all_of_it: _stop(server, everything, all_of_it))
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            fd=listening,
            http=guarded_protocol(config.group),
            lifespan="off",
            access_log=False,
            log_level="warning",
            timeout_graceful_shutdown=5,
        )
    )
    stopping = threading.Event()

    def ticking() -> None:
        try:
            _loop(engine, config.tick_ms / 1000, stopping)
        finally:
            server.should_exit = True  # a daemon that answers and reacts to nothing is worse than none

    loop = threading.Thread(target=ticking, name="loop")
    loop.start()
    try:
        server.run()
    finally:
        broken = not loop.is_alive()
        stopping.set()
        loop.join()
        if everything.is_set():
            engine.stop_all()
        engine.store.close()
    if broken:
        raise EffectFailed("the loop has ended for the reason above; the jobs run on, start the daemon again")
    if everything.is_set():
        shutil.rmtree(config.state)
        shutil.rmtree(config.records, ignore_errors=True)


def _stop(server: uvicorn.Server, everything: threading.Event, all_of_it: bool) -> None:
    if all_of_it:
        everything.set()
    server.should_exit = True


def _loop(engine: Engine, period_s: float, stopping: threading.Event) -> None:
    """Tick after tick. One that fails is logged and tried again: nothing may end the loop."""
    while not stopping.is_set():
        began_s = time.monotonic()
        try:
            engine.tick()
        except (K40sError, OSError):
            log.exception("a tick failed; the next one tries again")
        stopping.wait(max(0.0, period_s - (time.monotonic() - began_s)))


def _end(probe_process: subprocess.Popen[bytes]) -> None:
    if probe_process.stdin is not None:
        probe_process.stdin.close()
    try:
        probe_process.wait(timeout=2)
    except subprocess.TimeoutExpired:
        probe_process.kill()
        probe_process.wait()


def uninstall(config: Config) -> None:
    """Without a daemon: stop what is left, undo what was set, remove the state."""
    with only_one(config):
        linux_machine(config).uninstall()
        shutil.rmtree(config.state)
        shutil.rmtree(config.records, ignore_errors=True)
    config.socket.unlink(missing_ok=True)


def log_to(path: Path | None) -> None:
    """Where the daemon's own words go."""
    logging.basicConfig(filename=path, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
