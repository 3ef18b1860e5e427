"""Prefill, decode, router and either connection, killed at random points: what does the client get, and who goes on?

Two prefill and two decode instances. A request is asked and, at a random moment of it, something dies: SIGKILL for
a process (the HTTP server or the engine below it, by chance), a shutdown of the socket for a connection. The client
must get the right answer or one error in words within its timeout; the next request, asked at once, must be answered
right by those that are left (after a killed router: by the router started again). What died is started again for the
next round.

    python bench/kills/run.py --times 30
"""

import argparse
import asyncio
import ctypes
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx
from transformers import AutoTokenizer

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench import report
from bench.asking import Answer, Question, ask, family, prompts, question

from lynx import model
from lynx.serve.up import Process, Running, UpConfig, running

KINDS = ("prefill", "decode", "router", "anchor", "residual")
LENGTHS = (300, 500, 700, 900)
RATE = "40mbit"
"""Slow enough that a fair share of a request's time is transfer."""
START_S = 400.0
PIDFD_GETFD = 438
DSCP = {"anchor": 46 << 2, "residual": 8 << 2}


@dataclass(slots=True)
class Tally:
    """What came of the kills of one kind."""

    kind: str
    kills: int = 0
    right: int = 0
    errors: int = 0
    wrong: int = 0
    silent: int = 0
    next_failed: int = 0
    sentences: set[str] = field(default_factory=set)

    def count(self, question: Question, answer: Answer) -> None:
        """What the client of the killed request got."""
        self.kills += 1
        if answer.silent:
            self.silent += 1
        elif answer.tokens is None:
            self.errors += 1
            self.sentences.add(answer.error[:160])
        elif question.judge(answer.tokens) == "wrong":
            self.wrong += 1
        else:
            self.right += 1


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=30, help="kills of each kind")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds that a client waits")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if os.geteuid():
        sys.exit("error: killing connections of other processes takes root; run this as root")
    path = model.ensure()
    words = ("--model", str(path), "--dtype", "float32", "--max-model-len", "1100", "--kv-cache-mib", "512")
    config = UpConfig(
        prefill=(*words, "--rate", RATE),
        decode=words,
        port=0,
        prefills=2,
        decodes=2,
        timeout_s=options.timeout,
    )
    asked = prompts(AutoTokenizer.from_pretrained(path), LENGTHS)
    with running(config, lambda line: print(line, flush=True)) as up:
        tallies = asyncio.run(Attack(up, options).run(asked))
    rows = [
        {
            "killed": one.kind,
            "kills": one.kills,
            "right": one.right,
            "errors": one.errors,
            "wrong": one.wrong,
            "silent": one.silent,
            "next_failed": one.next_failed,
        }
        for one in tallies
    ]
    report.show(rows)
    for one in tallies:
        for sentence in sorted(one.sentences):
            print(f"{one.kind}: {sentence}")
    print(report.write("kills", rows))
    sys.exit(1 if any(one.wrong or one.silent or one.next_failed for one in tallies) else 0)


