"""One suite for every network: what a producer and a consumer promise, whatever lies between them."""

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest

from lynx.codec.interface import Plane
from lynx.errors import BadInput, LayoutMismatch, LynxError, PageCorrupt, TransferLost
from lynx.layout import KvLayout
from lynx.transport import (
    Held,
    KvClient,
    KvServer,
    Outcome,
    PageBatch,
    TransferStats,
)
from lynx.transport.memory import HarmfulNetwork, MemoryNetwork
from lynx.transport.ports import Network
from lynx.transport.tcp import TcpNetwork
from lynx.wire import End, Manifest
from lynx.wire.frames import PAGE, PREFACE, encode

LAYOUT = KvLayout(4, 2, 2, 64, "bfloat16")
FINGERPRINT = LAYOUT.fingerprint("model")
BOTH = (Plane.ANCHOR, Plane.RESIDUAL)
PATIENCE_S = 60
NOTHING = Held(0, 0, 0, 0)


def payload(page: int, plane: Plane, size: int = 3000) -> bytes:
    return random.Random(page * 2 + plane).randbytes(size + page)


@dataclass
class Source:
    """Pages of a context, in batches of eight; the plane count is the manifest's."""

    manifest: Manifest
    size: int = 3000
    given: int = 0
    closed: bool = False

    def batches(self) -> Iterator[PageBatch]:
        try:
            for first in range(0, self.manifest.pages, 8):
                pages = range(first, min(first + 8, self.manifest.pages))
                yield PageBatch(
                    pages,
                    [tuple(payload(p, plane, self.size) for plane in self.manifest.planes) for p in pages],
                )
                self.given += len(pages)
        finally:
            self.closed = True


@dataclass
class Recorder:
    """A sink that keeps everything and checks the order of calls."""

    manifests: list[Manifest] = field(default_factory=list)
    pages: dict[tuple[Plane, int], bytes] = field(default_factory=dict)
    ends: list[Plane] = field(default_factory=list)
    last: list[TransferStats | LynxError] = field(default_factory=list)
    on_first_page: Callable[[], None] = lambda: None

    def on_manifest(self, manifest: Manifest) -> None:
        assert not self.last and not self.pages
        self.manifests.append(manifest)

    def on_pages(self, plane: Plane, pages: Sequence[tuple[int, memoryview]]) -> None:
        assert self.manifests and plane not in self.ends and not self.last
        first = not self.pages
        for page, view in pages:
            assert (plane, page) not in self.pages, "a page came twice"
            self.pages[plane, page] = bytes(view)
        if first:
            self.on_first_page()

    def on_plane_end(self, plane: Plane) -> None:
        assert plane not in self.ends and not self.last
        self.ends.append(plane)

    def on_done(self, stats: TransferStats) -> None:
        self.last.append(stats)

    def on_error(self, error: LynxError) -> None:
        self.last.append(error)

    def assert_complete(self, source: Source) -> TransferStats:
        manifest = source.manifest
        assert isinstance(self.last[0], TransferStats), self.last
        assert len(self.last) == 1 and self.manifests == [manifest]
        assert sorted(self.ends) == list(manifest.planes)
        wanted = {(p, i): payload(i, p, source.size) for p in manifest.planes for i in range(manifest.pages)}
        assert self.pages == wanted
        return self.last[0]

    def failure(self) -> LynxError:
        assert len(self.last) == 1 and isinstance(self.last[0], LynxError), self.last
        return self.last[0]


class Ends:
    """Waits for offers to end."""

    def __init__(self) -> None:
        self.outcomes: dict[bytes, Outcome] = {}
        self.stats: dict[bytes, TransferStats] = {}
        self.calls: list[tuple[str, bytes]] = []
        self._changed = threading.Condition()

    def encoded(self, key: bytes) -> None:
        with self._changed:
            self.calls.append(("encoded", key))
            self._changed.notify_all()

    def finished(self, key: bytes, outcome: Outcome, stats: TransferStats) -> None:
        with self._changed:
            self.calls.append(("finished", key))
            self.outcomes[key] = outcome
            self.stats[key] = stats
            self._changed.notify_all()

    def wait(self, what: str, key: bytes) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: (what, key) in self.calls, PATIENCE_S), self.calls


