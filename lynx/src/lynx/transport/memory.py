"""Networks for tests: one in memory, with a delay and a bounded buffer, and one that harms another's links."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial

from lynx.codec.interface import Plane
from lynx.errors import BadInput
from lynx.transport.loop import resolve
from lynx.transport.ports import Endpoint, Link, Listener, Network


class _Pipe:
    """One direction. Sender and receiver may live in different loops: what they share is under a lock."""

    def __init__(self, capacity_bytes: int, delay_s: float) -> None:
        self._lock = threading.Lock()
        self._room = capacity_bytes
        self._delay_s = delay_s
        self._arrived: deque[memoryview] = deque()
        self._closed = False
        self._ended = False
        self.receiver: asyncio.AbstractEventLoop | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._on_room: Callable[[], None] | None = None

    def put(self, data: bytes) -> int:
        with self._lock:
            if self._closed or self.receiver is None:
                raise ConnectionResetError("the other side is gone")
            count = min(len(data), self._room)
            self._room -= count
        if count:
            self._later(self._arrive, memoryview(data)[:count])
        return count

    def close(self) -> None:
        with self._lock:
            self._closed = True
            on_room, self._on_room = self._on_room, None
        self._later(self._end)
        if on_room is not None:
            on_room()

    def when_room(self, callback: Callable[[], None]) -> None:
        with self._lock:
            if not self._room and not self._closed:
                self._on_room = callback
                return
        callback()

    async def take(self, buffer: memoryview) -> int:
        while not self._arrived:
            if self._ended:
                return 0
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        data = self._arrived.popleft()
        count = min(len(data), len(buffer))
        buffer[:count] = data[:count]
        if count < len(data):
            self._arrived.appendleft(data[count:])
        with self._lock:
            self._room += count
            on_room, self._on_room = self._on_room, None
        if on_room is not None:
            on_room()
        return count

    def _later(self, function: Callable[..., None], *arguments: memoryview) -> None:
        loop = self.receiver
        if loop is None:
            return
        try:
            if self._delay_s:
                loop.call_soon_threadsafe(lambda: loop.call_later(self._delay_s, function, *arguments))
            else:
                loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # its loop has ended, and with it whoever would have received
            self._closed = True

    def _arrive(self, data: memoryview) -> None:
        self._arrived.append(data)
        self._wake()

    def _end(self) -> None:
        self._ended = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None:
            resolve(self._waiter)


class MemoryLink:
    """One end of a link in memory."""

    def __init__(self, incoming: _Pipe, outgoing: _Pipe, peer: str) -> None:
        self._incoming = incoming
        self._outgoing = outgoing
        self._loop = asyncio.get_running_loop()
        self._open = True
        self.peer = peer
        self.plane: Plane | None = None
        incoming.receiver = self._loop

    def mark(self, plane: Plane) -> None:
        self.plane = plane

    def try_send(self, data: Sequence[memoryview]) -> int:
        if not self._open:
            raise ConnectionAbortedError("closed on this side")
        return self._outgoing.put(b"".join(data))

    def when_writable(self, callback: Callable[[], None]) -> None:
        self._outgoing.when_room(lambda: self._in_loop(callback))

    async def recv_into(self, buffer: memoryview) -> int:
        count = await self._incoming.take(buffer)
        if not self._open:
            raise ConnectionAbortedError("closed on this side")
        return count

    def close(self) -> None:
        if self._open:
            self._open = False
            self._incoming.close()
            self._outgoing.close()

    def _in_loop(self, callback: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:  # this side's loop has ended; nobody is left to be told
            self._open = False


class MemoryListener:
    """A listening endpoint of a memory network."""

    def __init__(self, network: "MemoryNetwork", endpoint: Endpoint, accept: Callable[[Link], None]) -> None:
        self._network = network
        self.endpoint = endpoint
        self.loop = asyncio.get_running_loop()
        self._accept = accept

    def incoming(self, incoming: _Pipe, outgoing: _Pipe, peer: str, done: Callable[[], object]) -> None:
        self._accept(MemoryLink(incoming, outgoing, peer))
        done()

    def close(self) -> None:
        self._network.listeners.pop(self.endpoint, None)


class MemoryNetwork:
    """Links within this process.

    Args:
        delay_s: time that bytes take.
        capacity_bytes: bytes on their way in one direction.
    """

    def __init__(self, *, delay_s: float = 0.0, capacity_bytes: int = 1 << 18) -> None:
        self._delay_s = delay_s
        self._capacity_bytes = capacity_bytes
        self.listeners: dict[Endpoint, MemoryListener] = {}

    async def listen(self, endpoint: Endpoint, accept: Callable[[Link], None]) -> MemoryListener:
        host, port = endpoint
        port = port or next(free for free in range(1, 65536) if (host, free) not in self.listeners)
        if (host, port) in self.listeners:
            raise BadInput(f"listening address {host}:{port} cannot be had (in use); choose another")
        listener = MemoryListener(self, (host, port), accept)
        self.listeners[host, port] = listener
        return listener

    async def connect(self, endpoint: Endpoint) -> MemoryLink:
        listener = self.listeners.get(endpoint)
        if listener is None:
            raise ConnectionRefusedError(f"nobody listens on {endpoint[0]}:{endpoint[1]}")
        up = _Pipe(self._capacity_bytes, self._delay_s)
        down = _Pipe(self._capacity_bytes, self._delay_s)
        link = MemoryLink(down, up, endpoint[0])
        loop = asyncio.get_running_loop()
        accepted: asyncio.Future[None] = loop.create_future()
        done = partial(resolve, accepted)
        listener.loop.call_soon_threadsafe(
            listener.incoming, up, down, endpoint[0], lambda: loop.call_soon_threadsafe(done)
        )
        await accepted
        return link


class _HarmedLink:
    """A link whose received bytes are cut off or flipped at given offsets."""

    def __init__(self, link: Link, cut_at: int | None, flips: Collection[int]) -> None:
        self._link = link
        self._cut_at = cut_at
        self._flips = flips
        self._received = 0
        self.peer = link.peer
        self.mark = link.mark
        self.try_send = link.try_send
        self.when_writable = link.when_writable
        self.close = link.close

    async def recv_into(self, buffer: memoryview) -> int:
        if self._cut_at is not None and self._received >= self._cut_at:
            self._link.close()
            raise ConnectionResetError("cut by the test")
        if self._cut_at is not None:
            buffer = buffer[: self._cut_at - self._received]
        count = await self._link.recv_into(buffer)
        for at in self._flips:
            if self._received <= at < self._received + count:
                buffer[at - self._received] ^= 0x10
        self._received += count
        return count


class HarmfulNetwork:
    """Another network whose consumers lose connections and bits.

    Args:
        inner: the network that is harmed.
        cuts: for each new connection, the number of received bytes after which it breaks; `None`: never.
        flips: for each new connection, the offsets of received bytes in which a bit is flipped.
            Both may end: later connections are sound.
    """

    def __init__(
        self, inner: Network, *, cuts: Iterable[int | None] = (), flips: Iterable[Collection[int]] = ()
    ) -> None:
        self._inner = inner
        self._cuts = iter(cuts)
        self._flips = iter(flips)

    async def listen(self, endpoint: Endpoint, accept: Callable[[Link], None]) -> Listener:
        return await self._inner.listen(endpoint, accept)

    async def connect(self, endpoint: Endpoint) -> Link:
        link = await self._inner.connect(endpoint)
        return _HarmedLink(link, next(self._cuts, None), next(self._flips, ()))
