"""One HTML page of an evaluation: the table, and accepted drafts against bits on the wire. Stands alone."""

import html
import io
from collections.abc import Sequence

from matplotlib.figure import Figure

from lynx.evaluate.figures import COLUMNS, cell
from lynx.report import Row

_STYLE = "body{font:16px sans-serif;max-width:60em;margin:2em auto}td,th{padding:.2em .7em;text-align:right}"


def page(rows: Sequence[Row], title: str) -> str:
    """HTML with the picture as SVG inside; nothing is loaded from elsewhere."""
    heads = "".join(f"<th>{html.escape(head)}</th>" for head in COLUMNS.values())
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell(row[key]))}</td>" for key in COLUMNS) + "</tr>"
        for row in rows
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{_STYLE}</style><h1>{html.escape(title)}</h1>{_svg(rows)}"
        f"<table><tr>{heads}</tr>{body}</table></html>\n"
    )


def _svg(rows: Sequence[Row]) -> str:
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for row in rows:
        mean = row["accepted_mean"]
        low, high = min(row["accepted_p10"], mean), max(row["accepted_p90"], mean)
        axes.errorbar(row["anchor_bits"], mean, [[mean - low], [high - mean]], fmt="o", capsize=4)
        axes.annotate(row["codec"], (row["anchor_bits"], mean), xytext=(6, 6), textcoords="offset points")
    axes.set_xlabel("bits per element before decoding starts")
    axes.set_ylabel(
        f"drafts accepted of {rows[0]['drafts']} (mean, p10 to p90)" if rows else "drafts accepted"
    )
    axes.grid(alpha=0.3)
    image = io.StringIO()
    figure.savefig(image, format="svg")
    return image.getvalue().partition("<svg")[1] + image.getvalue().partition("<svg")[2]
