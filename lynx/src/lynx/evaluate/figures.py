"""From samples to the rows that are printed: pure."""

import statistics
from collections.abc import Sequence
from typing import Any

from lynx.evaluate.measure import Sample
from lynx.report import Row

COLUMNS: dict[str, str] = {
    "codec": "codec",
    "anchor_bits": "anchor bits",
    "total_bits": "total bits",
    "accepted_mean": "accepted",
    "accepted_p10": "p10",
    "accepted_p90": "p90",
    "accepted_exact_mean": "of exact",
    "full_exact_mean": "full of exact",
    "vnmse": "vNMSE",
    "kl": "KL",
}
"""What the table shows, and the heading of each column."""


def row(codec: str, samples: Sequence[Sample], **settings: Any) -> Row:
    """One codec's row.

    ``anchor_bits``, ``total_bits``: bits per element, payloads, scales and page headers counted. ``accepted``:
    drafts on the anchor that verification keeps, which is what the codec's own full level confirms; a codec
    with one plane has no other level and is held against exact KV. ``accepted_exact_mean``: the same against
    exact KV for every codec. ``full_exact_mean``: how far the full level itself follows exact KV. ``vnmse``,
    ``kl``: of the anchor; ``vnmse_full``, ``kl_full``: of the full level.
    """
    kept = [sample.kept for sample in samples]
    return {
        "codec": codec,
        "anchor_bits": _mean([sample.anchor.bits for sample in samples]),
        "total_bits": _mean([sample.full.bits for sample in samples]),
        "accepted_mean": _mean(kept),
        "accepted_median": statistics.median(kept),
        "accepted_p10": quantile(kept, 0.1),
        "accepted_p90": quantile(kept, 0.9),
        "accepted_exact_mean": _mean([sample.anchor.accepted for sample in samples]),
        "full_exact_mean": _mean([sample.full.accepted for sample in samples]),
        "vnmse": _mean([sample.anchor.vnmse for sample in samples]),
        "vnmse_full": _mean([sample.full.vnmse for sample in samples]),
        "kl": _mean([sample.anchor.kl for sample in samples]),
        "kl_full": _mean([sample.full.kl for sample in samples]),
        "accepted": kept,
        **settings,
    }


def quantile(values: Sequence[float], share: float) -> float:
    """Linear between the two nearest of the sorted values."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def cell(value: Any) -> str:
    """A figure as the table shows it: four digits, or text as it is."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def table(rows: Sequence[Row]) -> str:
    """Rows as aligned text under their headings."""
    lines = [list(COLUMNS.values()), *([cell(row[key]) for key in COLUMNS] for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(COLUMNS))]
    return "\n".join(
        "  ".join(text.rjust(width) if at else text.ljust(width) for at, (text, width) in enumerate(pairs))
        for pairs in (list(zip(line, widths, strict=True)) for line in lines)
    )


def _mean(values: Sequence[float]) -> float:
    return float(statistics.fmean(values))