class House:
    """A producer, a consumer and a network between them."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.ends = Ends()
        self._open: list[KvServer | KvClient] = []

    def server(self, **options: object) -> KvServer:
        settings = {"fingerprint": FINGERPRINT, "network": self.network, **options}
        server = KvServer("127.0.0.1", 0, **settings)  # type: ignore[arg-type]  # tests give options by name
        self.endpoint = server.start()
        self._open.append(server)
        return server

    def client(self, network: Network | None = None, **options: object) -> KvClient:
        settings = {"fingerprint": FINGERPRINT, "network": network or self.network, **options}
        client = KvClient(**settings)  # type: ignore[arg-type]  # tests give options by name
        client.start()
        self._open.append(client)
        return client

    def offer(self, server: KvServer, key: bytes, source: Source, **options: object) -> bool:
        return server.offer(
            key,
            source.manifest,
            source,
            on_encoded=self.ends.encoded,
            on_finished=self.ends.finished,
            **options,  # type: ignore[arg-type]  # tests give options by name
        )

    def close(self) -> None:
        for end in reversed(self._open):
            end.close()
            assert end.held() == NOTHING


@pytest.fixture(params=["tcp", "memory", "memory-slow"])
def house(request: pytest.FixtureRequest) -> Iterator[House]:
    networks: dict[str, Network] = {
        "tcp": TcpNetwork(),
        "memory": MemoryNetwork(),
        "memory-slow": MemoryNetwork(delay_s=0.002, capacity_bytes=20_000),
    }
    before = set(threading.enumerate())
    house = House(networks[request.param])
    yield house
    house.close()
    ours = {t for t in threading.enumerate() if t.name.startswith("lynx-")} - before
    assert not ours, "a thread was left"


def manifest(tokens: int = 1000, planes: int = 2) -> Manifest:
    return Manifest("nested", LAYOUT, tokens, (0,) * planes, 17, (("prefill_ns", 5),))


def wait_idle(*ends: KvServer | KvClient) -> None:
    """Wait until nothing is held; event-free on purpose: counts are all the public interface shows."""
    pause = threading.Event()
    for _ in range(PATIENCE_S * 100):
        if all(end.held() == NOTHING for end in ends):
            return
        pause.wait(0.01)
    raise AssertionError([end.held() for end in ends])


def test_both_planes_arrive_whole_and_nothing_is_left(house: House) -> None:
    server, client = house.server(), house.client()
    source, sink = Source(manifest()), Recorder()
    assert house.offer(server, b"k", source)
    assert client.fetch(house.endpoint, b"k", sink, PATIENCE_S).wait(PATIENCE_S)
    stats = sink.assert_complete(source)
    house.ends.wait("finished", b"k")
    wait_idle(server, client)
    assert house.ends.calls == [("encoded", b"k"), ("finished", b"k")]
    assert house.ends.outcomes == {b"k": Outcome.DELIVERED} and source.closed
    sent = house.ends.stats[b"k"]
    for plane, here, there in ((0, stats.anchor, sent.anchor), (1, stats.residual, sent.residual)):
        size = sum(len(data) for (p, _), data in sink.pages.items() if p == plane)
        assert here.payload_bytes == there.payload_bytes == size and here.pages == source.manifest.pages
        assert here.wire_bytes == there.wire_bytes > size
        assert here.connections == 1 and stats.started_ns <= here.first_byte_ns <= here.end_ns
        assert here.encode_ns > 0


def test_one_plane_codec_needs_one_connection(house: House) -> None:
    server, client = house.server(), house.client()
    for key, planes in ((b"anchor", (Plane.ANCHOR,)), (b"both", BOTH)):
        source, sink = Source(manifest(planes=1)), Recorder()
        house.offer(server, key, source)
        assert client.fetch(house.endpoint, key, sink, PATIENCE_S, planes=planes).wait(PATIENCE_S)
        stats = sink.assert_complete(source)
        assert stats.residual.connections == len(planes) - 1 and stats.residual.pages == 0
        house.ends.wait("finished", key)


def test_consumer_may_come_before_the_offer(house: House) -> None:
    server, client = house.server(), house.client()
    source, sink = Source(manifest()), Recorder()
    fetch = client.fetch(house.endpoint, b"k", sink, PATIENCE_S)
    while server.held().sockets < 2:
        assert not fetch.wait(0.001)
    house.offer(server, b"k", source)
    assert fetch.wait(PATIENCE_S)
    sink.assert_complete(source)


def test_offer_that_never_comes_is_refused_after_the_announced_wait(house: House) -> None:
    server, client = house.server(), house.client()
    sink = Recorder()
    assert client.fetch(house.endpoint, b"k", sink, 0.2).wait(PATIENCE_S)
    assert isinstance(sink.failure(), TransferLost)
    wait_idle(server, client)


def test_other_model_is_refused_at_once(house: House) -> None:
    house.server()
    client = house.client(fingerprint=LAYOUT.fingerprint("other"))
    sink = Recorder()
    assert client.fetch(house.endpoint, b"k", sink, PATIENCE_S).wait(PATIENCE_S / 2)
    assert isinstance(sink.failure(), LayoutMismatch)


def test_several_consumers_of_one_key(house: House) -> None:
    server, client = house.server(), house.client()
    source, sinks = Source(manifest()), [Recorder() for _ in range(3)]
    house.offer(server, b"k", source, consumers=3)
    for fetch in [client.fetch(house.endpoint, b"k", sink, PATIENCE_S) for sink in sinks]:
        assert fetch.wait(PATIENCE_S)
    for sink in sinks:
        sink.assert_complete(source)
    house.ends.wait("finished", b"k")
    wait_idle(server, client)


@pytest.mark.parametrize("seed", range(4))
def test_connections_cut_anywhere_are_resumed_page_by_page(house: House, seed: int) -> None:
    dice = random.Random(seed)
    cuts = [dice.randrange(90_000) for _ in range(6)]
    server = house.server()
    client = house.client(HarmfulNetwork(house.network, cuts=cuts))
    source, sink = Source(manifest()), Recorder()
    house.offer(server, b"k", source)
    assert client.fetch(house.endpoint, b"k", sink, PATIENCE_S).wait(PATIENCE_S)
    stats = sink.assert_complete(source)
    assert stats.anchor.connections + stats.residual.connections > 2
    for plane in (stats.anchor, stats.residual):
        assert plane.pages == source.manifest.pages, "a page that was held came again"
    wait_idle(server, client)


def test_cut_at_every_byte_of_the_start(house: House) -> None:
    server = house.server(hold_s=PATIENCE_S)
    source, offsets = Source(manifest(tokens=10)), range(0, 200, 4)
    house.offer(server, b"k", source, consumers=len(offsets))
    for offset in offsets:
        sink, client = Recorder(), house.client(HarmfulNetwork(house.network, cuts=[offset, offset + 2]))
        assert client.fetch(house.endpoint, b"k", sink, PATIENCE_S).wait(PATIENCE_S)
        sink.assert_complete(source)
        client.close()


def test_damaged_page_is_asked_once_more(house: House) -> None:
    server = house.server()
    client = house.client(HarmfulNetwork(house.network, flips=[{40_000}, {60_000}]))
    source, sink = Source(manifest()), Recorder()
    house.offer(server, b"k", source)
    assert client.fetch(house.endpoint, b"k", sink, PATIENCE_S).wait(PATIENCE_S)
    stats = sink.assert_complete(source)
    assert stats.anchor.damaged == stats.residual.damaged == 1
    assert stats.anchor.connections == stats.residual.connections == 1
    wait_idle(server, client)


def test_page_damaged_twice_is_corrupt(house: House) -> None:
    server = house.server()
    # One page alone: it comes at a known place, and comes again right behind END.
    tiny = KvLayout(1, 1, 1, 64, "bfloat16")
    source, sink = Source(Manifest("bf16", tiny, 10, (0,))), Recorder()
    first = len(PREFACE) + len(encode(source.manifest)) + PAGE.size
    second = first + source.size + len(encode(End(Plane.ANCHOR, 1, 1, 1))) + PAGE.size
    client = house.client(HarmfulNetwork(house.network, flips=[{first + 10, second + 10}]))
    house.offer(server, b"k", source)
    house.ends.wait("encoded", b"k")
    fetch = client.fetch(house.endpoint, b"k", sink, PATIENCE_S, planes=(Plane.ANCHOR,))
    assert fetch.wait(PATIENCE_S)
    assert isinstance(sink.failure(), PageCorrupt)
    wait_idle(client)


def test_withdrawn_offer_is_a_refusal(house: House) -> None:
    server, client = house.server(), house.client(window_bytes=1)
    source, sink = Source(manifest(tokens=20_000)), Recorder()
    sink.on_first_page = lambda: server.withdraw(b"k")
    house.offer(server, b"k", source)
    assert client.fetch(house.endpoint, b"k", sink, PATIENCE_S).wait(PATIENCE_S / 2)
    assert isinstance(sink.failure(), TransferLost)
    house.ends.wait("finished", b"k")
    assert house.ends.outcomes[b"k"] is Outcome.WITHDRAWN and source.closed
    late = Recorder()
    assert client.fetch(house.endpoint, b"k", late, PATIENCE_S).wait(PATIENCE_S / 2)
    assert "withdrawn" in str(late.failure())
    wait_idle(server, client)


def test_cancel_frees_both_sides(house: House) -> None:
    server, client = house.server(), house.client(window_bytes=1)
    source, sink = Source(manifest(tokens=20_000)), Recorder()
    house.offer(server, b"k", source)
    begun = threading.Event()
    sink.on_first_page = begun.set
    fetch = client.fetch(house.endpoint, b"k", sink, PATIENCE_S)
    assert begun.wait(PATIENCE_S)
    fetch.cancel()
    assert fetch.wait(PATIENCE_S)
    assert "cancelled" in str(sink.failure())
    house.ends.wait("finished", b"k")
    assert house.ends.outcomes[b"k"] is Outcome.CANCELLED
    wait_idle(server, client)


def test_cancel_before_the_first_step_is_told(house: House) -> None:
    house.server()
    client, sink = house.client(), Recorder()
    fetch = client.fetch(house.endpoint, b"k", sink, PATIENCE_S)
    fetch.cancel()
    assert fetch.wait(PATIENCE_S)
    assert "cancelled" in str(sink.failure())


def test_hold_ends_when_nobody_comes(house: House) -> None:
    server = house.server(hold_s=0.05)
    house.offer(server, b"k", Source(manifest()))
    house.ends.wait("finished", b"k")
    assert house.ends.outcomes[b"k"] is Outcome.EXPIRED
    wait_idle(server)


def test_full_producer_says_so_at_once(house: House) -> None:
    server, client = house.server(max_held_bytes=1000), house.client()
    sink = Recorder()
    assert not house.offer(server, b"k", Source(manifest()))
    assert client.fetch(house.endpoint, b"k", sink, PATIENCE_S).wait(PATIENCE_S / 2)
    assert "no room" in str(sink.failure()) and not house.ends.calls


@dataclass
class BadSource(Source):
    fault: str = "raises"

    def batches(self) -> Iterator[PageBatch]:
        good = PageBatch([0, 1], [(b"a", b"b")] * 2)
        yield good
        match self.fault:
            case "raises":
                raise BadInput("layer 3 holds NaN at token 5; check the model")
            case "bug":
                raise ZeroDivisionError
            case "twice":
                yield good
            case "plane":
                yield PageBatch([2], [(b"a",)])
            case "index":
                yield PageBatch([10_000], [(b"a", b"b")])
            case "long":
                yield PageBatch([2], [(bytes(1 << 20), b"b")])


@pytest.mark.parametrize("fault", ["raises", "bug", "twice", "plane", "index", "long", "short"])
def test_source_that_fails_fails_its_transfer_alone(house: House, fault: str) -> None:
    server, client = house.server(), house.client()
    sink, good, other = Recorder(), Source(manifest()), Recorder()
    house.offer(server, b"bad", BadSource(manifest(), fault=fault))
    assert client.fetch(house.endpoint, b"bad", sink, PATIENCE_S).wait(PATIENCE_S / 2)
    assert isinstance(sink.failure(), TransferLost)
    house.ends.wait("finished", b"bad")
    assert house.ends.outcomes[b"bad"] is Outcome.FAILED
    house.offer(server, b"good", good)
    assert client.fetch(house.endpoint, b"good", other, PATIENCE_S).wait(PATIENCE_S)
    other.assert_complete(good)
    wait_idle(server, client)


@pytest.mark.parametrize("error", [PageCorrupt("code 9 of page 3 is impossible"), ValueError("bug")])
def test_sink_that_raises_fails_its_fetch_alone(house: House, error: Exception) -> None:
    def fail() -> None:
        raise error

    server, client = house.server(), house.client()
    source, sink, other = Source(manifest()), Recorder(on_first_page=fail), Recorder()
    house.offer(server, b"k", source, consumers=2)
    assert client.fetch(house.endpoint, b"k", sink, PATIENCE_S).wait(PATIENCE_S)
    assert str(error) in str(sink.failure())
    assert client.fetch(house.endpoint, b"k", other, PATIENCE_S).wait(PATIENCE_S)
    other.assert_complete(source)
    wait_idle(server, client)


def test_fifty_transfers_at_once_leave_nothing(house: House) -> None:
    server, client = house.server(), house.client()
    keys = [b"k%d" % number for number in range(50)]
    sources = {key: Source(manifest(tokens=50 + 40 * number), size=500) for number, key in enumerate(keys)}
    sinks = {key: Recorder() for key in keys}
    fetches = []
    for number, key in enumerate(keys):
        if number % 2:
            house.offer(server, key, sources[key])
        fetches.append(client.fetch(house.endpoint, key, sinks[key], PATIENCE_S))
        if not number % 2:
            house.offer(server, key, sources[key])
    for fetch in fetches:
        assert fetch.wait(PATIENCE_S)
    for key in keys:
        sinks[key].assert_complete(sources[key])
        house.ends.wait("finished", key)
    wait_idle(server, client)


def test_producer_that_closes_tells_its_consumers(house: House) -> None:
    server, client = house.server(), house.client(window_bytes=1)
    source, sink, waiting = Source(manifest(tokens=20_000)), Recorder(), Recorder()
    begun = threading.Event()
    sink.on_first_page = begun.set
    house.offer(server, b"k", source)
    fetches = [client.fetch(house.endpoint, b"k", sink, PATIENCE_S)]
    fetches.append(client.fetch(house.endpoint, b"later", waiting, PATIENCE_S))
    assert begun.wait(PATIENCE_S)
    while server.held().sockets < 4:
        assert not fetches[1].wait(0.001)
    server.close()
    for fetch, told in zip(fetches, (sink, waiting), strict=True):
        assert fetch.wait(PATIENCE_S)
        assert "shuts down" in str(told.failure())
    assert house.ends.outcomes == {b"k": Outcome.WITHDRAWN} and source.closed
    wait_idle(server, client)


def test_producer_that_restarts_is_found_again(house: House) -> None:
    client, sink, source = house.client(), Recorder(), Source(manifest())
    first = house.server()
    endpoint = house.endpoint
    first.close()
    fetch = client.fetch(endpoint, b"k", sink, PATIENCE_S)
    assert not fetch.wait(0.05)
    second = KvServer(*endpoint, fingerprint=FINGERPRINT, network=house.network)
    second.start()
    try:
        house.offer(second, b"k", source)
        assert fetch.wait(PATIENCE_S)
        sink.assert_complete(source)
    finally:
        second.close()


def test_rate_limit_sends_the_anchor_first(house: House) -> None:
    server, client = house.server(rate_bps=8_000_000, policy="strict"), house.client()
    source, sink = Source(manifest(tokens=1000)), Recorder()
    house.offer(server, b"k", source)
    house.ends.wait("encoded", b"k")
    assert client.fetch(house.endpoint, b"k", sink, PATIENCE_S).wait(PATIENCE_S)
    stats = sink.assert_complete(source)
    assert sink.ends == list(BOTH)
    sent = stats.anchor.wire_bytes + stats.residual.wire_bytes
    assert stats.ended_ns - stats.started_ns > 0.8 * sent * 1000  # 8 Mbit/s are 1000 ns a byte


def test_slow_sink_holds_back_its_producer_only_by_the_window(house: House) -> None:
    server, client = house.server(), house.client(window_bytes=10_000)
    source, sink = Source(manifest()), Recorder()
    house.offer(server, b"k", source)
    assert client.fetch(house.endpoint, b"k", sink, PATIENCE_S).wait(PATIENCE_S)
    sink.assert_complete(source)


@pytest.mark.parametrize("key", [b"", b"x" * 257])
def test_impossible_keys(house: House, key: bytes) -> None:
    server, client = house.server(), house.client()
    with pytest.raises(BadInput, match="key"):
        house.offer(server, key, Source(manifest()))
    with pytest.raises(BadInput, match="key"):
        client.fetch(house.endpoint, key, Recorder(), 1)


def test_key_in_use_port_in_use_and_not_running(house: House) -> None:
    server = house.server()
    house.offer(server, b"k", Source(manifest()))
    with pytest.raises(BadInput, match="in use"):
        house.offer(server, b"k", Source(manifest()))
    with pytest.raises(BadInput, match="cannot be had"):
        KvServer(*house.endpoint, fingerprint=FINGERPRINT, network=house.network).start()
    asleep = KvServer("127.0.0.1", 0, fingerprint=FINGERPRINT, network=house.network)
    with pytest.raises(BadInput, match="not running"):
        house.offer(asleep, b"k", Source(manifest()))
    with pytest.raises(BadInput, match="not running"):
        KvClient(FINGERPRINT, network=house.network).fetch(house.endpoint, b"k", Recorder(), 1)
