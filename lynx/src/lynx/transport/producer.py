"""What a producer does in its event loop: accepts consumers, matches them with offers, encodes, drops.

Three kinds of work run here: one task per connection, the pump that sends, and one task that encodes, in a
thread of its own, the offer that is due first. An offer ends once, in `_end`, whatever the reason.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from lynx.codec.interface import Plane
from lynx.errors import LynxError, ProtocolError
from lynx.streams import Schedule, TokenBucket
from lynx.transport.loop import Wake
from lynx.transport.offers import Offer
from lynx.transport.ports import Endpoint, Held, Link, Listener, Network, Outcome
from lynx.transport.pump import BURST_BYTES, Pump
from lynx.transport.session import Session
from lynx.wire import Again, Cancel, Code, Credit, Done, Failure, Hello, Resume, WrongVersionError

GREETING_S = 10.0
"""How long a connection may take to say what it wants."""

FAREWELL_S = 0.5
"""How long a closing producer waits for its consumers to read why."""

MAX_SESSIONS = 4096
MAX_GONE = 4096
IN_HAND_BYTES = 4 << 20
"""Anchor bytes encoded ahead that let an offer wait for others' encoding."""

LOOKAHEAD_BYTES = 256 << 20
"""Anchor bytes of one offer encoded before they are sent: much, since blocks are free once all is encoded."""

_log = logging.getLogger(__name__)


