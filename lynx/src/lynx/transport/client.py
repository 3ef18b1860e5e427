"""The consumer's side: fetches offers by key and hands their pages to a sink.

`KvClient` runs its own event loop in its own daemon thread; every sink is called there.
"""

from typing import Protocol

from lynx.codec.interface import Plane
from lynx.transport.ports import Endpoint, Network, Sink
from lynx.transport.server import Held


class Fetch(Protocol):
    """One running fetch."""

    def cancel(self) -> None:
        """Stop; from any thread. The sink gets `on_error` with `TransferLost` unless it had its last call."""
        ...

    def wait(self, timeout_s: float) -> bool:
        """Block until the sink had its last call; False when ``timeout_s`` passed first."""
        ...


class KvClient:
    """Fetches KV pages from producers.

    Args:
        fingerprint: 16 bytes of `KvLayout.fingerprint`.
        window_bytes: page bytes that a producer may be ahead of the sink, per connection.
        network: `TcpNetwork()` unless a test hands in another one.
    """

    def __init__(
        self, fingerprint: bytes, *, window_bytes: int = 16 << 20, network: Network | None = None
    ) -> None:
        raise NotImplementedError

    def start(self) -> None:
        """Start the thread."""
        raise NotImplementedError

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
            BadInput: the key or timeout is impossible or the client is not running.
        """
        raise NotImplementedError

    def held(self) -> Held:
        """What the client holds now; ``offers`` counts running fetches."""
        raise NotImplementedError

    def close(self) -> None:
        """Cancel every fetch (their sinks are told), end the thread. A second time is no error."""
        raise NotImplementedError
