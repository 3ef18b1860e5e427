"""The JSON that every measurement writes, schema 1: where it was measured, of which commit, and the rows.

``{"schema": 1, "machine": {..}, "commit": "..", "rows": [{..}, ..]}``. Rows of one file have the same fields;
times end in ``_s`` (seconds), sizes in ``_bytes``, and a figure's spread stands beside it under the same name
with ``_p10`` and ``_p90``. A field is added without a new schema number; it changes its meaning only with one.
"""

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lynx import __version__
from lynx.errors import BadInput

SCHEMA = 1

Row = dict[str, Any]
"""One line of the table: field name to number or text."""


def machine() -> dict[str, Any]:
    """What a reader needs to judge a time: processor, cores that this process may use, memory, kernel, Python."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": memory,
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def commit() -> str:
    """The git commit that this package runs from, ``+`` behind it when files differ; else its version."""
    here = Path(__file__).parent

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            return None
        return done.stdout.strip()

    head = git("rev-parse", "HEAD")
    if head is None:
        return f"lynx-kv {__version__}"
    return head + ("+" if git("status", "--porcelain", "--untracked-files=no", ".") else "")


def write(path: Path, rows: Sequence[Row], **more: Any) -> None:
    """Write ``rows`` and where they were measured to ``path``.

    Args:
        path: overwritten; its folder is made.
        rows: the table.
        more: further top-level fields, such as the settings of the run.

    Raises:
        BadInput: ``path`` cannot be written.
    """
    document = {"schema": SCHEMA, "machine": machine(), "commit": commit(), **more, "rows": list(rows)}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{path} cannot be written ({error.strerror}); name another file") from None


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
