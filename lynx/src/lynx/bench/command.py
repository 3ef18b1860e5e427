"""``lynx bench`` and ``lynx demo`` as functions of their options: print progress, a table, and where the page is."""

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from lynx import model as models
from lynx import report
from lynx.bench.compare import Parted
from lynx.bench.modes import MODES, by_names
from lynx.bench.page import COLUMNS, cell, write_page
from lynx.bench.run import Outcome, Settings, bench
from lynx.serve.host import this_dtype
from lynx.serve.link import parse_rate

ModelName = Annotated[
    str, typer.Option("--model", help="Default model, a Hugging Face directory, or owner/name.")
]
JsonFile = Annotated[Path, typer.Option("--json", help="Where the rows go.")]
PageFile = Annotated[
    Path | None, typer.Option("--page", help="Where the page goes; default: beside the rows.")
]


def bench_command(
    model: ModelName = models.DEFAULT_MODEL,
    link: Annotated[str, typer.Option(help="Rate of the link between prefill and decode.")] = "200mbit",
    mode: Annotated[list[str] | None, typer.Option(help="A mode; may be repeated. Default: all.")] = None,
    prompts: Annotated[int, typer.Option(help="Different prompts.", min=1)] = 3,
    tokens: Annotated[int, typer.Option(help="Length of a prompt.", min=300)] = 3900,
    answer_tokens: Annotated[int, typer.Option(help="Length of an answer.", min=1)] = 64,
    repetitions: Annotated[int, typer.Option(help="How often everything is asked.", min=1)] = 2,
    dtype: Annotated[str, typer.Option(help="Arithmetic; auto takes the machine's fastest.")] = "auto",
    json_file: JsonFile = Path("build/bench/lynx.json"),
    page: PageFile = None,
) -> None:
    """Compare every mode over the same prompts and the same shaped link.

    Examples: `lynx bench`, `lynx bench --mode int8 --mode lynx --prompts 5`, `lynx bench --link 1gbit --json out.json`
    """
    settings = Settings(
        model=models.ensure(model),
        modes=by_names(mode) if mode else MODES,
        prompts=prompts,
        tokens=tokens,
        answer_tokens=answer_tokens,
        repetitions=repetitions,
        link_bps=parse_rate(link),
        dtype=this_dtype() if dtype == "auto" else dtype,
    )
    _run(settings, json_file, page or json_file.with_suffix(".html"))


def demo_command() -> None:
    """What `make demo` runs: real questions about real long texts over a 200 Mbit/s link, mode by mode.

    Examples: `lynx demo`
    """
    settings = Settings(
        model=models.ensure(models.DEFAULT_MODEL),
        modes=MODES,
        prompts=3,
        tokens=3900,
        answer_tokens=64,
        repetitions=1,
        link_bps=200_000_000,
        dtype=this_dtype(),
    )
    print(
        "A prefill and a decode instance of one model, 200 Mbit/s between them, and questions about long texts.\n"
        "Each mode moves the same KV cache in its own way; lynx starts to answer before all of it is there.\n"
    )
    outcome = _run(settings, Path("build/demo/bench.json"), Path("build/demo/bench.html"))
    for prompt, answer in outcome.answers:
        print(f"\n{prompt.title}: {prompt.question}\n  {' '.join(answer.split())[:300]} ..")


def _run(settings: Settings, json_file: Path, page: Path) -> Outcome:
    say = _teller()
    outcome = bench(settings, say)
    facts = {
        "model": settings.model.name,
        "arithmetic": settings.dtype,
        "prompts": f"{settings.prompts} of {settings.tokens} tokens, {settings.repetitions} times",
        "link": outcome.shaping,
        "machine": ", ".join(f"{name} {value}" for name, value in report.machine().items()),
        "commit": report.commit(),
    }
    report.write(json_file, outcome.rows, settings=facts)
    notes = "\n".join([*map(_parting, outcome.parted), *(f"{p.question}\n{a}" for p, a in outcome.answers)])
    write_page(page, outcome.rows, outcome.samples, facts, notes)
    lines = [*_table(outcome.rows), *_ratios(outcome.rows), *map(_parting, outcome.parted)]
    print("\n".join(["", *lines, "", f"rows: {json_file}", f"page: {page}"]))
    return outcome


def _teller() -> Callable[[str], None]:
    begun_s = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - begun_s:6.1f} s  {line}", file=sys.stderr, flush=True)

    return say


def _table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    cells = [[title for _, title, _ in COLUMNS]]
    cells += [[cell(name, form, row[name]) for name, _, form in COLUMNS] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip()
        for line in cells
    ]


def _ratios(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """How much sooner lynx is than int8, where both were run."""
    named = {row["mode"]: row for row in rows}
    if not {"lynx", "int8"} <= named.keys():
        return []
    lines = [""]
    for name, title in (("ttft_drafted_s", "TTFT drafted"), ("tt32t_verified_s", "TT32T verified")):
        ours, theirs = named["lynx"][name], named["int8"][name]
        if ours and theirs:
            lines.append(f"{title}: lynx is {theirs / ours:.2f} times faster than int8")
    return lines


def _parting(found: tuple[str, int, Parted]) -> str:
    mode, prompt, parted = found
    kind = "tie" if parted.tie else "DIFFERENT"
    return (
        f"{kind}: {mode}, prompt {prompt + 1}, token {parted.at + 1}: {parted.mine} (log-probability "
        f"{json.dumps(parted.mine_logprob)}) against {parted.theirs} ({json.dumps(parted.theirs_logprob)})"
    )
