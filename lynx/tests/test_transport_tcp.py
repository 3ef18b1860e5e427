"""What only real sockets show: marks, hostile peers, peers that do not read, order on a shared link."""

import asyncio
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing

import pytest

from lynx.codec.interface import Plane
from lynx.errors import BadInput, LynxError, ProtocolError
from lynx.layout import KvLayout
from lynx.transport import (
    Endpoint,
    Held,
    KvClient,
    KvServer,
    Outcome,
    PageBatch,
    TcpNetwork,
    TcpOptions,
    TransferStats,
)
from lynx.transport.ports import Link
from lynx.wire import Cancel, Code, Done, Hello, Manifest, Resume
from lynx.wire.frames import PREFACE, encode

LAYOUT = KvLayout(4, 2, 2, 64, "bfloat16")
FINGERPRINT = LAYOUT.fingerprint("model")
PATIENCE_S = 60
NOTHING = Held(0, 0, 0, 0)


class Zeros:
    """Pages of zeros."""

    def __init__(self, manifest: Manifest, size: int) -> None:
        self.manifest = manifest
        self.pair = (bytes(size),) * len(manifest.planes)

    def batches(self) -> Iterator[PageBatch]:
        for first in range(0, self.manifest.pages, 16):
            pages = range(first, min(first + 16, self.manifest.pages))
            yield PageBatch(pages, [self.pair] * len(pages))


class Counter:
    """A sink that counts."""

    def __init__(self) -> None:
        self.pages = 0
        self.stats: TransferStats | None = None
        self.error: LynxError | None = None

    def on_manifest(self, manifest: Manifest) -> None:
        pass

    def on_pages(self, plane: Plane, pages: Sequence[tuple[int, memoryview]]) -> None:
        self.pages += len(pages)

    def on_plane_end(self, plane: Plane) -> None:
        pass

    def on_done(self, stats: TransferStats) -> None:
        self.stats = stats

    def on_error(self, error: LynxError) -> None:
        self.error = error


@pytest.fixture
def server() -> Iterator[tuple[KvServer, Endpoint]]:
    server = KvServer("127.0.0.1", 0, fingerprint=FINGERPRINT)
    yield server, server.start()
    server.close()
    assert server.held() == NOTHING


@pytest.fixture
def client() -> Iterator[KvClient]:
    client = KvClient(FINGERPRINT)
    client.start()
    yield client
    client.close()
    assert client.held() == NOTHING


def manifest(tokens: int = 1000) -> Manifest:
    return Manifest("nested", LAYOUT, tokens, (0, 0))


def opening(key: bytes, plane: Plane = Plane.ANCHOR, credit: int = 1 << 40) -> bytes:
    hello = Hello(FINGERPRINT, b"i" * 16, plane, tuple(Plane), key, 60_000, credit)
    return PREFACE + encode(hello) + encode(Resume(0, b""))


def wait_for(condition: object) -> None:
    assert callable(condition)
    pause = threading.Event()
    for _ in range(PATIENCE_S * 100):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("it never came")


def read_all(sock: socket.socket) -> bytes:
    data = b""
    while piece := sock.recv(1 << 16):
        data += piece
    return data


@pytest.mark.parametrize(
    ("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")], ids=["v4", "v6"]
)
def test_classes_are_marked(family: socket.AddressFamily, address: str) -> None:
    options = TcpOptions(anchor_dscp=46, residual_dscp=8, anchor_priority=5, residual_priority=1)
    level, name = (
        (socket.IPPROTO_IP, socket.IP_TOS)
        if family == socket.AF_INET
        else (socket.IPPROTO_IPV6, socket.IPV6_TCLASS)
    )

    async def marks() -> list[tuple[int, int]]:
        found = []
        accepted: list[Link] = []
        network = TcpNetwork(options)
        listener = await network.listen((address, 0), accepted.append)
        for plane in Plane:
            link = await network.connect(listener.endpoint)
            link.mark(plane)
            sock = link._sock
            found.append(
                (sock.getsockopt(level, name) >> 2, sock.getsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY))
            )
            link.close()
        listener.close()
        for end in accepted:
            end.close()
        return found

    assert asyncio.run(marks()) == [(46, 5), (8, 1)]


def test_impossible_dscp_is_refused() -> None:
    with pytest.raises(BadInput, match="anchor_dscp is 64"):
        TcpOptions(anchor_dscp=64)


