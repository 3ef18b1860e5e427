"""The picture of the assurance experiment: how long responses took, and when, beside what k4.0s did meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COLOURS: Mapping[str, str] = {
    "plain": "#d1495b",
    "rt-blind": "#edae49",
    "no-reaction": "#8d96a3",
    "k40s": "#00798c",
}
BIN_S = 0.1
MANY = 12


@dataclass(frozen=True, slots=True)
class Curve:
    """One loop in one mode: all responses, and (release, response) of its last turn, in seconds since it began."""

    mode: str
    loop: str
    deadline_s: float
    missed: float
    """Part of periods, with those that were skipped."""
    responses_s: Sequence[float]
    last_turn_s: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that k4.0s did, in seconds since the turn began."""

    at_s: float
    words: str


def draw(path: Path, curves: Sequence[Curve], marks: Sequence[Mark], title: str) -> None:
    """Tails of each loop above, the tightest loop over time below."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    loops = sorted({curve.loop: curve.deadline_s for curve in curves}.items(), key=lambda pair: pair[1])
    figure = pyplot.figure(figsize=(11, 8), layout="constrained")
    grid = figure.add_gridspec(2, len(loops), height_ratios=(1, 1.1))
    for column, (loop, deadline_s) in enumerate(loops):
        axis = figure.add_subplot(grid[0, column])
        _tails(axis, [curve for curve in curves if curve.loop == loop], deadline_s)
        axis.set_title(f"{loop}: HI loop, every {deadline_s * 1000:g} ms", loc="left", fontsize=10)
    _over_time(
        figure.add_subplot(grid[1, :]), [curve for curve in curves if curve.loop == loops[0][0]], marks
    )
    figure.suptitle(title, fontsize=11)
    figure.savefig(path, dpi=130)


def _tails(axis: Any, curves: Sequence[Curve], deadline_s: float) -> None:
    for curve in curves:
        ordered = sorted(curve.responses_s)
        count = len(ordered)
        axis.step(
            [1000 * response_s for response_s in ordered],
            [(count - index) / count for index in range(count)],
            color=COLOURS[curve.mode],
            label=f"{curve.mode}: {100 * curve.missed:.2g} % missed",
        )
    axis.axvspan(1000 * deadline_s, 2000, color="black", alpha=0.06, linewidth=0)
    axis.axvline(1000 * deadline_s, color="black", linewidth=0.8, label="deadline")
    axis.set(xscale="log", yscale="log", xlim=(0.2, 2000), ylim=(5e-5, 1.1))
    axis.set(xlabel="response time, ms", ylabel="part of periods that took longer")
    axis.legend(fontsize=8, loc="lower left", frameon=False)
    _plain(axis)


def _over_time(axis: Any, curves: Sequence[Curve], marks: Sequence[Mark]) -> None:
    """Worst response of each tenth of a second; what k4.0s did, as numbered lines."""
    for curve in curves:
        bins: dict[int, float] = {}
        for release_s, response_s in curve.last_turn_s:
            place = int(release_s / BIN_S)
            bins[place] = max(bins.get(place, 0.0), response_s)
        at_s, worst_ms = (
            [place * BIN_S for place in sorted(bins)],
            [1000 * bins[place] for place in sorted(bins)],
        )
        axis.plot(at_s, worst_ms, color=COLOURS[curve.mode], linewidth=1, label=curve.mode)
    axis.axhline(1000 * curves[0].deadline_s, color="black", linewidth=0.8)
    top = axis.get_ylim()[1]
    shown = marks[:MANY]
    for number, mark in enumerate(shown, 1):
        axis.axvline(mark.at_s, color=COLOURS["k40s"], linewidth=0.8, linestyle=":")
        axis.annotate(
            str(number), (mark.at_s, top), fontsize=7, color=COLOURS["k40s"], ha="center", va="bottom"
        )
    axis.set(yscale="log", xlabel="seconds of the last turn", ylabel="worst response in 0.1 s, ms")
    axis.set_title(f"{curves[0].loop} over time, one turn of each mode", loc="left", fontsize=10)
    axis.legend(fontsize=8, loc="upper right", frameon=False, ncols=4)
    words = "\n".join(f"{number}  {mark.at_s:5.1f} s  {mark.words}" for number, mark in enumerate(shown, 1))
    axis.text(0, -0.2, words, transform=axis.transAxes, va="top", fontsize=7, family="monospace")
    _plain(axis)


def _plain(axis: Any) -> None:
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.2, linewidth=0.5)
