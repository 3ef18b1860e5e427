"""Two hundred requests, eight at a time, of 50 to 4,000 tokens: is every answer right, and what stays behind?

Prompts are drawn by seed from real texts; every third answer is streamed. After the last one, engines must be as they
were before: no cache block in use, no request known, as many threads and file descriptors (sockets among them).

    python bench/soak/run.py --requests 200 --at-once 8
"""

import argparse
import asyncio
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Coroutine, Mapping
from pathlib import Path

import httpx
from transformers import AutoTokenizer

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench import report
from bench.asking import ANSWER_TOKENS, Question, ask, family, prompts, question

from lynx import model
from lynx.serve.up import Running, UpConfig, running

METRICS = ("kv_cache_usage_perc", "num_requests_running", "num_requests_waiting")
"""Of an engine; all are 0 at rest."""

SETTLE_S = 30.0
"""Engines drop what they hold a step or a poll after the last answer."""

POOL_THREADS = 4
"""Thread pools of the servers start their last threads late; more than so many are a leak."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=200, help="how many in all")
    parser.add_argument("--at-once", type=int, default=8, help="how many in flight")
    parser.add_argument("--shortest", type=int, default=50, help="tokens of the shortest prompt")
    parser.add_argument("--longest", type=int, default=4000, help="tokens of the longest prompt")
    parser.add_argument("--different", type=int, default=20, help="different prompts")
    parser.add_argument("--link", type=int, default=200, help="Mbit/s between prefill and decode")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds that a client waits")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    path = model.ensure()
    words = (
        "--model",
        str(path),
        "--dtype",
        "float32",
        "--max-model-len",
        str(options.longest + ANSWER_TOKENS + 1),
    )
    config = UpConfig(
        prefill=words, decode=words, port=0, link_bps=options.link * 1_000_000, timeout_s=options.timeout
    )
    spread = (options.longest / options.shortest) ** (1 / (options.different - 1))
    lengths = [round(options.shortest * spread**i) for i in range(options.different)]
    asked = prompts(AutoTokenizer.from_pretrained(path), lengths)
    with running(config, lambda line: print(line, flush=True)) as up:
        row = asyncio.run(soak(up, asked, options))
    report.show([row])
    print(report.write("soak", [row]))
    sys.exit(0 if row["wrong"] == row["errors"] == 0 and not row["left_behind"] else 1)


async def soak(up: Running, asked: list[list[int]], options: argparse.Namespace) -> dict[str, object]:
    """Ask everything; the row of what came back."""
    limits = httpx.Limits(max_connections=options.at_once)
    async with httpx.AsyncClient(timeout=options.timeout, trust_env=False, limits=limits) as http:
        questions = []
        for number, prompt in enumerate(asked, start=1):
            questions.append(await question(http, up, prompt))
            print(f"right answer {number}/{len(asked)}: {len(prompt)} tokens", flush=True)
        chance = random.Random(options.seed)
        order = [chance.choice(questions) for _ in range(options.requests)]
        # After a quarter the pools of threads and connections are full; from then on nothing may be added.
        quarter = options.requests // 4
        begun_s = time.monotonic()
        verdicts = await asyncio.gather(*workers(http, up, order[:quarter], options))
        before = await settled(
            http, up, {f"{process.name} {name}": 0 for process in up.processes for name in METRICS}
        )
        verdicts += await asyncio.gather(*workers(http, up, order[quarter:], options))
        taken_s = time.monotonic() - begun_s
        counted = sum(verdicts, Counter[str]())
        after = await settled(http, up, before)
    grown = {name: after[name] - before[name] for name in before if after[name] > before[name]}
    threads = sum(by for name, by in grown.items() if name.endswith("threads"))
    left = {name: by for name, by in grown.items() if not name.endswith("threads")}
    if threads > POOL_THREADS:
        left["threads"] = threads
    return {
        "requests": counted.total(),
        "at_once": options.at_once,
        "tokens": f"{min(map(len, asked))}-{max(map(len, asked))}",
        "equal": counted["equal"],
        "ties": counted["tie"],
        "wrong": counted["wrong"],
        "errors": counted["error"],
        "threads_added": round(threads),
        "left_behind": " ".join(f"{name}: +{by:g}" for name, by in left.items()),
        "seconds": round(taken_s),
    }


def workers(
    http: httpx.AsyncClient, up: Running, order: list[Question], options: argparse.Namespace
) -> list[Coroutine[None, None, Counter[str]]]:
    """As many coroutines as requests in flight; each takes the next request until none is left."""
    numbered = iter(enumerate(order))

    async def work() -> Counter[str]:
        seen: Counter[str] = Counter()
        for number, one in numbered:
            answer = await ask(http, up, one.prompt, number % 3 == 0, options.timeout)
            verdict = "error" if answer.tokens is None else one.judge(answer.tokens)
            seen[verdict] += 1
            if verdict not in ("equal", "tie") or number % 20 == 0:
                print(
                    f"{number + 1}/{len(order)}: {len(one.prompt)} tokens, {verdict} {answer.error}",
                    flush=True,
                )
        return seen

    return [work() for _ in range(options.at_once)]


async def settled(http: httpx.AsyncClient, up: Running, goal: Mapping[str, float]) -> dict[str, float]:
    """What the engines hold, once it has come down to ``goal`` or does not come down any more."""
    deadline_s = time.monotonic() + SETTLE_S
    while True:
        held = await holdings(http, up)
        down = all(held[name] <= most for name, most in goal.items() if name in held)
        if down or time.monotonic() > deadline_s:
            return held
        await asyncio.sleep(0.5)


async def holdings(http: httpx.AsyncClient, up: Running) -> dict[str, float]:
    """Blocks and requests by the engines' own metrics, threads and descriptors by the kernel."""
    held: dict[str, float] = {}
    for url, process in zip((*up.prefill, *up.decode), up.processes, strict=False):
        text = (await http.get(f"{url}/metrics")).text
        for name in METRICS:
            found = re.search(rf"^vllm:{name}\{{\S* (\S+)", text, re.MULTILINE)
            held[f"{process.name} {name}"] = float(found[1]) if found else -1
        for pid in family(process.popen.pid):
            held[f"{process.name}.{pid} threads"] = len(list(Path(f"/proc/{pid}/task").iterdir()))
            held[f"{process.name}.{pid} descriptors"] = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return held


if __name__ == "__main__":
    main()
