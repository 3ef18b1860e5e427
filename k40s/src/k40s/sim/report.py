"""What a simulation came to: rows, text, pictures. The only part of the simulator that writes files."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from k40s.api.level import Level
from k40s.sim.engine import Outcome

HOUR_NS = 3600 * 10**9


def rows(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """One row for each scorer."""
    return [
        {
            "scorer": outcome.scorer,
            "offered": outcome.offered.total(),
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
    data.write_text(json.dumps({"rows": rows(outcomes)}, indent=1) + "\n", encoding="utf-8")
    draw(outcomes, picture)
    return data, picture


def draw(outcomes: Sequence[Outcome], path: Path) -> None:
    """Acceptance, running and waiting jobs, assurance, misses, outages and actions over time."""
    import matplotlib as mpl  # slow to load, and only pictures need it

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(3, 2, figsize=(12, 10), sharex=False)
    titles = (
        "acceptance",
        "jobs waiting",
        "mean assurance",
        "deadline misses so far",
        "seconds out so far (HI, LO)",
        "orders so far",
    )
    for axis, title in zip(axes.flat, titles, strict=True):
        axis.set_title(title, fontsize=10)
    for outcome in outcomes:
        hours = [sample.at_ns / HOUR_NS for sample in outcome.samples]
        (line,) = axes[0, 1].plot(
            hours, [sum(s.waiting.values()) for s in outcome.samples], label=outcome.scorer
        )
        colour = line.get_color()
        axes[1, 0].plot(hours, [s.assurance_mean for s in outcome.samples], color=colour)
        axes[1, 1].plot(hours, [s.misses for s in outcome.samples], color=colour)
        axes[2, 0].plot(hours, [s.outage_s["HI"] for s in outcome.samples], color=colour)
        axes[2, 0].plot(hours, [s.outage_s["LO"] for s in outcome.samples], color=colour, linestyle="--")
        axes[2, 1].plot(hours, [sum(s.actions.values()) for s in outcome.samples], color=colour)
    names = ["all", *(level.name for level in Level)]
    width = 0.8 / max(1, len(outcomes))
    for place, row in enumerate(rows(outcomes)):
        heights = [row["acceptance"], *(row[f"acceptance_{level}"] for level in Level)]
        axes[0, 0].bar([at + place * width for at in range(len(names))], heights, width)
    axes[0, 0].set_xticks([at + 0.4 - width / 2 for at in range(len(names))], names)
    axes[0, 1].legend(fontsize=8)
    for axis in axes.flat[1:]:
        axis.set_xlabel("hours", fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
