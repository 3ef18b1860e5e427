"""What is sent next, over all requests of one producer: pure.

A *stream* is one plane on its way to one consumer. The schedule ranks the streams that are ready to send;
the lowest rank sends one burst, then everyone is ranked again. Time is handed in as integer nanoseconds of
any monotonic clock; nothing here reads one.

``strict`` is the paper's rule (arXiv 2607.01831): anchors always drain before residuals, oldest first. Under
a steady load of anchors a residual never gets its turn.

``edf`` is earliest deadline first (Liu and Layland, JACM 1973). An anchor is due at its offer plus the TTFT
objective; a residual when the draft would run dry: anchor arrival + drafts left x time per token. Until the
anchor has arrived its own deadline stands in for the arrival. Deadlines are fixed instants, so every waiting
stream ends up the most urgent one: none starves.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from lynx.codec.interface import Plane
from lynx.errors import BadInput

Policy = Literal["strict", "edf"]
Token = int
"""Names one stream of a schedule."""


@dataclass(frozen=True, slots=True)
class Objective:
    """What one request was promised.

    Args:
        ttft_ns: the anchor is due this long after its offer.
        token_ns: time that drafting one token takes.
        drafts: tokens that may be drafted before the residual is missed.
    """

    ttft_ns: int = 500_000_000
    token_ns: int = 20_000_000
    drafts: int = 64


@dataclass(frozen=True, slots=True)
class OnTime:
    """Every stream can make its deadline at the given rate."""


@dataclass(frozen=True, slots=True)
class Late:
    """A stream that cannot make its deadline, however the link is shared by this policy."""

    stream: Token
    plane: Plane
    deadline_ns: int
    expected_ns: int


@dataclass(slots=True)
class _Stream:
    plane: Plane
    objective: Objective
    deadline_ns: int
    bytes_left: int
    ready: bool = False


class Schedule:
    """Streams of one producer and the order in which they send.

    Raises:
        BadInput: the policy is unknown.
    """

    def __init__(self, policy: Policy) -> None:
        if policy not in get_args(Policy):
            raise BadInput(f"stream policy is {policy!r}; use one of {', '.join(get_args(Policy))}")
        self.policy = policy
        self._streams: dict[Token, _Stream] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._streams)

    def open(self, plane: Plane, objective: Objective, offered_ns: int, bytes_left: int) -> Token:
        """Add a stream that is not ready yet; ``offered_ns`` is when its offer was made."""
        due_ns = offered_ns + objective.ttft_ns
        if plane is Plane.RESIDUAL:
            due_ns += objective.drafts * objective.token_ns
        self._next += 1
        self._streams[self._next] = _Stream(plane, objective, due_ns, bytes_left)
        return self._next

    def close(self, stream: Token) -> None:
        """Forget a stream; one that is gone already is no error."""
        self._streams.pop(stream, None)

    def set_ready(self, stream: Token, ready: bool) -> None:
        """Say whether a stream has something that it may send."""
        self._streams[stream].ready = ready

    def sent(self, stream: Token, count: int) -> None:
        """Note ``count`` bytes sent."""
        entry = self._streams[stream]
        entry.bytes_left = max(0, entry.bytes_left - count)

    def anchor_arrived(self, residual: Token, at_ns: int, drafts_left: int | None = None) -> None:
        """Drafting began: the residual is due ``drafts_left`` (default: all) tokens after ``at_ns``."""
        entry = self._streams[residual]
        drafts = entry.objective.drafts if drafts_left is None else drafts_left
        entry.deadline_ns = at_ns + drafts * entry.objective.token_ns

    def deadline_ns(self, stream: Token) -> int:
        """When the stream is due."""
        return self._streams[stream].deadline_ns

    def next(self) -> Token | None:
        """The ready stream that sends now; `None` when none is ready."""
        return next(iter(self.ready()), None)

    def ready(self) -> list[Token]:
        """Streams that are ready to send, the most urgent first."""
        return sorted((token for token, entry in self._streams.items() if entry.ready), key=self._rank)

    def order(self) -> Iterator[Token]:
        """All streams, ready or not, the most urgent first."""
        return iter(sorted(self._streams, key=self._rank))

    def forecast(self, now_ns: int, rate_bps: int) -> OnTime | Late:
        """Whether every stream can make its deadline when the link carries ``rate_bps`` bits per second.

        Streams are sent whole in the policy's order, without waiting for encoding: a lower bound, so `Late`
        is certain and `OnTime` is not. Returns the first stream that is late.
        """
        ahead_bytes = 0
        for token in self.order():
            entry = self._streams[token]
            ahead_bytes += entry.bytes_left
            expected_ns = now_ns + ahead_bytes * 8_000_000_000 // rate_bps
            if expected_ns > entry.deadline_ns:
                return Late(token, entry.plane, entry.deadline_ns, expected_ns)
        return OnTime()

    def _rank(self, token: Token) -> tuple[int, int, int]:
        entry = self._streams[token]
        if self.policy == "strict":
            return entry.plane, 0, token
        return entry.deadline_ns, entry.plane, token
