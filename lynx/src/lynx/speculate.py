"""Which drafts stand. Pure; knows no engine and no clock."""

from collections.abc import Sequence

MAX_DRAFTS = 64
"""Drafts before the engine waits for the residual (arXiv 2607.01831)."""


def accepted_prefix(drafts: Sequence[int], verified: Sequence[int]) -> int:
    """Length of the longest common prefix: the drafts that greedy verification keeps (arXiv 2211.17192)."""
    pairs = zip(drafts, verified, strict=False)
    return next(
        (at for at, (draft, token) in enumerate(pairs) if draft != token), min(len(drafts), len(verified))
    )
