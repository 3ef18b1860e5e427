"""The producer's side: offers held in memory, sent to whoever asks for them by key.

`KvServer` runs its own event loop in its own daemon thread, so that it can live inside an engine's process. It
is the thread-safe face of `Producer`, which lives in that loop.
"""

import threading
import time

from lynx.errors import BadInput
from lynx.streams import Objective, Policy, Schedule, TokenBucket
from lynx.transport.loop import LoopThread
from lynx.transport.offers import Offer, OnEncoded, OnFinished
from lynx.transport.ports import Endpoint, Held, Network, PageSource
from lynx.transport.producer import Producer
from lynx.transport.tcp import TcpNetwork
from lynx.wire import Manifest

BUCKET_SECONDS = 0.004
"""What the token bucket lets through at once: about the timer error of a busy event loop."""


class KvServer:
    """Offers KV pages to consumers.

    Args:
        host, port: where to listen; port 0 takes any free one.
        fingerprint: 16 bytes of `KvLayout.fingerprint`; consumers with another one are refused.
        policy: ``strict`` or ``edf``, see `lynx.streams`.
        rate_bps: token bucket over all connections, bits per second; `None` leaves pacing to the kernel.
        hold_s: an offer is dropped when nothing was fetched from it for this long.
        max_held_bytes: encoded payloads held over all offers, reserved when an offer is made.
        network: `TcpNetwork()` unless a test hands in another one.

    Raises:
        BadInput: policy, rate or fingerprint is impossible.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        fingerprint: bytes,
        policy: Policy = "edf",
        rate_bps: int | None = None,
        hold_s: float = 120.0,
        max_held_bytes: int = 4 << 30,
        network: Network | None = None,
    ) -> None:
        if len(fingerprint) != 16:
            raise BadInput(f"fingerprint has {len(fingerprint)} bytes; give the 16 of KvLayout.fingerprint")
        self._endpoint = (host, port)
        self._network = network or TcpNetwork()
        self._max_held_bytes = max_held_bytes
        self._loop = LoopThread("lynx-producer")
        self._lock = threading.Lock()
        self._reserved: dict[bytes, int] = {}
        self._rate_bps = rate_bps
        self._producer = Producer(
            fingerprint, Schedule(policy), _bucket(rate_bps), hold_s=hold_s, on_gone=self._forget
        )

    def start(self) -> Endpoint:
        """Listen; returns the host and port. Raises `BadInput` when they cannot be had."""
        self._loop.start()
        try:
            return self._loop.run(self._producer.listen(self._network, self._endpoint))
        except BadInput:
            self.close()
            raise

    def offer(
        self,
        key: bytes,
        manifest: Manifest,
        source: PageSource,
        *,
        objective: Objective | None = None,
        consumers: int = 1,
        on_encoded: OnEncoded | None = None,
        on_finished: OnFinished | None = None,
    ) -> bool:
        """Offer pages under a key; from any thread, returns at once.

        Args:
            key: 1 to 256 bytes, not in use.
            source: pulled in the encoding thread, a bounded way ahead of what is sent.
            objective: when the planes are due; `Objective()` otherwise.
            consumers: the offer is dropped when this many fetches have all they wanted.
            on_encoded: called once, in the server's thread, when the source will not be touched again:
                all pages are encoded, or the offer ended. The engine's blocks may be freed then.
            on_finished: called once, in the server's thread, after ``on_encoded``, when the offer is gone.

        Returns:
            False when ``max_held_bytes`` has no room: the source was not touched, no callback will be called,
            and whoever asks for the key within ``hold_s`` is told so at once.

        Raises:
            BadInput: the key is in use or has an impossible length, or the server is not running.
        """
        if not 1 <= len(key) <= 256:
            raise BadInput(f"offer key has {len(key)} bytes; give 1 to 256")
        if not self._loop.running:
            raise BadInput("offer came while the server is not running; call start() first")
        size = _reservation(manifest)
        with self._lock:
            if key in self._reserved:
                raise BadInput(f"offer key {key!r} is in use; withdraw it or choose another")
            room = sum(self._reserved.values()) + size <= self._max_held_bytes
            if room:
                self._reserved[key] = size
        if not room:
            self._loop.call(self._producer.decline, key)
            return False
        offer = Offer(
            key,
            manifest,
            source,
            objective or Objective(),
            consumers,
            on_encoded,
            on_finished,
            time.monotonic_ns(),
        )
        self._loop.call(self._producer.offer, offer)
        return True

    def withdraw(self, key: bytes) -> None:
        """Take an offer back; its consumers are told. From any thread; an unknown key is no error."""
        self._loop.call(self._producer.withdraw, key)

    def held(self) -> Held:
        """What the server holds now; the listening socket and the server's own two tasks are not counted."""
        return self._producer.held()

    def close(self) -> None:
        """Withdraw everything, close every socket, end the thread. A second time is no error.

        Not from a callback: it waits for the server's own thread.
        """
        if self._loop.running:
            self._loop.run(self._producer.close())
            self._loop.stop()

    def _forget(self, key: bytes) -> None:
        with self._lock:
            self._reserved.pop(key, None)


def _bucket(rate_bps: int | None) -> TokenBucket | None:
    if rate_bps is None:
        return None
    return TokenBucket(rate_bps, max(1, int(rate_bps / 8 * BUCKET_SECONDS)), time.monotonic_ns())


def _reservation(manifest: Manifest) -> int:
    """Bytes to reserve: what the manifest announces, else a quarter more than the uncompressed cache."""
    if all(manifest.plane_bytes):
        return sum(manifest.plane_bytes) + 24 * manifest.pages * len(manifest.planes)
    return manifest.layout.token_bytes * manifest.tokens * 5 // 4
