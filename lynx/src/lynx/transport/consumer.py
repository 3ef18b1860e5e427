"""One fetch, in the client's event loop: a connection per plane, resumed until everything is held.

A fetch ends once, in `run`: with everything delivered, a refusal or a fault that cannot heal (at once), or the
timeout. A broken connection heals: it is opened again, with growing pauses, and asks only for missing pages.
"""

import asyncio
import logging
import os
import time
from dataclasses import replace
from functools import partial

from lynx.codec.interface import Plane
from lynx.errors import LayoutMismatch, LynxError, PageCorrupt, ProtocolError, TransferLost
from lynx.transport.loop import resolve
from lynx.transport.ports import Endpoint, Link, Network, PlaneStats, Sink, TransferStats
from lynx.wire import (
    Again,
    Cancel,
    Chunks,
    Code,
    ConsumerSide,
    Credit,
    Damaged,
    Done,
    End,
    Failure,
    Hello,
    Manifest,
    Pages,
    Resume,
    WrongVersionError,
)

FIRST_PAUSE_S = 0.02
LONGEST_PAUSE_S = 1.0
CONNECT_S = 5.0
_log = logging.getLogger(__name__)


class Consumer:
    """Fetches one offer. Arguments as in `KvClient.fetch`; used once, in one event loop."""

    def __init__(
        self,
        network: Network,
        endpoint: Endpoint,
        fingerprint: bytes,
        key: bytes,
        sink: Sink,
        timeout_s: float,
        planes: tuple[Plane, ...],
        window_bytes: int,
        chunks: Chunks,
    ) -> None:
        self._network = network
        self._endpoint = endpoint
        self._fingerprint = fingerprint
        self._key = key
        self._sink = sink
        self._timeout_s = timeout_s
        self._planes = planes
        self._window_bytes = window_bytes
        self._chunks = chunks
        self._fetch_id = os.urandom(16)
        self._started_ns = time.monotonic_ns()
        self._deadline_ns = self._started_ns + int(timeout_s * 1e9)
        self._manifest: Manifest | None = None
        self._stats = {plane: PlaneStats() for plane in Plane}
        self._fault = "no connection was made"
        self._open: dict[Plane, ConsumerSide] = {}
        self.tasks = 0

    @property
    def sockets(self) -> int:
        """Connections open now."""
        return len(self._open)

    @property
    def buffered_bytes(self) -> int:
        """Receive buffers held now."""
        return sum(side.buffered_bytes for side in self._open.values())

    async def run(self) -> None:
        """Fetch, then make the sink's last call."""
        try:
            await self._fetch()
        except LynxError as error:
            self._last(error)
        except asyncio.CancelledError:
            self._last(TransferLost(f"fetch of {self._name()} was cancelled"))
        except Exception as error:  # noqa: BLE001 - whatever a sink raises must end its own fetch only
            _log.exception("fetch of %s failed", self._name())
            self._last(TransferLost(f"fetch of {self._name()} failed in its sink: {error!r}"))
        else:
            self._last(None)

    def _last(self, error: LynxError | None) -> None:
        try:
            if error is None:
                stats = TransferStats(self._started_ns, time.monotonic_ns(), *self._stats.values())
                self._sink.on_done(stats)
            else:
                self._sink.on_error(error)
        except Exception:  # noqa: BLE001 - the sink had its last call; there is nobody else to tell
            _log.exception("last call to the sink of %s failed", self._name())

    async def _fetch(self) -> None:
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(self._plane(plane)) for plane in self._planes]
        self.tasks = len(tasks)
        try:
            async with asyncio.timeout(self._timeout_s):
                await asyncio.gather(*tasks)
        except TimeoutError:
            raise TransferLost(
                f"fetch of {self._name()} was not complete after {self._timeout_s} s;"
                f" last fault: {self._fault}; check the producer or allow more time"
            ) from None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.tasks = 0

    async def _plane(self, plane: Plane) -> None:
        resume = Resume(0, b"")
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                async with asyncio.timeout(CONNECT_S):
                    link = await self._network.connect(self._endpoint)
            except (OSError, TimeoutError) as error:  # TimeoutError here is the connect's own
                self._fault = f"{plane.name} connection: {error}"
            else:
                side = ConsumerSide(self._hello(plane), resume, self._chunks.lease)
                if await self._converse(plane, link, side):
                    return
                after = side.resume_point()
                pause_s = FIRST_PAUSE_S if after != resume else pause_s
                resume = after
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _hello(self, plane: Plane) -> Hello:
        left_ms = max(0, (self._deadline_ns - time.monotonic_ns()) // 1_000_000)
        return Hello(
            self._fingerprint, self._fetch_id, plane, self._planes, self._key, left_ms, self._window_bytes
        )

    async def _converse(self, plane: Plane, link: Link, side: ConsumerSide) -> bool:
        """Use one connection; True when the plane is complete, False when the connection broke."""
        talk = Talk(link, side)
        self._open[plane] = side
        stats = self._stats[plane]
        self._stats[plane] = replace(stats, connections=stats.connections + 1)
        try:
            link.mark(plane)
            await talk.write(side.opening())
            await self._receive(plane, talk)
        except OSError as error:
            self._fault = f"{plane.name} connection: {error}"
            return False
        except BaseException as error:
            talk.farewell(error)
            raise
        finally:
            del self._open[plane]
            link.close()
        return True

    async def _receive(self, plane: Plane, talk: "Talk") -> None:
        side = talk.side
        limit = self._window_bytes
        while True:
            count = await talk.link.recv_into(side.space())
            if not count:
                raise ConnectionResetError("the producer closed the connection")
            self._count(plane, wire_bytes=count)
            for event in side.filled(count):
                match event:
                    case Manifest():
                        self._accept(event)
                    case Pages(pages):
                        self._deliver(plane, pages)
                    case Damaged(page):
                        self._count(plane, damaged=1)
                        await talk.ask_again([page] if page in set(side.missing()) else [])
                    case End():
                        talk.ended = event
                        await talk.ask_again([page for page in side.missing() if page not in talk.asked])
                    case Failure():
                        raise event.error()
            if talk.ended is not None and next(side.missing(), None) is None:
                self._complete(plane, talk.ended)
                await talk.write(side.send(Done()))
                return
            if limit - side.page_frame_bytes <= self._window_bytes // 2:
                limit = side.page_frame_bytes + self._window_bytes
                await talk.write(side.send(Credit(limit)))
            await asyncio.sleep(0)  # a fast peer must not keep the loop from others

    def _accept(self, manifest: Manifest) -> None:
        if self._manifest is None:
            self._manifest = manifest
            self._sink.on_manifest(manifest)
        elif manifest != self._manifest:
            raise LayoutMismatch(f"manifest of {self._name()} changed during the fetch; fetch it again")

    def _deliver(self, plane: Plane, pages: list[tuple[int, memoryview]]) -> None:
        self._count(plane, payload_bytes=sum(len(payload) for _, payload in pages), pages=len(pages))
        self._sink.on_pages(plane, pages)

    def _complete(self, plane: Plane, end: End) -> None:
        self._stats[plane] = replace(self._stats[plane], end_ns=time.monotonic_ns(), encode_ns=end.encode_ns)
        if self._manifest is not None and plane in self._manifest.planes:
            self._sink.on_plane_end(plane)

    def _count(
        self, plane: Plane, wire_bytes: int = 0, payload_bytes: int = 0, pages: int = 0, damaged: int = 0
    ) -> None:
        old = self._stats[plane]
        self._stats[plane] = replace(
            old,
            wire_bytes=old.wire_bytes + wire_bytes,
            payload_bytes=old.payload_bytes + payload_bytes,
            pages=old.pages + pages,
            damaged=old.damaged + damaged,
            first_byte_ns=old.first_byte_ns or (time.monotonic_ns() if pages else 0),
        )

    def _name(self) -> str:
        return f"{self._key!r} from {self._endpoint[0]}:{self._endpoint[1]}"


class Talk:
    """One connection and what was asked again on it."""

    def __init__(self, link: Link, side: ConsumerSide) -> None:
        self.link = link
        self.side = side
        self.asked: set[int] = set()
        self.ended: End | None = None
        self._cut_short = False

    async def write(self, data: bytes) -> None:
        """Send all of it."""
        rest = memoryview(data)
        self._cut_short = True
        while rest:
            count = self.link.try_send([rest])
            rest = rest[count:]
            if rest:
                writable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self.link.when_writable(partial(resolve, writable))
                await writable
        self._cut_short = False

    async def ask_again(self, pages: list[int]) -> None:
        """Ask once more for damaged pages.

        Raises:
            PageCorrupt: one was asked for already.
        """
        for page in pages:
            if page in self.asked:
                raise PageCorrupt(f"page {page} arrived damaged twice; check the network, then fetch again")
            self.asked.add(page)
            await self.write(self.side.send(Again(page)))

    def farewell(self, error: BaseException) -> None:
        """Say why this side goes, as far as that needs no waiting."""
        match error:
            case WrongVersionError():
                message: Failure | Cancel = Failure(Code.VERSION, str(error))
            case PageCorrupt():
                message = Failure(Code.CORRUPT, str(error))
            case ProtocolError():
                message = Failure(Code.MALFORMED, str(error))
            case _:
                message = Cancel()
        if self._cut_short:
            return
        try:
            self.link.try_send([memoryview(self.side.send(message))])
        except (OSError, ProtocolError):  # gone, or closed by its own refusal: nobody is left to be told
            return
