"""Which drafts verification keeps: the longest prefix that the full-level model would have written itself."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verified:
    """What a verification leaves.

    Args:
        accepted: drafts kept.
        correction: the token behind them, which the same forward pass yields.
    """

    accepted: int
    correction: int


def accepted_prefix(drafts: Sequence[int], verified: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    pairs = zip(drafts, verified, strict=False)
    return next(
        (at for at, (draft, token) in enumerate(pairs) if draft != token), min(len(drafts), len(verified))
    )


def verify_greedy(drafts: Sequence[int], verified: Sequence[int]) -> Verified:
    """Greedy verification (arXiv 2211.17192 at temperature 0).

    Args:
        drafts: ``k`` token ids.
        verified: ``k + 1`` ids: entry ``i`` is the model's choice after the context and ``drafts[:i]``.

    Raises:
        ValueError: the lengths do not fit, which is a fault of the caller.
    """
    if len(verified) != len(drafts) + 1:
        raise ValueError(f"{len(drafts)} drafts need {len(drafts) + 1} verified tokens, not {len(verified)}")
    accepted = accepted_prefix(drafts, verified)
    return Verified(accepted, verified[accepted])
