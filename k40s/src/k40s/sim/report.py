"""What a simulation came to: rows, text, pictures. The only part of the simulator that writes files."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from k40s.api.level import Level
from k40s.sim.outcome import Outcome, Sample
from k40s.sim.scenario import HOUR_NS


def rows(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """One row for each scorer."""
    return [
        {
            "scorer": outcome.scorer,
            "offered": outcome.offered.total(),
            "accepted": outcome.accepted.total(),
            "acceptance": _share(outcome.accepted.total(), outcome.offered.total()),
            **{
                f"acceptance_{level}": _share(outcome.accepted[level.name], outcome.offered[level.name])
                for level in Level
            },
            "misses": dict(outcome.misses),
            "outage_s": {level.name: round(outcome.outage_ns[level.name] / 1e9, 3) for level in Level},
            "outages_beyond_promise": outcome.outages_beyond_promise,
            "actions": dict(sorted(outcome.actions.items())),
        }
        for outcome in outcomes
    ]


def _share(part: int, whole: int) -> float:
    return round(part / whole, 4) if whole else 1.0


def text(outcomes: Sequence[Outcome]) -> str:
    """For people, a paragraph for each scorer."""
    lines = []
    for row in rows(outcomes):
        levels = ", ".join(f"{level} {row[f'acceptance_{level}']:.1%}" for level in reversed(Level))
        lines += [
            f"{row['scorer']}: {row['acceptance']:.1%} of {row['offered']} jobs placed at once ({levels})",
            f"  deadline misses {_words(row['misses'])}; seconds out {_words(row['outage_s'])}; "
            f"{row['outages_beyond_promise']} outages longer than promised",
            f"  actions {_words(row['actions'])}",
        ]
    return "\n".join(lines)


def _words(counts: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {count:g}" for name, count in counts.items()) or "none"


def write(outcomes: Sequence[Outcome], folder: Path) -> tuple[Path, Path]:
    """Writes `simulation.json` and `simulation.png` into the folder; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    data, picture = folder / "simulation.json", folder / "simulation.png"
    samples = {outcome.scorer: [asdict(sample) for sample in outcome.samples] for outcome in outcomes}
    data.write_text(json.dumps({"rows": rows(outcomes), "samples": samples}) + "\n", encoding="utf-8")
    draw(outcomes, picture)
    return data, picture


Curve = tuple[str, Callable[[Sample], float], str]
"""Words for the legend, the value at a time, the style of the line."""

PANELS: Sequence[tuple[str, Sequence[Curve]]] = (
    ("share of jobs placed at once, so far", (("", lambda s: s.accepted / max(1, s.offered), "-"),)),
    ("jobs waiting", (("", lambda s: sum(s.waiting.values()), "-"),)),
    ("mean assurance", (("", lambda s: s.assurance_mean, "-"),)),
    (
        "nodes of assurance HI, LO",
        (("HI", lambda s: s.node_levels["HI"], "-"), ("LO", lambda s: s.node_levels["LO"], "--")),
    ),
    ("deadline misses so far", (("", lambda s: s.misses, "-"),)),
    (
        "seconds out so far: HI, LO",
        (("HI", lambda s: s.outage_s["HI"], "-"), ("LO", lambda s: s.outage_s["LO"], "--")),
    ),
    ("orders of the ladder so far", (("", lambda s: sum(s.actions.values()), "-"),)),
)


def draw(outcomes: Sequence[Outcome], path: Path) -> None:
    """Acceptance by criticality; then over time: acceptance, waiting jobs, assurance, misses, outages, orders."""
    import matplotlib as mpl  # slow to load, and only pictures need it

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(4, 2, figsize=(12, 13))
    colours = [f"C{number}" for number in range(len(outcomes))]
    _bars(axes.flat[0], outcomes, colours)
    for axis, (title, curves) in zip(axes.flat[1:], PANELS, strict=True):
        for outcome, colour in zip(outcomes, colours, strict=True):
            hours = [sample.at_ns / HOUR_NS for sample in outcome.samples]
            for _, value, style in curves:
                axis.plot(hours, [value(sample) for sample in outcome.samples], style, color=colour)
        for words, _, style in curves:
            if words:
                axis.plot([], [], style, color="grey", label=words)
                axis.legend(fontsize=8)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("hours", fontsize=8)
        axis.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _bars(axis: Any, outcomes: Sequence[Outcome], colours: Sequence[str]) -> None:
    names = ["all", *(level.name for level in reversed(Level))]
    width = 0.8 / max(1, len(outcomes))
    for place, (row, colour) in enumerate(zip(rows(outcomes), colours, strict=True)):
        heights = [row["acceptance"], *(row[f"acceptance_{level}"] for level in reversed(Level))]
        at = [number + place * width for number in range(len(names))]
        axis.bar(at, heights, width, color=colour, label=row["scorer"])
    axis.set_xticks([number + 0.4 - width / 2 for number in range(len(names))], names)
    axis.set_title("share of jobs placed at once, by criticality", fontsize=10)
    axis.set_ylim(0, 1.05)
    axis.legend(fontsize=8, loc="lower right")
