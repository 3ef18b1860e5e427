"""From what one request recorded to the figures that are printed: pure.

All times are seconds from the end of prefill to a token that the *decode instance* made; a first token shipped by
prefill helps every mode alike and is left out. *Drafted*: a draft that verification kept counts when it was
drafted. *Verified*: when it was verified, which is what an ordinary client sees.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

NS = 1_000_000_000
COUNTED_TOKENS = (1, 32, 64)
"""Which tokens' times are printed."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One request of one mode.

    Args:
        mode: name of the mode.
        prompt: index of the prompt.
        token_ids: the answer.
        drafted_s: for each token of the answer, when it was first there.
        verified_s: for each token of the answer, when it was verified.
        accepted: drafts kept.
        drafted: drafts made.
        anchor_bytes: on the wire in the Anchor stream, framing included.
        wire_bytes: on the wire in all.
        phases: named spans ``(name, begin_s, end_s)`` for the timeline.
    """

    mode: str
    prompt: int
    token_ids: tuple[int, ...]
    drafted_s: tuple[float, ...]
    verified_s: tuple[float, ...]
    accepted: int
    drafted: int
    anchor_bytes: int
    wire_bytes: int
    phases: tuple[tuple[str, float, float], ...]


def sample(mode: str, prompt: int, prefill_end_ns: int, request: dict[str, Any]) -> Sample:
    """One request's record (``/lynx/requests``) as a sample.

    Args:
        mode: name of the mode.
        prompt: index of the prompt.
        prefill_end_ns: CLOCK_MONOTONIC when prefill had answered.
        request: decode's record of the prompt.
    """

    def since(ns: int) -> float:
        return (ns - prefill_end_ns) / NS

    verified_s = [since(ns) for ns in request["verified_ns"]]
    kept_s = [since(ns) for ns in request["draft_ns"][: request["accepted"]]]
    drafted_s = [min(pair) for pair in zip(kept_s, verified_s, strict=False)] + verified_s[len(kept_s) :]
    transfer = request["transfer"]
    phases = [
        (name, since(transfer[begin]), since(transfer[end]))
        for name, begin, end in (
            ("anchor", "anchor_first_ns", "anchor_end_ns"),
            ("residual", "residual_first_ns", "residual_end_ns"),
        )
        if transfer.get(begin) and transfer.get(end)
    ]
    if request["draft_ns"]:
        phases.append(
            ("draft", since(transfer.get("anchor_end_ns", prefill_end_ns)), since(request["draft_ns"][-1]))
        )
    arrival_s = max((end for name, _, end in phases if name != "draft"), default=0.0)
    if verified_s:
        phases.append(("verify", arrival_s, verified_s[min(len(kept_s), len(verified_s) - 1)]))
        phases.append(("decode", verified_s[min(len(kept_s), len(verified_s) - 1)], verified_s[-1]))
    anchor_bytes = int(transfer.get("anchor_bytes", 0))
    return Sample(
        mode=mode,
        prompt=prompt,
        token_ids=tuple(request["verified"]),
        drafted_s=tuple(drafted_s),
        verified_s=tuple(verified_s),
        accepted=request["accepted"],
        drafted=len(request["drafted"]),
        anchor_bytes=anchor_bytes,
        wire_bytes=anchor_bytes + int(transfer.get("residual_bytes", 0)),
        phases=tuple(phases),
    )


@dataclass(frozen=True, slots=True)
class Equality:
    """How a mode's answers compare with those of plain decoding on the same KV.

    Args:
        equal: answers that are the same, token for token.
        ties: answers that part where both tokens have the same logit to the arithmetic's precision.
        different: answers that part elsewhere.
    """

    equal: int
    ties: int
    different: int


def row(mode: str, samples: Sequence[Sample], equality: Equality | None) -> dict[str, Any]:
    """Medians of one mode, with the spread (lowest and highest) beside them.

    Args:
        mode: name of the mode.
        samples: all of its requests.
        equality: against plain decoding; ``None`` for a mode that does not draft, which is its own reference.
    """
    figures: dict[str, Any] = {
        "mode": mode,
        "requests": len(samples),
        "prompts": len({s.prompt for s in samples}),
    }
    for token in COUNTED_TOKENS:
        name = "ttft" if token == 1 else f"tt{token}t"
        for kind in ("drafted", "verified"):
            values = [times[token - 1] for times in (_times(s, kind) for s in samples) if len(times) >= token]
            figures |= _with_spread(f"{name}_{kind}_s", values)
    figures["wire_bytes"] = round(statistics.median(s.wire_bytes for s in samples))
    figures["anchor_bytes"] = round(statistics.median(s.anchor_bytes for s in samples))
    figures["accepted_mean"] = statistics.fmean(s.accepted for s in samples)
    figures["drafted_mean"] = statistics.fmean(s.drafted for s in samples)
    figures["equal"] = None if equality is None else equality.equal
    figures["ties"] = None if equality is None else equality.ties
    figures["different"] = None if equality is None else equality.different
    return figures


def _times(of: Sample, kind: str) -> tuple[float, ...]:
    return of.drafted_s if kind == "drafted" else of.verified_s


def _with_spread(name: str, values: list[float]) -> dict[str, float | None]:
    if not values:
        return {name: None, f"{name}_min": None, f"{name}_max": None}
    return {name: statistics.median(values), f"{name}_min": min(values), f"{name}_max": max(values)}