class Attack:
    """All rounds against one deployment."""

    def __init__(self, up: Running, options: argparse.Namespace) -> None:
        self._up = up
        self._options = options
        self._chance = random.Random(options.seed)
        self._tallies = {kind: Tally(kind) for kind in KINDS}
        self._usual_s = 5.0

    async def run(self, asked: list[list[int]]) -> list[Tally]:
        """A round kills an instance of each kind, and while they load again the router and connections."""
        async with httpx.AsyncClient(timeout=self._options.timeout, trust_env=False) as http:
            self._http = http
            self._questions = [await question(http, self._up, prompt) for prompt in asked]
            begun_s = time.monotonic()
            for one in self._questions:
                await self._must_answer(one)
            self._usual_s = (time.monotonic() - begun_s) / len(self._questions)
            for number in range(self._options.times):
                await self._all_up()
                for kind in ("prefill", "decode"):
                    victims = [p for p in self._up.processes if p.name.startswith(kind) and p.ended is None]
                    await self._round(kind, partial(self._kill, self._chance.choice(victims)))
                for process in self._up.processes:
                    if process.ended is not None:
                        process.start()
                await self._round("router", partial(self._kill, self._up.processes[-1]))
                for kind in ("anchor", "residual"):
                    await self._round(kind, partial(self._cut, kind))
                print(f"round {number + 1}/{self._options.times}: {self._in_words()}", flush=True)
        return list(self._tallies.values())

    async def _round(self, kind: str, kill: Callable[[], Awaitable[None]]) -> None:
        one = self._chance.choice(self._questions)
        tally = self._tallies[kind]
        asking = asyncio.create_task(
            ask(self._http, self._up, one.prompt, self._chance.random() < 0.5, self._options.timeout)
        )
        await asyncio.sleep(self._chance.uniform(0.0, self._usual_s) if kind not in DSCP else 0.0)
        await kill()
        tally.count(one, await asking)
        if kind == "router":
            self._up.processes[-1].start()
            await self._answers(self._up.router)
        after = await ask(self._http, self._up, one.prompt, False, self._options.timeout)
        if after.tokens is None or one.judge(after.tokens) == "wrong":
            tally.next_failed += 1
            print(f"after killing {kind}: {after}", flush=True)

    async def _kill(self, process: Process) -> None:
        """SIGKILL to the server or, as likely, to the engine below it; nothing of it may live on."""
        members = family(process.popen.pid)
        os.kill(self._chance.choice((members[0], members[-1])), signal.SIGKILL)
        deadline_s = time.monotonic() + 60.0
        while any(alive(pid) for pid in members) or process.ended is None:
            if time.monotonic() > deadline_s:
                sys.exit(f"error: {process.name} was killed but {[p for p in members if alive(p)]} live on")
            await asyncio.sleep(0.05)

    async def _cut(self, kind: str) -> None:
        """Shut down a decode instance's connection of one class at a random moment of its life."""
        deadline_s = time.monotonic() + self._usual_s * 4
        late_s = self._chance.uniform(0.0, 0.3)
        while time.monotonic() < deadline_s:
            for process in self._up.processes:
                if process.name.startswith("decode") and process.ended is None:
                    for pid in family(process.popen.pid):
                        if (found := connection(pid, DSCP[kind])) is not None:
                            await asyncio.sleep(late_s)
                            with found:
                                try:
                                    found.shutdown(socket.SHUT_RDWR)
                                except OSError:  # ended by itself meanwhile: a kill after the end
                                    return
                            return
            await asyncio.sleep(0.005)
        sys.exit(
            f"error: no {kind} connection was seen within {self._usual_s * 4:.0f} s; there was nothing to cut"
        )

    async def _must_answer(self, one: Question) -> None:
        answer = await ask(self._http, self._up, one.prompt, False, self._options.timeout)
        if answer.tokens is None or one.judge(answer.tokens) == "wrong":
            sys.exit(f"error: before any kill the answer is {answer}")

    async def _all_up(self) -> None:
        for url in (*self._up.prefill, *self._up.decode, self._up.router):
            await self._answers(url)
        deadline_s = time.monotonic() + START_S
        while True:
            instances = (await self._http.get(f"{self._up.router}/lynx/instances")).json()
            if all(instance["up"] for instance in instances):
                return
            if time.monotonic() > deadline_s:
                sys.exit(f"error: the router does not see all instances: {instances}")
            await asyncio.sleep(0.2)

    async def _answers(self, url: str) -> None:
        deadline_s = time.monotonic() + START_S
        while time.monotonic() < deadline_s:
            try:
                if (await self._http.get(f"{url}/health", timeout=5.0)).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            await asyncio.sleep(0.1)
        sys.exit(f"error: {url} did not come back within {START_S:.0f} s")

    def _in_words(self) -> str:
        return "; ".join(
            f"{t.kind} {t.right} right {t.errors} errors {t.wrong + t.silent + t.next_failed} faults"
            for t in self._tallies.values()
        )


def alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def connection(pid: int, tos: int) -> socket.socket | None:
    """A copy of a connected TCP socket of another process that is marked with ``tos``; pidfd_getfd(2)."""
    try:
        links = [(int(fd.name), str(fd.readlink())) for fd in Path(f"/proc/{pid}/fd").iterdir()]
        pidfd = os.pidfd_open(pid)
    except OSError:
        return None
    try:
        for number, target in links:
            if not target.startswith("socket:"):
                continue
            copy = ctypes.CDLL(None, use_errno=True).syscall(PIDFD_GETFD, pidfd, number, 0)
            if copy < 0:
                continue
            found = socket.socket(fileno=copy)
            try:
                if (
                    found.family == socket.AF_INET
                    and found.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) == tos
                ):
                    found.getpeername()
                    return found
            except OSError:
                pass
            found.close()
    finally:
        os.close(pidfd)
    return None


if __name__ == "__main__":
    main()
