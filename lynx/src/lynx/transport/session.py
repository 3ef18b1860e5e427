"""One consumer's connection on the producer's side: what it asked, what it has got, what goes next."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from itertools import islice

from lynx.codec.interface import Plane
from lynx.transport.offers import Frame, Offer
from lynx.transport.ports import Link
from lynx.wire import Again, Credit, End, Failure, Hello, Manifest, ProducerSide, Resume

MAX_BUFFERS = 256
"""Buffers handed to the network in one call; far below any system's IOV_MAX."""

LINGER_S = 1.0
"""How long a refused consumer may take to read why and close."""


class Session:
    """Sends one plane of one offer. Everything happens in the server's loop.

    Args:
        link: the connection.
        on_change: called when the session may have become ready to send.
    """

    def __init__(self, link: Link, on_change: Callable[["Session"], None]) -> None:
        self.link = link
        self.side = ProducerSide()
        self.plane = Plane.ANCHOR
        self.hello: Hello | None = None
        self.resume: Resume | None = None
        self.offer: Offer | None = None
        self.stream: int | None = None
        self.cursor = 0
        self.blocked_ns = 0
        self.refused = False
        self.broken = False
        self._on_change = on_change
        self._outbox: deque[memoryview] = deque()
        self._again: deque[Frame] = deque()
        self._pages_sent = 0
        self._payload_sent = 0
        self._ended = False

    @property
    def blocked(self) -> bool:
        """Whether the network takes no more just now."""
        return self.blocked_ns != 0

    def has_work(self) -> bool:
        """Whether a burst could be made now."""
        if self.broken:
            return False
        if self.refused or self.offer is None or not self.side.may_send:
            return bool(self._outbox)
        if self._outbox or self._again:
            return True
        if self.plane is Plane.RESIDUAL and not self.offer.encoded:
            # Between two anchor batches the link may idle for a moment; a residual sent then would delay the next.
            return False
        self._skip_held()
        return self.cursor < len(self.offer.frames.get(self.plane, ())) or self._end_is_due()

    def attach(self, offer: Offer) -> None:
        """Serve this offer: its manifest goes at once."""
        self.offer = offer
        offer.sessions.add(self)
        self._control(offer.manifest)
        self.flush()

    def refuse(self, failure: Failure) -> None:
        """Say why and send nothing after it; the consumer is to close."""
        if self.refused or self.broken:
            return
        self.refused = True
        self._outbox.append(memoryview(self.side.send(failure)))
        self.flush()
        asyncio.get_running_loop().call_later(LINGER_S, self.link.close)

    def credit(self, _: Credit) -> None:
        """The consumer takes more."""
        self._on_change(self)

    def again(self, wish: Again) -> None:
        """A page arrived damaged. One that was not sent yet is coming anyway."""
        assert self.offer is not None  # the wire lets AGAIN through only after MANIFEST
        at = self.offer.at.get(self.plane, {}).get(wish.page)
        if at is not None and at < self.cursor:
            self._again.append(self.offer.frames[self.plane][at])
        self._on_change(self)

    def push(self, burst_bytes: int) -> int:
        """Hand the next burst to the network; returns its bytes, 0 when an older one still waits."""
        if self._outbox or self.blocked:
            self.flush()
            return 0
        if not self.has_work():
            return 0
        size = self._next_burst(burst_bytes)
        self.flush()
        return size

    def flush(self) -> None:
        """Send what waits, as far as the network takes it."""
        while self._outbox and not self.blocked and not self.broken:
            buffers = list(islice(self._outbox, MAX_BUFFERS))
            try:
                count = self.link.try_send(buffers)
            except OSError:
                # Not closed here: a CANCEL or DONE that came before the fault is still to be read.
                self.broken = True
                self._outbox.clear()
                return
            if count < sum(map(len, buffers)):
                self.blocked_ns = time.monotonic_ns()
                self.link.when_writable(self._writable)
            while count and count >= len(self._outbox[0]):
                count -= len(self._outbox.popleft())
            if count:
                self._outbox[0] = self._outbox[0][count:]

    def _writable(self) -> None:
        self.blocked_ns = 0
        self.flush()
        self._on_change(self)

    def _control(self, message: Manifest | End) -> None:
        data = self.side.send(message)
        self._outbox.append(memoryview(data))
        if self.offer is not None:
            self.offer.note(self.plane, len(data), 0, 0, time.monotonic_ns())

    def _next_burst(self, burst_bytes: int) -> int:
        assert self.offer is not None  # has_work said so
        frames = self._pick(burst_bytes)
        if frames:
            for frame in frames:
                self._outbox.append(frame.header)
                if frame.payload:
                    self._outbox.append(frame.payload)
                self.side.page_sent(frame.size)
            size = sum(frame.size for frame in frames)
            payload = sum(len(frame.payload) for frame in frames)
            self._pages_sent += len(frames)
            self._payload_sent += payload
            self.offer.note(self.plane, size, payload, len(frames), time.monotonic_ns())
        if self._end_is_due():
            self._ended = True
            offer = self.offer
            self._control(End(self.plane, self._pages_sent, self._payload_sent, offer.encode_ns))
        return sum(len(data) for data in self._outbox)

    def _pick(self, burst_bytes: int) -> list[Frame]:
        """The next frames, as many as burst and credit allow: at least one, unless nothing is there."""
        assert self.offer is not None  # has_work said so
        if self._again:
            return [self._again.popleft()]
        room_bytes = min(burst_bytes, self.side.credit_left)
        held = self.offer.frames.get(self.plane, ())
        frames: list[Frame] = []
        while self.cursor < len(held) and room_bytes > 0:
            frame = held[self.cursor]
            self.cursor += 1
            if not self._is_held(frame):
                frames.append(frame)
                room_bytes -= frame.size
        return frames

    def _skip_held(self) -> None:
        assert self.offer is not None  # has_work said so
        frames = self.offer.frames.get(self.plane, ())
        while self.cursor < len(frames) and self._is_held(frames[self.cursor]):
            self.cursor += 1

    def _is_held(self, frame: Frame) -> bool:
        return self.resume is not None and self.resume.holds(frame.page)

    def _end_is_due(self) -> bool:
        offer = self.offer
        if self._ended or offer is None or self._again:
            return False
        self._skip_held()
        return self.cursor == len(offer.frames.get(self.plane, ())) and (
            offer.encoded or self.plane not in offer.manifest.planes
        )