class Producer:
    """All offers and connections of one server; used from one event loop only (`held` from anywhere).

    Args:
        fingerprint: what consumers must show.
        schedule, bucket: see `Pump`.
        hold_s: an offer without progress for this long is dropped.
        on_gone: told the key of every offer that has ended.
    """

    def __init__(
        self,
        fingerprint: bytes,
        schedule: Schedule,
        bucket: TokenBucket | None,
        *,
        hold_s: float,
        on_gone: Callable[[bytes], None],
    ) -> None:
        self._fingerprint = fingerprint
        self._schedule = schedule
        self._encode_wake = Wake()
        burst_bytes = BURST_BYTES if bucket is None else min(BURST_BYTES, bucket.burst_bytes)
        self._pump = Pump(schedule, bucket, burst_bytes, self._encode_wake.set)
        self._hold_s = hold_s
        self._on_gone = on_gone
        self._offers: dict[bytes, Offer] = {}
        self._ended: list[Offer] = []
        self._gone: OrderedDict[bytes, Failure] = OrderedDict()
        self._sessions: dict[Session, asyncio.Task[None]] = {}
        self._waiting: dict[bytes, dict[Session, asyncio.TimerHandle]] = {}
        self._own_tasks: list[asyncio.Task[None]] = []
        self._executor: ThreadPoolExecutor | None = None
        self._listener: Listener | None = None
        self._closing = False

    async def listen(self, network: Network, endpoint: Endpoint) -> Endpoint:
        """Start everything; returns where consumers find it. Raises `BadInput`."""
        self._listener = await network.listen(endpoint, self._accept)
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="lynx-encode")
        loop = asyncio.get_running_loop()
        self._own_tasks = [loop.create_task(self._pump.run()), loop.create_task(self._encode())]
        return self._listener.endpoint

    def held(self) -> Held:
        """What is held now."""
        offers = [*self._offers.values(), *self._ended]
        held_bytes = sum(offer.held_bytes for offer in offers)
        return Held(len(offers), held_bytes, len(self._sessions), len(self._sessions))

    async def close(self) -> None:
        """End every offer and connection and this producer's own tasks."""
        self._closing = True
        if self._listener is not None:
            self._listener.close()
        for offer in list(self._offers.values()):
            self._end(offer, Outcome.WITHDRAWN, Failure(Code.CLOSING, "the producer shuts down; ask another"))
        for session in list(self._sessions):
            session.refuse(Failure(Code.CLOSING, "the producer shuts down; ask another"))
        while self._ended:
            await asyncio.get_running_loop().run_in_executor(self._executor, _nothing)
        if self._sessions:  # those who listen close as soon as they have read why
            await asyncio.wait(self._sessions.values(), timeout=FAREWELL_S)
        tasks = [*self._own_tasks, *self._sessions.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._executor is not None:
            self._executor.shutdown()

    def offer(self, offer: Offer) -> None:
        """Hold an offer and serve those who wait for it."""
        self._gone.pop(offer.key, None)
        self._offers[offer.key] = offer
        self._arm(offer)
        for session, timer in self._waiting.pop(offer.key, {}).items():
            timer.cancel()
            self._attach(session, offer)
        self._encode_wake.set()

    def decline(self, key: bytes) -> None:
        """Tell whoever asks for this key that there was no room."""
        failure = Failure(Code.FULL, "the producer has no room to hold this offer; recompute or ask again")
        self._bury(key, failure)
        for session, timer in self._waiting.pop(key, {}).items():
            timer.cancel()
            session.refuse(failure)

    def withdraw(self, key: bytes) -> None:
        """End an offer early."""
        offer = self._offers.get(key)
        if offer is not None:
            self._end(offer, Outcome.WITHDRAWN, Failure(Code.WITHDRAWN, "the offer was withdrawn; recompute"))

    # Connections

    def _accept(self, link: Link) -> None:
        session = Session(link, self._changed)
        if len(self._sessions) >= MAX_SESSIONS or self._closing:
            link.close()
            return
        task = asyncio.get_running_loop().create_task(self._serve(session))
        self._sessions[session] = task
        # Not a `finally` in the task: one that is cancelled before its first step would keep its socket.
        task.add_done_callback(lambda _: self._drop(session))

    async def _serve(self, session: Session) -> None:
        try:
            await self._greet(session)
            while not session.refused:
                await self._receive(session)
        except WrongVersionError as error:
            session.refuse(Failure(Code.VERSION, str(error)))
        except ProtocolError as error:
            session.refuse(Failure(Code.MALFORMED, str(error)))
        except OSError:
            pass  # the consumer is gone; it will come back or its offer's hold ends
        if session.refused and not session.broken:
            await _linger(session)

    async def _greet(self, session: Session) -> None:
        try:
            async with asyncio.timeout(GREETING_S):
                while session.resume is None and not session.refused:
                    await self._receive(session)
        except TimeoutError:
            raise ProtocolError(f"HELLO and RESUME did not come within {GREETING_S} s") from None

    async def _receive(self, session: Session) -> None:
        count = await session.link.recv_into(session.side.space())
        if not count:
            raise ConnectionResetError("the consumer closed the connection")
        for event in session.side.filled(count):
            match event:
                case Hello():
                    self._hello(session, event)
                case Resume():
                    session.resume = event
                    self._ask(session)
                case Credit():
                    session.credit(event)
                case Again():
                    session.again(event)
                case Done():
                    self._done(session)
                case Cancel() | Failure():
                    self._cancelled(session)
            if session.refused:
                return

    def _hello(self, session: Session, hello: Hello) -> None:
        session.hello = hello
        session.plane = hello.plane
        session.link.mark(hello.plane)
        if hello.fingerprint != self._fingerprint:
            session.refuse(
                Failure(Code.FINGERPRINT, "model or KV layout differs; serve the same model on both sides")
            )

    def _ask(self, session: Session) -> None:
        assert session.hello is not None  # the wire lets RESUME through only after HELLO
        key = session.hello.key
        if key in self._offers:
            self._attach(session, self._offers[key])
        elif key in self._gone:
            session.refuse(self._gone[key])
        else:
            wait_s = session.hello.wait_ms / 1000
            timer = asyncio.get_running_loop().call_later(wait_s, self._give_up, session, key)
            self._waiting.setdefault(key, {})[session] = timer

    def _give_up(self, session: Session, key: bytes) -> None:
        self._stop_waiting(session, key)
        session.refuse(Failure(Code.UNKNOWN_KEY, "no offer of this key appeared in time; recompute"))

    def _stop_waiting(self, session: Session, key: bytes) -> None:
        sessions = self._waiting.get(key, {})
        timer = sessions.pop(session, None)
        if timer is not None:
            timer.cancel()
        if not sessions:
            self._waiting.pop(key, None)

    def _attach(self, session: Session, offer: Offer) -> None:
        assert session.resume is not None  # only who has asked is attached
        if session.resume.pages not in (0, offer.manifest.pages):
            session.refuse(
                Failure(Code.RESUME, "the held pages do not fit the offer; fetch it again from the start")
            )
            return
        announced = dict(zip(offer.manifest.planes, offer.manifest.plane_bytes, strict=True))
        size = announced.get(session.plane, 0)
        session.stream = self._schedule.open(session.plane, offer.objective, offer.offered_ns, size)
        self._pump.sessions[session.stream] = session
        offer.active_ns = time.monotonic_ns()
        offer.connected(session.plane)
        session.attach(offer)
        self._changed(session)
        self._encode_wake.set()

    def _changed(self, session: Session) -> None:
        self._pump.changed(session)
        self._encode_wake.set()

    def _done(self, session: Session) -> None:
        hello, offer = session.hello, session.offer
        if hello is None or offer is None:
            raise ProtocolError("DONE frame: nothing was offered yet")
        now_ns = time.monotonic_ns()
        offer.plane_done(hello.fetch_id, session.plane, hello.wanted, now_ns)
        if session.plane is Plane.ANCHOR:
            for other in offer.sessions:
                if (
                    other.hello is not None
                    and other.hello.fetch_id == hello.fetch_id
                    and other is not session
                ):
                    self._anchor_arrived(other, now_ns)
        offer.sessions.discard(session)
        self._count_finished(offer)
        raise ConnectionResetError("the consumer is done")

    def _anchor_arrived(self, residual: Session, now_ns: int) -> None:
        if residual.stream is not None and residual.plane is Plane.RESIDUAL:
            self._schedule.anchor_arrived(residual.stream, now_ns)

    def _cancelled(self, session: Session) -> None:
        if session.offer is not None and session.hello is not None:
            session.offer.finished.setdefault(session.hello.fetch_id, Outcome.CANCELLED)
            session.offer.sessions.discard(session)
            self._count_finished(session.offer)
        raise ConnectionResetError("the consumer cancelled")

    def _drop(self, session: Session) -> None:
        self._sessions.pop(session, None)
        session.broken = True
        session.link.close()
        if session.hello is not None:
            self._stop_waiting(session, session.hello.key)
        if session.offer is not None:
            session.offer.sessions.discard(session)
        if session.stream is not None:
            self._schedule.close(session.stream)
            self._pump.sessions.pop(session.stream, None)
            session.stream = None

    # Offers

    def _arm(self, offer: Offer) -> None:
        idle_s = (time.monotonic_ns() - offer.active_ns) / 1e9
        left_s = max(0.0, self._hold_s - idle_s) + 0.001
        offer.timer = asyncio.get_running_loop().call_later(left_s, self._expire, offer)

    def _expire(self, offer: Offer) -> None:
        if time.monotonic_ns() - offer.active_ns < self._hold_s * 1e9:
            self._arm(offer)
            return
        sentence = f"the offer was not fetched for {self._hold_s} s and was dropped; recompute"
        self._end(offer, Outcome.EXPIRED, Failure(Code.WITHDRAWN, sentence))

    def _count_finished(self, offer: Offer) -> None:
        if len(offer.finished) < offer.consumers:
            return
        delivered = Outcome.DELIVERED in offer.finished.values()
        failure = Failure(Code.WITHDRAWN, "the offer was fetched by all its consumers and dropped; recompute")
        self._end(offer, Outcome.DELIVERED if delivered else Outcome.CANCELLED, failure)

    def _end(self, offer: Offer, outcome: Outcome, failure: Failure) -> None:
        if offer.outcome is not None:
            return
        offer.outcome = outcome
        if offer.timer is not None:
            offer.timer.cancel()
        self._offers.pop(offer.key, None)
        self._bury(offer.key, failure)
        for session in list(offer.sessions):
            session.refuse(failure)
        self._ended.append(offer)
        self._encode_wake.set()

    def _bury(self, key: bytes, failure: Failure) -> None:
        self._gone[key] = failure
        if len(self._gone) > MAX_GONE:
            self._gone.popitem(last=False)
        asyncio.get_running_loop().call_later(self._hold_s, self._unbury, key, failure)

    def _unbury(self, key: bytes, failure: Failure) -> None:
        if self._gone.get(key) is failure:
            del self._gone[key]

    # Encoding

    async def _encode(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while self._ended:
                offer = self._ended[0]
                if not offer.encoded:
                    await loop.run_in_executor(self._executor, _release, offer)
                self._tell_encoded(offer)
                self._ended.remove(offer)
                self._tell_finished(offer)
            due = [offer for offer in self._offers.values() if self._wants_encoding(offer)]
            if not due:
                await self._encode_wake.wait()
                continue
            offer = min(due, key=_encoding_rank)
            await self._encode_batch(offer)

    def _wants_encoding(self, offer: Offer) -> bool:
        return not offer.encoded and offer.ahead_bytes() < LOOKAHEAD_BYTES

    async def _encode_batch(self, offer: Offer) -> None:
        loop = asyncio.get_running_loop()
        try:
            batch = await loop.run_in_executor(self._executor, offer.encode_next)
            if offer.outcome is not None:
                return
            if batch is None:
                offer.all_encoded()
                self._tell_encoded(offer)
            else:
                offer.add(batch)
        except LynxError as error:
            self._end(offer, Outcome.FAILED, Failure(Code.ENCODE_FAILED, str(error)))
        except Exception as error:  # noqa: BLE001 - whatever the engine's source raises must not end the server
            _log.exception("page source of offer %r failed", offer.key)
            self._end(offer, Outcome.FAILED, Failure(Code.ENCODE_FAILED, f"page source failed: {error!r}"))
        offer.active_ns = time.monotonic_ns()
        for session in offer.sessions:
            self._pump.changed(session)

    def _tell_encoded(self, offer: Offer) -> None:
        tell, offer.on_encoded = offer.on_encoded, None
        if tell is not None:
            _guard(offer.key, lambda: tell(offer.key))

    def _tell_finished(self, offer: Offer) -> None:
        self._on_gone(offer.key)
        tell, outcome = offer.on_finished, offer.outcome
        if tell is not None and outcome is not None:
            stats = offer.end_stats(time.monotonic_ns())
            _guard(offer.key, lambda: tell(offer.key, outcome, stats))


async def _linger(session: Session) -> None:
    """Let a refused consumer read why: closing with its bytes unread would reset the connection under it.

    Its session closes the link when it takes too long.
    """
    waste = memoryview(bytearray(4096))
    try:
        while await session.link.recv_into(waste):
            pass
    except OSError:
        return


def _encoding_rank(offer: Offer) -> tuple[bool, int]:
    """Who has little in hand first, then who is due first."""
    return offer.ahead_bytes() > IN_HAND_BYTES, offer.offered_ns + offer.objective.ttft_ns


def _release(offer: Offer) -> None:
    _guard(offer.key, offer.release)


def _guard(key: bytes, call: Callable[[], None]) -> None:
    try:
        call()
    except Exception:  # noqa: BLE001 - the engine's fault must not end the server
        _log.exception("callback of offer %r failed", key)


def _nothing() -> None:
    return