@pytest.mark.parametrize(
    "garbage",
    [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", PREFACE + b"\xff" * 64, bytes(1 << 16), PREFACE + encode(Done())],
    ids=["http", "kinds", "zeros", "order"],
)
def test_garbage_is_answered_with_an_error_and_a_close(
    server: tuple[KvServer, Endpoint], garbage: bytes
) -> None:
    producer, endpoint = server
    with closing(socket.create_connection(endpoint, timeout=PATIENCE_S)) as sock:
        sock.sendall(garbage)
        sock.shutdown(socket.SHUT_WR)
        answer = read_all(sock)
    assert answer.startswith(PREFACE) and answer[len(PREFACE)] == 31
    assert struct.unpack_from("<H", answer, len(PREFACE) + 8) == (Code.MALFORMED,)
    wait_for(lambda: producer.held() == NOTHING)


def test_other_version_is_told(server: tuple[KvServer, Endpoint]) -> None:
    with closing(socket.create_connection(server[1], timeout=PATIENCE_S)) as sock:
        sock.sendall(PREFACE[:6] + b"\x09\x00")
        sock.shutdown(socket.SHUT_WR)
        answer = read_all(sock)
    assert struct.unpack_from("<H", answer, len(PREFACE) + 8) == (Code.VERSION,)


@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH_9.2\r\n", PREFACE + b"\xee" * 100])
def test_consumer_gives_up_at_once_on_a_peer_that_talks_garbage(client: KvClient, answer: bytes) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:

        def talk() -> None:
            for _ in Plane:
                peer, _ = listening.accept()
                with closing(peer):
                    peer.sendall(answer)
                    peer.settimeout(PATIENCE_S)
                    try:
                        read_all(peer)
                    except OSError:
                        continue  # reset: it has given up, which is the point

        thread = threading.Thread(target=talk)
        thread.start()
        sink = Counter()
        fetch = client.fetch(listening.getsockname(), b"k", sink, PATIENCE_S)
        assert fetch.wait(PATIENCE_S / 2)
        thread.join(PATIENCE_S)
    assert isinstance(sink.error, ProtocolError)


def test_consumer_that_stops_reading_holds_up_nobody_else(
    server: tuple[KvServer, Endpoint], client: KvClient
) -> None:
    producer, endpoint = server
    big, small = manifest(tokens=250_000), manifest()
    producer.offer(b"big", big, Zeros(big, 4000))
    with closing(socket.create_connection(endpoint, timeout=PATIENCE_S)) as deaf:
        deaf.sendall(opening(b"big"))
        assert deaf.recv(1)
        sinks = [Counter() for _ in range(10)]
        for number, sink in enumerate(sinks):
            producer.offer(b"%d" % number, small, Zeros(small, 4000))
            assert client.fetch(endpoint, b"%d" % number, sink, PATIENCE_S).wait(PATIENCE_S)
            assert sink.stats is not None and sink.pages == 2 * small.pages
        wait_for(lambda: producer.held().sockets == 1)
    producer.withdraw(b"big")
    wait_for(lambda: producer.held() == NOTHING)


def test_hold_ends_although_a_deaf_consumer_is_connected() -> None:
    outcomes: list[Outcome] = []
    ended = threading.Event()

    def finished(_: bytes, outcome: Outcome, __: TransferStats) -> None:
        outcomes.append(outcome)
        ended.set()

    producer = KvServer("127.0.0.1", 0, fingerprint=FINGERPRINT, hold_s=0.3)
    endpoint = producer.start()
    with (
        closing(producer),
        closing(socket.create_connection(endpoint, timeout=PATIENCE_S)) as deaf,
    ):
        big = manifest(tokens=250_000)
        producer.offer(b"big", big, Zeros(big, 4000), on_finished=finished)
        deaf.sendall(opening(b"big"))
        assert ended.wait(PATIENCE_S)
        assert outcomes == [Outcome.EXPIRED]
        wait_for(lambda: producer.held() == NOTHING)


def test_vanished_consumer_leaves_no_session(server: tuple[KvServer, Endpoint]) -> None:
    producer, endpoint = server
    for _ in range(20):
        sock = socket.create_connection(endpoint, timeout=PATIENCE_S)
        sock.sendall(opening(b"never offered"))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
    wait_for(lambda: producer.held() == NOTHING)


def test_cancel_ends_the_offer(server: tuple[KvServer, Endpoint]) -> None:
    producer, endpoint = server
    producer.offer(b"k", manifest(), Zeros(manifest(), 4000))
    with closing(socket.create_connection(endpoint, timeout=PATIENCE_S)) as sock:
        sock.sendall(opening(b"k", credit=1) + encode(Cancel()))
        read_all(sock)
    wait_for(lambda: producer.held() == NOTHING)


def test_an_anchor_overtakes_residuals_on_a_slow_link(client: KvClient) -> None:
    """While a long residual fills a 40 Mbit/s link, a new anchor, once it flows, has the link to itself."""
    long, short = manifest(tokens=100_000), manifest(tokens=8000)
    background = Counter()
    behind: list[int] = []

    class Urgent(Counter):
        def on_pages(self, plane: Plane, pages: Sequence[tuple[int, memoryview]]) -> None:
            super().on_pages(plane, pages)
            behind.append(background.pages)

    with closing(
        KvServer("127.0.0.1", 0, fingerprint=FINGERPRINT, policy="strict", rate_bps=40_000_000)
    ) as producer:
        endpoint = producer.start()
        encoded = threading.Semaphore(0)
        for key, what, size in ((b"long", long, 8000), (b"short", short, 4000)):
            producer.offer(key, what, Zeros(what, size), on_encoded=lambda _: encoded.release())
            assert encoded.acquire(timeout=PATIENCE_S)
        running = client.fetch(endpoint, b"long", background, PATIENCE_S, planes=(Plane.RESIDUAL,))
        wait_for(lambda: background.pages > 20)
        urgent = Urgent()
        fetch = client.fetch(endpoint, b"short", urgent, PATIENCE_S, planes=(Plane.ANCHOR,))
        assert fetch.wait(PATIENCE_S) and urgent.pages == short.pages
        running.cancel()
        assert running.wait(PATIENCE_S)
    assert background.pages < long.pages, "the residual was over before the anchor came: nothing was shown"
    fair_share = short.pages * 4000 // 8000
    assert behind[-1] - behind[0] <= fair_share // 8, behind
