"""The sending loop of a producer: the schedule says who, the bucket says when, the session says what."""

import asyncio
import time
from collections.abc import Callable

from lynx.streams import Schedule, TokenBucket
from lynx.transport.loop import Wake
from lynx.transport.session import Session

BURST_BYTES = 256 << 10
PATIENCE_NS = 100_000_000
"""How long a more urgent connection without progress may hold back others to the same machine.

Two connections to one machine share its bottleneck: whatever a residual sends while an anchor waits for the
network delays that anchor. But a consumer that does not read must not stop the others for ever.
"""


class Pump:
    """Sends bursts of the sessions of one server.

    Args:
        schedule: ranks the streams.
        bucket: limits the rate of all of them together; `None`: no limit.
        burst_bytes: sent before everyone is ranked again.
        on_sent: called after each burst.
    """

    def __init__(
        self, schedule: Schedule, bucket: TokenBucket | None, burst_bytes: int, on_sent: Callable[[], None]
    ) -> None:
        self._schedule = schedule
        self._bucket = bucket
        self._burst_bytes = burst_bytes
        self._on_sent = on_sent
        self._wake = Wake()
        self.sessions: dict[int, Session] = {}

    def changed(self, session: Session) -> None:
        """A session may have become ready, or no longer be."""
        if session.stream is not None:
            self._schedule.set_ready(session.stream, session.has_work())
            self._wake.set()

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            now_ns = time.monotonic_ns()
            session, wait_ns = self._choose(now_ns)
            if session is not None and self._bucket is not None:
                wait_ns = self._bucket.wait_ns(now_ns)
            if session is None or wait_ns:
                await self._wake.wait(wait_ns / 1e9 if wait_ns else None)
                continue
            count = session.push(self._burst_bytes)
            if session.stream is not None:
                self._schedule.sent(session.stream, count)
                self._schedule.set_ready(session.stream, session.has_work())
            if self._bucket is not None:
                self._bucket.spend(count)
            self._on_sent()
            await asyncio.sleep(0)

    def _choose(self, now_ns: int) -> tuple[Session | None, int]:
        """The session that sends now, else how long to wait at most (0: until something changes)."""
        holding: set[str] = set()
        wait_ns = 0
        for stream in self._schedule.ready():
            session = self.sessions[stream]
            peer = session.link.peer
            if peer in holding:
                continue
            if not session.blocked:
                return session, 0
            left_ns = session.blocked_ns + PATIENCE_NS - now_ns
            if left_ns > 0:
                holding.add(peer)
                wait_ns = min(wait_ns or left_ns, left_ns)
        return None, wait_ns
