"""How every bench writes what it found: build/bench/NAME.json with machine and commit, and a picture beside it.

Knows no bench. Schema 1: {"schema", "name", "machine", "commit", "rows", "picture"}.
"""

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "bench"


def write(name: str, rows: Sequence[Mapping[str, object]], picture: Path | None = None) -> Path:
    """Write the rows of one bench; returns the path of the JSON. `picture` is a file already drawn, if any."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    text = {
        "schema": 1,
        "name": name,
        "machine": machine(),
        "commit": commit(),
        "rows": list(rows),
        "picture": picture.name if picture else "",
    }
    path = FOLDER / f"{name}.json"
    path.write_text(json.dumps(text, indent=1) + "\n")
    return path


def show(rows: Sequence[Mapping[str, object]]) -> None:
    """Print rows of one kind as a table."""
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    Console().print(table)


def machine() -> str:
    """Processor, number of its CPUs that may be used, kernel."""
    named = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    processor = named[0] if named else platform.machine()
    return f"{processor}, {len(os.sched_getaffinity(0))} CPUs, Linux {platform.release()}"


def commit() -> str:
    """The commit checked out, with "+" after it when tracked files differ from it."""
    head = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if head.returncode:
        return "unknown"
    changed = subprocess.run(["git", "diff", "--quiet", "HEAD"], cwd=ROOT, check=False).returncode
    return head.stdout.strip() + ("+" if changed else "")
