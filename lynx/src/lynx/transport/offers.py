"""One offer: its source, the frames made of it so far, and who has fetched them. Knows no sockets."""

import time
from asyncio import TimerHandle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lynx.codec.interface import Plane
from lynx.errors import BadInput
from lynx.streams import Objective
from lynx.transport.ports import Outcome, PageBatch, PageSource, PlaneStats, TransferStats
from lynx.wire import Manifest, page_header

if TYPE_CHECKING:
    from lynx.transport.session import Session

OnEncoded = Callable[[bytes], None]
OnFinished = Callable[[bytes, Outcome, TransferStats], None]


@dataclass(frozen=True, slots=True)
class Frame:
    """One page frame: its header, and the payload as the codec made it."""

    page: int
    header: memoryview
    payload: memoryview

    @property
    def size(self) -> int:
        """Bytes on the wire."""
        return len(self.header) + len(self.payload)


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """A batch as frames, for each plane."""

    planes: tuple[tuple[Frame, ...], ...]
    encode_ns: int


@dataclass(slots=True)
class Offer:
    """What is held for one key."""

    key: bytes
    manifest: Manifest
    source: PageSource
    objective: Objective
    consumers: int
    on_encoded: OnEncoded | None
    on_finished: OnFinished | None
    offered_ns: int
    frames: dict[Plane, list[Frame]] = field(default_factory=dict)
    at: dict[Plane, dict[int, int]] = field(default_factory=dict)
    held_bytes: int = 0
    encode_ns: int = 0
    encoded: bool = False
    outcome: Outcome | None = None
    sessions: "set[Session]" = field(default_factory=set)
    fetches: dict[bytes, set[Plane]] = field(default_factory=dict)
    finished: dict[bytes, Outcome] = field(default_factory=dict)
    active_ns: int = 0
    stats: dict[Plane, PlaneStats] = field(default_factory=dict)
    timer: TimerHandle | None = None
    _anchor_ends: list[int] = field(default_factory=lambda: [0])
    _batches: Iterator[PageBatch] | None = None

    def __post_init__(self) -> None:
        for plane in self.manifest.planes:
            self.frames[plane] = []
            self.at[plane] = {}
        self.stats = {plane: PlaneStats() for plane in Plane}
        self.active_ns = self.offered_ns

    def encode_next(self) -> EncodedBatch | None:
        """Pull and frame one batch; `None` at the end. In the encoding thread.

        Raises:
            BadInput: the source gave something else than the manifest promised.
        """
        started_ns = time.monotonic_ns()
        if self._batches is None:
            self._batches = iter(self.source.batches())
        batch = next(self._batches, None)
        if batch is None:
            return None
        planes = self.manifest.planes
        if len(batch.indices) != len(batch.payloads) or any(len(p) != len(planes) for p in batch.payloads):
            raise BadInput(f"page batch does not hold {len(planes)} payloads for each index; mend the source")
        framed = tuple(self._frame(plane, batch) for plane in planes)
        return EncodedBatch(framed, time.monotonic_ns() - started_ns)

    def _frame(self, plane: Plane, batch: PageBatch) -> tuple[Frame, ...]:
        frames = []
        for page, payloads in zip(batch.indices, batch.payloads, strict=True):
            payload = memoryview(payloads[plane])
            payload = payload.cast("B") if payload.nbytes else memoryview(b"")
            if not 0 <= page < self.manifest.pages or len(payload) > self.manifest.max_payload_bytes:
                raise BadInput(
                    f"page {page} of {len(payload)} bytes is outside the manifest's"
                    f" {self.manifest.pages} pages of at most {self.manifest.max_payload_bytes} bytes"
                )
            frames.append(Frame(page, memoryview(page_header(plane, page, payload)), payload))
        return tuple(frames)

    def add(self, batch: EncodedBatch) -> None:
        """Hold an encoded batch. Raises `BadInput` when a page comes twice."""
        for plane, frames in zip(self.manifest.planes, batch.planes, strict=True):
            held, at = self.frames[plane], self.at[plane]
            for frame in frames:
                if frame.page in at:
                    raise BadInput(f"page {frame.page} was encoded twice; mend the source")
                at[frame.page] = len(held)
                held.append(frame)
                if plane is Plane.ANCHOR:
                    self._anchor_ends.append(self._anchor_ends[-1] + frame.size)
                self.held_bytes += frame.size
        self.encode_ns += batch.encode_ns

    def all_encoded(self) -> None:
        """The source is exhausted. Raises `BadInput` when pages are missing."""
        have = len(self.frames[Plane.ANCHOR])
        if have != self.manifest.pages:
            raise BadInput(f"source gave {have} of {self.manifest.pages} pages; mend the source")
        self.encoded = True
        self._batches = None

    def release(self) -> None:
        """Drop the source; a generator is closed. In the encoding thread."""
        batches, self._batches = self._batches, None
        if batches is not None and hasattr(batches, "close"):
            batches.close()

    def ahead_bytes(self) -> int:
        """Anchor bytes encoded but not yet sent to the consumer that is furthest.

        Residuals do not count: they wait for anchors, so anchors must never wait for them.
        """
        furthest = max((s.cursor for s in self.sessions if s.plane is Plane.ANCHOR), default=0)
        return self._anchor_ends[-1] - self._anchor_ends[furthest]

    def note(self, plane: Plane, wire_bytes: int, payload_bytes: int, pages: int, now_ns: int) -> None:
        """Count what was sent."""
        old = self.stats[plane]
        self.active_ns = now_ns
        self.stats[plane] = replace(
            old,
            wire_bytes=old.wire_bytes + wire_bytes,
            payload_bytes=old.payload_bytes + payload_bytes,
            pages=old.pages + pages,
            first_byte_ns=old.first_byte_ns or (now_ns if pages else 0),
        )

    def connected(self, plane: Plane) -> None:
        """Count a connection."""
        old = self.stats[plane]
        self.stats[plane] = replace(old, connections=old.connections + 1)

    def plane_done(self, fetch_id: bytes, plane: Plane, wanted: tuple[Plane, ...], now_ns: int) -> None:
        """A consumer holds a plane."""
        done = self.fetches.setdefault(fetch_id, set())
        done.add(plane)
        self.active_ns = now_ns
        self.stats[plane] = replace(self.stats[plane], end_ns=now_ns)
        if done >= set(wanted):
            self.finished.setdefault(fetch_id, Outcome.DELIVERED)

    def end_stats(self, now_ns: int) -> TransferStats:
        """What became of the offer."""
        anchor, residual = (replace(self.stats[plane], encode_ns=self.encode_ns) for plane in Plane)
        return TransferStats(self.offered_ns, now_ns, anchor, residual)
