"""What the transport asks of its neighbours, and what it tells them: the types of its edge.

The engine implements `PageSource` and `Sink`; a network implements `Network` and `Link`.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from lynx.codec.interface import Plane
from lynx.errors import LynxError
from lynx.wire import Buffer, Manifest

Endpoint = tuple[str, int]
"""Host and port of a producer."""


@dataclass(frozen=True, slots=True)
class PageBatch:
    """Pages encoded together.

    Args:
        indices: page indices (`KvLayout.pages` order), any order, each page once per offer.
        payloads: for each index one payload per plane of the manifest, as `Codec.encode` returns them. They
            are held, not copied, until the offer is gone: do not write to them again.
    """

    indices: Sequence[int]
    payloads: Sequence[tuple[Buffer, ...]]


class PageSource(Protocol):
    """Where a producer pulls pages from."""

    def batches(self) -> Iterator[PageBatch]:
        """Every page of the offer, lazily, in the order in which they are to be sent.

        The iterator is advanced in the server's one encoding thread, a batch at a time, while the batch
        before is being sent. A batch of 0.5 to 4 MB of payload is a good size. When the offer is withdrawn
        it is dropped (a generator is closed, in that thread). A `LynxError` from it fails the transfer with
        its sentence.
        """
        ...


class Outcome(Enum):
    """How an offer ended."""

    DELIVERED = "delivered"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class PlaneStats:
    """One plane of one transfer. Times are ``time.monotonic_ns()``; 0 = has not happened.

    Args:
        wire_bytes: bytes on the wire with all framing of Lynx (not of TCP), repeats included.
        payload_bytes: bytes of page payloads, repeats included.
        pages: pages sent or received, repeats included.
        first_byte_ns: first byte of a page.
        end_ns: the plane was complete.
        connections: connections used; above 1 it was resumed.
        damaged: pages that failed their checksum.
        encode_ns: time spent in the source for this offer (both planes together), known at the end.
    """

    wire_bytes: int = 0
    payload_bytes: int = 0
    pages: int = 0
    first_byte_ns: int = 0
    end_ns: int = 0
    connections: int = 0
    damaged: int = 0
    encode_ns: int = 0


@dataclass(frozen=True, slots=True)
class TransferStats:
    """One transfer, on either side. Times as in `PlaneStats`; a producer sums over the offer's consumers."""

    started_ns: int
    ended_ns: int
    anchor: PlaneStats
    residual: PlaneStats


@dataclass(frozen=True, slots=True)
class Held:
    """What a server or client holds on to; all zero when it has nothing to do."""

    offers: int
    bytes: int
    sockets: int
    tasks: int


class Sink(Protocol):
    """Where a consumer puts pages. Every call is made in the client's thread: do not block for long.

    Order: `on_manifest` once; then `on_pages` and `on_plane_end` of both planes, interleaved; then exactly
    one of `on_done` and `on_error`, which is the last call. `on_error` may come first and alone. A method
    that raises a `LynxError` fails the fetch with it; any other exception fails it as `TransferLost`.
    """

    def on_manifest(self, manifest: Manifest) -> None:
        """What is coming. Raise `LayoutMismatch` to refuse it."""
        ...

    def on_pages(self, plane: Plane, pages: Sequence[tuple[int, memoryview]]) -> None:
        """Checksummed pages: (page index, payload). Each page comes once per plane.

        The views own their memory: they stay valid for as long as they are kept, and are never overwritten.
        """
        ...

    def on_plane_end(self, plane: Plane) -> None:
        """Every page of the plane was delivered."""
        ...

    def on_done(self, stats: TransferStats) -> None:
        """Every wanted plane was delivered."""
        ...

    def on_error(self, error: LynxError) -> None:
        """The fetch failed or was cancelled (`TransferLost`)."""
        ...


class Link(Protocol):
    """One reliable byte stream, used from one event loop.

    ``peer`` names the machine at the other end: links to one peer share its bottleneck.
    """

    @property
    def peer(self) -> str: ...

    def try_send(self, data: Sequence[memoryview]) -> int:
        """Send, one behind the other, what fits without waiting; returns bytes taken, 0 when full.

        Raises:
            OSError: the link is broken.
        """
        ...

    def when_writable(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once when `try_send` may take bytes again (or the link broke)."""
        ...

    async def recv_into(self, buffer: memoryview) -> int:
        """Receive at least one byte; 0 at the end of the stream. Raises `OSError` when broken."""
        ...

    def mark(self, plane: Plane) -> None:
        """Mark what is sent from now on as this class."""
        ...

    def close(self) -> None:
        """Close, at once and for good; a second time is no error."""
        ...


class Network(Protocol):
    """Makes links."""

    async def listen(self, endpoint: Endpoint, accept: Callable[[Link], None]) -> "Listener":
        """Accept links on ``endpoint`` (port 0: any free one). Raises `BadInput` when it cannot be had."""
        ...

    def connect(self, endpoint: Endpoint) -> Awaitable[Link]:
        """Open a link. Raises `OSError`."""
        ...


class Listener(Protocol):
    """An open listening endpoint."""

    @property
    def endpoint(self) -> Endpoint: ...

    def close(self) -> None: ...
