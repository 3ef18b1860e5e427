"""Where the time of one request went, by stage: pure, from what decode recorded of it.

=============  ==============================================================================================
stage          from, to
=============  ==============================================================================================
quantise       spent in prefill's codec
exposed        transfer that the user waits for: decode begins to fetch, until the anchor's last byte is there
hidden         transfer behind drafting: from then on, until the residual's last byte is there
dequantise     spent in decode's codec
draft          anchor in the cache, until the last drafted token
verify         residual in the cache, until the first verified token
=============  ==============================================================================================
"""

from collections.abc import Mapping
from typing import Any

_NS = 1e9


def stages(request: Mapping[str, Any]) -> dict[str, Any]:
    """Seconds by stage (``<stage>_s``), ``bytes`` by plane, ``drafted`` and ``accepted`` counts.

    Args:
        request: one entry of ``requests`` in decode's ``/lynx/requests/{session}``; what it lacks is left out.
    """
    transfer = request.get("transfer") or {}
    drafts = request.get("draft_ns") or [None]
    verified = request.get("verified_ns") or [None]
    spans = {
        "exposed_s": _span(transfer.get("started_ns"), transfer.get("anchor_end_ns")),
        "hidden_s": _span(transfer.get("anchor_end_ns"), transfer.get("residual_end_ns")),
        "draft_s": _span(transfer.get("anchor_landed_ns"), drafts[-1]),
        "verify_s": _span(transfer.get("residual_landed_ns"), verified[0]),
        "quantise_s": _span(0, transfer.get("quantise_ns")),
        "dequantise_s": _span(0, transfer.get("dequantise_ns")),
    }
    planes = ("anchor", "residual", "exact")
    found: dict[str, Any] = {name: seconds for name, seconds in spans.items() if seconds is not None}
    found["bytes"] = {plane: transfer[f"{plane}_bytes"] for plane in planes if f"{plane}_bytes" in transfer}
    found["drafted"] = len(request.get("drafted") or ())
    found["accepted"] = request.get("accepted") or 0
    return found


def _span(begin_ns: int | None, end_ns: int | None) -> float | None:
    """Seconds between two times that are both known; 0 when the second came first."""
    if begin_ns is None or end_ns is None:
        return None
    return max(end_ns - begin_ns, 0) / _NS
