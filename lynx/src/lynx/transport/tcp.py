"""TCP: sockets used directly from an event loop, without asyncio's streams (several times slower).

Classes are marked for networks that can tell them apart: DSCP (RFC 2474) by IP_TOS or IPV6_TCLASS, and
SO_PRIORITY for this machine's own qdiscs. Unsent bytes in the kernel are bounded by TCP_NOTSENT_LOWAT, so that a
residual already handed over cannot delay an anchor by much; bytes in flight are not, so throughput stays.
"""

import asyncio
import errno
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lynx.codec.interface import Plane
from lynx.errors import BadInput
from lynx.transport.loop import resolve
from lynx.transport.ports import Endpoint, Link

_USER_TIMEOUT_MS = 15_000


@dataclass(frozen=True, slots=True)
class TcpOptions:
    """How sockets are set up.

    Args:
        anchor_dscp, residual_dscp: 0 to 63; EF is 46 (RFC 3246), CS1 is 8 (RFC 3662).
        anchor_priority, residual_priority: SO_PRIORITY, 0 to 6 without privileges.
        notsent_bytes: unsent bytes that the kernel takes per connection.
        send_buffer_bytes: SO_SNDBUF; `None` lets the kernel tune it.
    """

    anchor_dscp: int = 46
    residual_dscp: int = 8
    anchor_priority: int = 6
    residual_priority: int = 2
    notsent_bytes: int = 256 << 10
    send_buffer_bytes: int | None = None

    def __post_init__(self) -> None:
        for field, value, top in (
            ("anchor_dscp", self.anchor_dscp, 63),
            ("residual_dscp", self.residual_dscp, 63),
            ("anchor_priority", self.anchor_priority, 6),
            ("residual_priority", self.residual_priority, 6),
        ):
            if not 0 <= value <= top:
                raise BadInput(f"TCP option {field} is {value}; it must be 0 to {top}")


class TcpLink:
    """One connected, non-blocking socket."""

    def __init__(self, sock: socket.socket, options: TcpOptions) -> None:
        self._sock = sock
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._fd = sock.fileno()
        self._readable: asyncio.Future[None] | None = None
        self._on_writable: Callable[[], None] | None = None
        self.peer = str(sock.getpeername()[0])
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, options.notsent_bytes)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)
        if options.send_buffer_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, options.send_buffer_bytes)

    def mark(self, plane: Plane) -> None:
        options = self._options
        anchor = plane is Plane.ANCHOR
        tos = (options.anchor_dscp if anchor else options.residual_dscp) << 2
        if self._sock.family == socket.AF_INET6:
            self._sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, tos)
        # On a dual-stack socket IPv4 peers see IP_TOS; setting it also changes the priority, hence the order.
        self._sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)
        priority = options.anchor_priority if anchor else options.residual_priority
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, priority)

    def try_send(self, data: Sequence[memoryview]) -> int:
        try:
            return self._sock.sendmsg(data)
        except (BlockingIOError, InterruptedError):
            return 0

    def when_writable(self, callback: Callable[[], None]) -> None:
        if self._fd < 0:
            self._loop.call_soon(callback)
            return
        self._on_writable = callback
        self._loop.add_writer(self._fd, self._writable)

    def _writable(self) -> None:
        self._loop.remove_writer(self._fd)
        callback, self._on_writable = self._on_writable, None
        if callback is not None:
            callback()

    async def recv_into(self, buffer: memoryview) -> int:
        while self._fd >= 0:
            try:
                return self._sock.recv_into(buffer)
            except (BlockingIOError, InterruptedError):
                await self._wait_readable()
        raise ConnectionAbortedError(errno.ECONNABORTED, "closed on this side")

    async def _wait_readable(self) -> None:
        fd = self._fd
        self._readable = waiter = self._loop.create_future()
        self._loop.add_reader(fd, resolve, waiter)
        try:
            await waiter
        finally:
            self._readable = None
            if self._fd == fd:
                self._loop.remove_reader(fd)

    def close(self) -> None:
        if self._fd < 0:
            return
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        self._fd = -1
        self._sock.close()
        if self._readable is not None:
            resolve(self._readable)
        if self._on_writable is not None:
            self._loop.call_soon(self._on_writable)
            self._on_writable = None


class TcpListener:
    """A listening socket."""

    def __init__(self, sock: socket.socket, accept: Callable[[Link], None], options: TcpOptions) -> None:
        self._sock = sock
        self._accept = accept
        self._options = options
        self._loop = asyncio.get_running_loop()
        self.endpoint: Endpoint = sock.getsockname()[:2]
        self._loop.add_reader(sock.fileno(), self._incoming)

    def _incoming(self) -> None:
        try:
            sock, _ = self._sock.accept()
        except OSError:  # gone before it was accepted, or out of descriptors: others go on
            return
        sock.setblocking(False)
        try:
            link = TcpLink(sock, self._options)
        except OSError:  # reset meanwhile
            sock.close()
            return
        self._accept(link)

    def close(self) -> None:
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock.fileno())
            self._sock.close()


class TcpNetwork:
    """TCP over IPv4 and IPv6."""

    def __init__(self, options: TcpOptions | None = None) -> None:
        self._options = options or TcpOptions()

    async def listen(self, endpoint: Endpoint, accept: Callable[[Link], None]) -> TcpListener:
        host, port = endpoint
        try:
            family, _, _, _, address = socket.getaddrinfo(host or None, port, flags=socket.AI_PASSIVE)[0]
            sock = socket.create_server(address[:2], family=family, backlog=1024)
        except (OSError, OverflowError) as error:
            raise BadInput(
                f"listening address {host}:{port} cannot be had ({error}); choose another"
            ) from error
        sock.setblocking(False)
        return TcpListener(sock, accept, self._options)

    async def connect(self, endpoint: Endpoint) -> TcpLink:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(*endpoint, type=socket.SOCK_STREAM)
        fault: OSError | None = None
        for family, kind, protocol, _, address in found:
            sock = socket.socket(family, kind, protocol)
            sock.setblocking(False)
            try:
                await loop.sock_connect(sock, address)
                return TcpLink(sock, self._options)
            except OSError as error:
                fault = error
                sock.close()
            except BaseException:  # cancelled: the socket must not outlive the wait
                sock.close()
                raise
        raise fault or OSError(f"{endpoint[0]} has no address")
