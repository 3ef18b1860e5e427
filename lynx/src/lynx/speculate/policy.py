"""When to draft, when to stop, and whether drafting pays: pure arithmetic over what the caller measured.

Lynx drafts while the residual is on its way, so drafting costs nothing that is not idle, except the wire: an
anchor and its residual together may be larger than the plain 8-bit cache they stand in for, and the draft's
verification is one more forward pass. Both are weighed here.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

MAX_DRAFTS = 64
"""Drafts before the engine waits for the residual (arXiv 2607.01831)."""


@dataclass(frozen=True, slots=True)
class Continue:
    """Draft one more token."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Draft no more.

    Args:
        reason: ``arrived`` the residual is in; ``ended`` the draft wrote a stop token; ``limit`` as many drafts
            as one verification takes; ``lost`` the residual will not come.
    """

    reason: Literal["arrived", "ended", "limit", "lost"]


def next_step(
    drafts: Sequence[int],
    *,
    residual: Literal["coming", "arrived", "lost"],
    stop_tokens: Collection[int] = (),
    max_drafts: int = MAX_DRAFTS,
) -> Continue | Stop:
    """Whether to draft another token; the caller asks before each one.

    Args:
        drafts: tokens drafted so far.
        residual: state of the residual stream.
        stop_tokens: ids that end an answer.
        max_drafts: the lesser of `MAX_DRAFTS` and the tokens that the request may still have.
    """
    if residual != "coming":
        return Stop(residual)
    if drafts and drafts[-1] in stop_tokens:
        return Stop("ended")
    if len(drafts) >= max_drafts:
        return Stop("limit")
    return Continue()


@dataclass(frozen=True, slots=True)
class Link:
    """What a transfer and a token cost.

    Args:
        rate_bps: bits per second that one request gets, above 0.
        anchor_bytes: Anchor stream.
        residual_bytes: Residual stream.
        plain_bytes: the cache sent the plain way, usually as ``int8``.
        token_s: one decoded token, drafted or not.
        verify_s: the verifying forward pass beyond an ordinary token's.
    """

    rate_bps: float
    anchor_bytes: int
    residual_bytes: int
    plain_bytes: int
    token_s: float
    verify_s: float


@dataclass(frozen=True, slots=True)
class Pays:
    """Draft: ``accepted`` drafts expected to be kept, ``gain_s`` seconds saved to the token behind them."""

    accepted: float
    gain_s: float


@dataclass(frozen=True, slots=True)
class Loses:
    """Send the plain way: drafting would cost ``loss_s`` seconds, 0 or more."""

    accepted: float
    loss_s: float


def expected_accepted(drafts: int, accept_rate: float) -> float:
    """Mean accepted prefix of ``drafts`` drafts, each kept with probability ``accept_rate`` if all before were."""
    if accept_rate >= 1:
        return float(drafts)
    return float(accept_rate * (1 - accept_rate**drafts) / (1 - accept_rate))


def accept_rate(accepted_mean: float, drafts: int) -> float:
    """The inverse of `expected_accepted`, to 1e-6, by bisection: the rate behind a measured mean prefix."""
    low, high = 0.0, 1.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        if expected_accepted(drafts, middle) < accepted_mean:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def drafting_pays(link: Link, rate: float, max_drafts: int = MAX_DRAFTS) -> Pays | Loses:
    """Compare progressive with plain transfer at the same token of the answer.

    That token is the one behind the drafts expected to be kept. Plain, it is there when all of the plain cache
    is and the model has written its way to it; drafted, when anchor and residual are in and verified.
    """
    residual_s = link.residual_bytes * 8 / link.rate_bps
    drafts = min(max_drafts, int(residual_s / link.token_s))
    accepted = expected_accepted(drafts, rate)
    plain_s = link.plain_bytes * 8 / link.rate_bps + (accepted + 1) * link.token_s
    drafted_s = (link.anchor_bytes + link.residual_bytes) * 8 / link.rate_bps + link.token_s + link.verify_s
    gain_s = plain_s - drafted_s
    return Pays(accepted, gain_s) if gain_s > 0 else Loses(accepted, -gain_s)
