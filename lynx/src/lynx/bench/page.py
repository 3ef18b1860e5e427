"""One HTML page with everything in it: the table, the timeline of one request a mode, the time-to-token curves."""

import base64
import html
import io
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from lynx.bench.figures import Sample

COLOURS = {
    "anchor": "#1b6ca8",
    "residual": "#9cc5e3",
    "draft": "#f2b134",
    "verify": "#c8553d",
    "decode": "#6a994e",
}
COLUMNS = (
    ("mode", "mode", "{}"),
    ("ttft_drafted_s", "TTFT drafted", "{:.2f} s"),
    ("ttft_verified_s", "TTFT verified", "{:.2f} s"),
    ("tt32t_drafted_s", "TT32T drafted", "{:.2f} s"),
    ("tt32t_verified_s", "TT32T verified", "{:.2f} s"),
    ("tt64t_verified_s", "TT64T verified", "{:.2f} s"),
    ("anchor_bytes", "anchor", "{:.3s}"),
    ("wire_bytes", "wire", "{:.3s}"),
    ("accepted_mean", "accepted", "{:.1f}"),
    ("equal", "equal", "{}"),
    ("ties", "ties", "{}"),
)

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 66rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .3rem .8rem; text-align: right; border-bottom: 1px solid #ddd }
th:first-child, td:first-child { text-align: left }
small { color: #666 } img { max-width: 100% } pre { white-space: pre-wrap; background: #f6f6f6; padding: 1rem }
"""


def write_page(
    path: Path,
    rows: Sequence[Mapping[str, Any]],
    samples: Sequence[Sample],
    facts: Mapping[str, str],
    notes: str = "",
) -> None:
    """Write the page.

    Args:
        path: the file.
        rows: as in the JSON file.
        samples: every request, for the pictures.
        facts: what was measured on what: printed under the table.
        notes: what else there is to say (ties, answers), as plain text.
    """
    tokens = "".join(f"<li>{html.escape(name)}: {html.escape(value)}</li>" for name, value in facts.items())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f"<!doctype html><meta charset=utf-8><title>Lynx bench</title><style>{_STYLE}</style>"
        "<h1>Lynx: KV transfer, mode by mode</h1>"
        "<p>Seconds from the end of prefill to a token made by the decode instance, medians. <i>Drafted</i>: a draft "
        "that verification kept counts when it was drafted. <i>Verified</i>: what an ordinary client sees.</p>"
        f"{_table(rows)}<ul>{tokens}</ul>"
        f"<h2>One request, mode by mode</h2>{_image(_timeline(samples))}"
        f"<h2>Time to the k-th token</h2>{_image(_curves(samples))}"
        + (f"<h2>Notes</h2><pre>{html.escape(notes)}</pre>" if notes else "")
    )


def cell(name: str, form: str, value: object) -> str:
    """One figure of a row as text."""
    if value is None:
        return "-"
    if name.endswith("_bytes"):
        return f"{float(str(value)) / 1e6:.1f} MB"
    return form.format(value)


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    head = "".join(f"<th>{title}</th>" for _, title, _ in COLUMNS)
    body = "".join(
        "<tr>" + "".join(f"<td>{_with_range(row, name, form)}</td>" for name, _, form in COLUMNS) + "</tr>"
        for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def _with_range(row: Mapping[str, Any], name: str, form: str) -> str:
    text = html.escape(cell(name, form, row[name]))
    low, high = row.get(f"{name}_min"), row.get(f"{name}_max")
    return text if low is None or high is None else f"{text}<br><small>{low:.2f} to {high:.2f}</small>"


def _image(figure: Any) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", bbox_inches="tight")
    plt.close(figure)
    return f'<img src="data:image/svg+xml;base64,{base64.b64encode(buffer.getvalue()).decode()}">'


def _timeline(samples: Sequence[Sample]) -> Any:
    """Per mode a network row and a compute row, of the request with the median verified time."""
    typical = [
        _typical([s for s in samples if s.mode == mode]) for mode in dict.fromkeys(s.mode for s in samples)
    ]
    figure, axis = plt.subplots(figsize=(11, 0.9 * len(typical) + 1.2))
    labels = []
    for place, one in enumerate(typical):
        for name, begin, end in one.phases:
            network = name in ("anchor", "residual")
            y = -(2.4 * place + (0 if network else 1))
            axis.barh(y, max(end - begin, 0.002), left=begin, height=0.85, color=COLOURS[name])
        for at in one.verified_s:
            axis.plot([at, at], [-(2.4 * place + 1.42), -(2.4 * place + 0.58)], color="black", linewidth=0.4)
        labels += [(-(2.4 * place), f"{one.mode}: network"), (-(2.4 * place + 1), "compute")]
    axis.set_yticks([y for y, _ in labels], [text for _, text in labels])
    axis.set_xlabel("seconds from the end of prefill; thin lines: verified tokens")
    handles = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in COLOURS.values()]
    axis.legend(handles, list(COLOURS), ncols=5, loc="lower right", bbox_to_anchor=(1, 1.0), frameon=False)
    return figure


def _curves(samples: Sequence[Sample]) -> Any:
    figure, axis = plt.subplots(figsize=(11, 5))
    for number, mode in enumerate(dict.fromkeys(s.mode for s in samples)):
        mine = [s for s in samples if s.mode == mode]
        length = min(len(s.verified_s) for s in mine)
        counts = range(1, length + 1)
        colour = f"C{number}"
        verified = [statistics.median(s.verified_s[k] for s in mine) for k in range(length)]
        drafted = [statistics.median(s.drafted_s[k] for s in mine) for k in range(length)]
        axis.plot(counts, verified, color=colour, label=mode)
        if drafted != verified:
            axis.plot(counts, drafted, color=colour, linestyle=":", label=f"{mode}, drafted")
    axis.set_xlabel("token")
    axis.set_ylabel("seconds from the end of prefill")
    axis.legend(frameon=False)
    axis.grid(alpha=0.3)
    return figure


def _typical(samples: list[Sample]) -> Sample:
    ordered = sorted(samples, key=lambda s: s.verified_s[-1] if s.verified_s else 0.0)
    return ordered[len(ordered) // 2]
