"""The consumer's side: fetches offers by key and hands their pages to a sink.

`KvClient` runs its own event loop in its own daemon thread; every sink is called there. It is the thread-safe
face of `Consumer`, of which each fetch has one.
"""

import asyncio
import threading

from lynx.codec.interface import Plane
from lynx.errors import BadInput
from lynx.transport.consumer import Consumer
from lynx.transport.loop import LoopThread
from lynx.transport.ports import Endpoint, Held, Network, Sink
from lynx.transport.tcp import TcpNetwork
from lynx.wire import Chunks


class Fetch:
    """One running fetch."""

    def __init__(self, loop: LoopThread) -> None:
        self._loop = loop
        self._over = threading.Event()
        self._task: asyncio.Task[None] | None = None

    def cancel(self) -> None:
        """Stop; from any thread. The sink gets `on_error` with `TransferLost` unless it had its last call."""
        self._loop.call(self._cancel)

    def wait(self, timeout_s: float) -> bool:
        """Block until the sink had its last call; False when ``timeout_s`` passed first."""
        return self._over.wait(timeout_s)

    def _cancel(self) -> None:
        if self._task is not None:
            # Not at once: a task cancelled before its first step would never make the sink's last call.
            asyncio.get_running_loop().call_soon(self._task.cancel)


class KvClient:
    """Fetches KV pages from producers.

    Args:
        fingerprint: 16 bytes of `KvLayout.fingerprint`.
        window_bytes: page bytes that a producer may be ahead of the sink, per connection.
        keep_bytes: receive memory kept for later fetches.
        network: `TcpNetwork()` unless a test hands in another one.

    Raises:
        BadInput: fingerprint or window is impossible.
    """

    def __init__(
        self,
        fingerprint: bytes,
        *,
        window_bytes: int = 16 << 20,
        keep_bytes: int = 256 << 20,
        network: Network | None = None,
    ) -> None:
        if len(fingerprint) != 16:
            raise BadInput(f"fingerprint has {len(fingerprint)} bytes; give the 16 of KvLayout.fingerprint")
        if window_bytes < 1:
            raise BadInput(f"window_bytes is {window_bytes}; it must be positive")
        self._fingerprint = fingerprint
        self._window_bytes = window_bytes
        self._network = network or TcpNetwork()
        self._loop = LoopThread("lynx-consumer")
        self._chunks = Chunks(keep_bytes)
        self._running: dict[asyncio.Task[None], Consumer] = {}

    def start(self) -> None:
        """Start the thread."""
        self._loop.start()

    def fetch(
        self,
        endpoint: Endpoint,
        key: bytes,
        sink: Sink,
        timeout_s: float,
        *,
        planes: tuple[Plane, ...] = (Plane.ANCHOR, Plane.RESIDUAL),
    ) -> Fetch:
        """Fetch the offer ``key``; from any thread, returns at once.

        Args:
            timeout_s: until the last page; also how long the producer waits for an offer not made yet.
            planes: a connection is opened for each. Give ``(Plane.ANCHOR,)`` for a codec with one plane. With
                both, an offer of one plane ends after its anchor.

        Raises:
            BadInput: the key, timeout or planes are impossible or the client is not running.
        """
        if not 1 <= len(key) <= 256:
            raise BadInput(f"offer key has {len(key)} bytes; give 1 to 256")
        if not 0 < timeout_s < 4_000_000:
            raise BadInput(f"timeout_s is {timeout_s}; it must be above 0 and below 4,000,000")
        if not planes or len(set(planes)) != len(planes):
            raise BadInput(f"planes are {planes}; name each wanted plane once")
        if not self._loop.running:
            raise BadInput("fetch came while the client is not running; call start() first")
        consumer = Consumer(
            self._network,
            endpoint,
            self._fingerprint,
            key,
            sink,
            timeout_s,
            planes,
            self._window_bytes,
            self._chunks,
        )
        fetch = Fetch(self._loop)
        self._loop.call(self._begin, fetch, consumer)
        return fetch

    def held(self) -> Held:
        """What the client holds now; ``offers`` counts running fetches, ``bytes`` its receive buffers."""
        running = list(self._running.values())
        sockets = sum(consumer.sockets for consumer in running)
        tasks = sum(1 + consumer.tasks for consumer in running)
        return Held(len(running), sum(consumer.buffered_bytes for consumer in running), sockets, tasks)

    def close(self) -> None:
        """Cancel every fetch (their sinks are told), end the thread. A second time is no error.

        Not from a sink: it waits for the client's own thread.
        """
        if self._loop.running:
            self._loop.run(self._cancel_all())
            self._loop.stop()

    def _begin(self, fetch: Fetch, consumer: Consumer) -> None:
        task = asyncio.get_running_loop().create_task(consumer.run())
        fetch._task = task
        self._running[task] = consumer
        task.add_done_callback(lambda task: self._finish(task, fetch))

    def _finish(self, task: "asyncio.Task[None]", fetch: Fetch) -> None:
        self._running.pop(task)
        fetch._over.set()

    async def _cancel_all(self) -> None:
        tasks = list(self._running)
        await asyncio.sleep(0)  # a task cancelled before its first step would never make its last call
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
