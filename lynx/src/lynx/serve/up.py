"""All of Lynx on this machine: prefill, decode and router as processes of their own, over a shaped link if asked.

Each process is the command that a user could start by hand (``lynx prefill``, ``lynx decode``, ``lynx route``);
this module starts them, waits until they answer, and ends them. HTTP never crosses the shaped link, KV always does.
"""

import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from lynx.errors import BadInput
from lynx.serve.host import end_with_parent
from lynx.serve.link import Link, can_shape, shaped_link

_STOP_S = 15.0

Say = Callable[[str], None]
"""Takes one line of progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpConfig:
    """What is started.

    Args:
        prefill: options of ``lynx prefill``, as on its command line, without addresses.
        decode: options of ``lynx decode``, likewise.
        host: address of the router.
        port: port of the router; 0 picks a free one.
        link_bps: rate of the link between prefill and decode; ``None`` leaves loopback as it is.
        prefills: number of prefill instances.
        decodes: number of decode instances.
        timeout_s: how long a client may wait without getting a byte.
        start_s: how long the engines may take to load.
    """

    prefill: tuple[str, ...] = ()
    decode: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    port: int = 8000
    link_bps: int | None = None
    prefills: int = 1
    decodes: int = 1
    timeout_s: float = 300.0
    start_s: float = 600.0

    def __post_init__(self) -> None:
        for name, value in (("prefills", self.prefills), ("decodes", self.decodes)):
            if not 1 <= value <= 64:
                raise BadInput(f"{name} is {value}; it must be 1 to 64")


@dataclass(slots=True)
class Process:
    """One process that was started.

    Args:
        name: as it is called in messages: ``prefill 0``, ``router``.
        url: base address of its HTTP server.
        command: what it runs.
        log: file that holds what it wrote.
        popen: the process as it runs now.
    """

    name: str
    url: str
    command: list[str]
    log: Path
    popen: "subprocess.Popen[bytes]" = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Run it, again if it has ended."""
        with self.log.open("ab") as output:
            self.popen = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                preexec_fn=end_with_parent,  # noqa: PLW1509 - one system call, resolved before the fork
            )

    def stop(self) -> None:
        """End it, gently at first."""
        self.popen.terminate()
        try:
            self.popen.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()

    @property
    def ended(self) -> str | None:
        """How it ended, in words; ``None`` while it runs."""
        code = self.popen.poll()
        if code is None:
            return None
        if code < 0:
            return f"{self.name} was ended by {signal.Signals(-code).name}"
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return f"{self.name} ended with exit code {code}: {lines[-1] if lines else 'it wrote nothing'}"


@dataclass(frozen=True, slots=True)
class Running:
    """What is up.

    Args:
        router: base URL that clients use.
        prefill: base URLs of the prefill instances.
        decode: base URLs of the decode instances.
        processes: all of them, router last.
        shaping: in words, what slows the link and how.
    """

    router: str
    prefill: tuple[str, ...]
    decode: tuple[str, ...]
    processes: tuple[Process, ...] = field(repr=False)
    shaping: str

    def ended(self) -> Process | None:
        """The first process that is no more, if any."""
        return next((process for process in self.processes if process.ended), None)


def interrupt_on_sigterm() -> None:
    """Make SIGTERM end this process as Ctrl-C does, so that what it started is ended, too."""
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))


@contextmanager
def running(config: UpConfig, say: Say = lambda _: None) -> Iterator[Running]:
    """Start everything, hand over when all of it answers, end everything.

    Args:
        config: what to start.
        say: told what is going on, a line at a time.

    Raises:
        BadInput: a process ended while starting (its own last line is in the message), or took too long.
    """
    with ExitStack() as stack:
        link, rate_bps, shaping = _shape(config, stack)
        say(shaping)
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lynx-")))
        starter = _Starter(logs, stack)
        prefill_words = [*config.prefill]
        prefill_words += ["--kv-host", link.prefill_address] if link else []
        prefill_words += ["--rate", f"{rate_bps}bit"] if rate_bps else []
        prefill = [
            starter.start(
                f"prefill {i}", ["prefill", *prefill_words, *_netns(link.prefill if link else None)]
            )
            for i in range(config.prefills)
        ]
        decode = [
            starter.start(f"decode {i}", ["decode", *config.decode, *_netns(link.decode if link else None)])
            for i in range(config.decodes)
        ]
        say("Loading the engines (20 s to 2 minutes)")
        _wait([*prefill, *decode], config.start_s, say)
        words = ["route", "--timeout", str(config.timeout_s)]
        words += [word for process in prefill for word in ("--prefill", process.url)]
        words += [word for process in decode for word in ("--decode", process.url)]
        router = starter.start("router", words, config.host, config.port)
        _wait([router], 60.0, say)
        yield Running(
            router.url,
            tuple(process.url for process in prefill),
            tuple(process.url for process in decode),
            (*prefill, *decode, router),
            shaping,
        )
        say("Stopping")


class _Starter:
    """Starts processes of Lynx and ends them, last first, when ``stack`` unwinds."""

    def __init__(self, logs: Path, stack: ExitStack) -> None:
        self._logs = logs
        self._stack = stack

    def start(self, name: str, words: Sequence[str], host: str = "127.0.0.1", port: int = 0) -> Process:
        port = port or _free_port(host)
        log = self._logs / f"{name.replace(' ', '-')}.log"
        command = [sys.executable, "-m", "lynx.cli", *words, "--host", host, "--port", str(port)]
        process = Process(name, f"http://{host}:{port}", command, log)
        self._stack.callback(process.stop)
        return process


def _shape(config: UpConfig, stack: ExitStack) -> tuple[Link | None, int | None, str]:
    """The link, or a rate for the transport's own bucket, or neither; and in words which it is."""
    if config.link_bps is None:
        return None, None, "KV goes over loopback, as fast as it can"
    rate = f"{config.link_bps / 1e6:g} Mbit/s"
    if can_shape():
        link = stack.enter_context(shaped_link(config.link_bps))
        return link, None, f"KV goes over a veth link of {rate} between two network namespaces"
    return (
        None,
        config.link_bps,
        f"Not root (or no ip and tc): KV is held to {rate} by a token bucket in prefill",
    )


def _wait(processes: Sequence[Process], limit_s: float, say: Say) -> None:
    """Until all of them answer their health check."""
    begun_s = time.monotonic()
    waiting = list(processes)
    with httpx.Client(timeout=5.0, trust_env=False) as http:
        while waiting:
            for process in list(waiting):
                if ended := process.ended:
                    raise BadInput(f"while starting, {ended}")
                if _answers(http, process.url):
                    waiting.remove(process)
                    say(f"{process.name} is up at {process.url} after {time.monotonic() - begun_s:.0f} s")
            if waiting and time.monotonic() - begun_s > limit_s:
                names = ", ".join(process.name for process in waiting)
                raise BadInput(
                    f"{names} did not answer within {limit_s:g} s; it may need more memory or time"
                )
            if waiting:
                time.sleep(0.2)


def _answers(http: httpx.Client, url: str) -> bool:
    try:
        return http.get(f"{url}/health").status_code == 200
    except httpx.HTTPError:
        return False


def _netns(name: str | None) -> list[str]:
    return ["--netns", name] if name else []


def _free_port(host: str) -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
