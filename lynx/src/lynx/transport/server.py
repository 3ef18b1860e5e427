"""The producer's side: offers held in memory, sent to whoever asks for them by key.

`KvServer` runs its own event loop in its own daemon thread, so that it can live inside an engine's process.
"""

from collections.abc import Callable
from dataclasses import dataclass

from lynx.streams import Objective, Policy
from lynx.transport.ports import Endpoint, Network, Outcome, PageSource, TransferStats
from lynx.wire import Manifest

OnEncoded = Callable[[bytes], None]
OnFinished = Callable[[bytes, Outcome, TransferStats], None]


@dataclass(frozen=True, slots=True)
class Held:
    """What a server or client holds on to; all zero when it has nothing to do."""

    offers: int
    bytes: int
    sockets: int
    tasks: int


class KvServer:
    """Offers KV pages to consumers.

    Args:
        host, port: where to listen; port 0 takes any free one.
        fingerprint: 16 bytes of `KvLayout.fingerprint`; consumers with another one are refused.
        policy: ``strict`` or ``edf``, see `lynx.streams`.
        rate_bps: token bucket over all connections, bits per second; `None` leaves pacing to the kernel.
        hold_s: an offer is dropped when nobody fetched from it for this long.
        max_held_bytes: encoded payloads held over all offers, reserved when an offer is made.
        network: `TcpNetwork()` unless a test hands in another one.
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
        raise NotImplementedError

    def start(self) -> Endpoint:
        """Listen; returns the host and port. Raises `BadInput` when they cannot be had."""
        raise NotImplementedError

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
            key: 1 to 256 bytes, unused so far.
            source: pulled in the encoding thread, a bounded way ahead of what is sent.
            objective: when the planes are due; the server's default otherwise.
            consumers: the offer is dropped when this many fetches have all they wanted.
            on_encoded: called once, in the server's thread, when the source will not be touched again:
                all pages are encoded, or the offer ended. The engine's blocks may be freed then.
            on_finished: called once, in the server's thread, after ``on_encoded``, when the offer is gone.

        Returns:
            False when ``max_held_bytes`` has no room: the source was not touched, no callback will be called,
            and whoever asks for the key within ``hold_s`` is told so at once.

        Raises:
            BadInput: the key is taken or has an impossible length, or the server is not running.
        """
        raise NotImplementedError

    def withdraw(self, key: bytes) -> None:
        """Take an offer back; its consumers are told. From any thread; an unknown key is no error."""
        raise NotImplementedError

    def held(self) -> Held:
        """What the server holds now; the listening socket and the server's own two tasks are not counted."""
        raise NotImplementedError

    def close(self) -> None:
        """Withdraw everything, close every socket, end the thread. A second time is no error."""
        raise NotImplementedError
