"""The two ends of a connection: who may say what when.

Each side has a state of its own, moved by what *it* sends; both ends keep both states, so one table serves
the sender (who must not break it) and the receiver (who must not believe it).

    consumer   opening --HELLO--> asking --RESUME--> listening
               listening --CREDIT, AGAIN--> listening --DONE, CANCEL--> closed
    producer   silent --MANIFEST--> sending --PAGE--> sending --END--> ended --PAGE--> ended
    either     any but closed --ERROR--> closed

Rules beyond the tables: MANIFEST only to a listening consumer. After END only pages asked for AGAIN. A page
comes once unless asked for. Page-frame bytes stay within the credit, which never falls.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from lynx.codec.interface import Plane
from lynx.errors import ProtocolError
from lynx.wire.frames import FRAME, PAGE_BODY, PREFACE, Kind, checksum, decode, encode, kind_of
from lynx.wire.intake import Intake, Lease
from lynx.wire.messages import Again, Cancel, Credit, Done, End, Failure, Hello, Manifest, Message, Resume

Table = dict[tuple[str, Kind], str]

CONSUMER: Table = {
    ("opening", Kind.HELLO): "asking",
    ("asking", Kind.RESUME): "listening",
    ("listening", Kind.CREDIT): "listening",
    ("listening", Kind.AGAIN): "listening",
    ("listening", Kind.DONE): "closed",
    ("listening", Kind.CANCEL): "closed",
    ("opening", Kind.ERROR): "closed",
    ("asking", Kind.ERROR): "closed",
    ("listening", Kind.ERROR): "closed",
}
PRODUCER: Table = {
    ("silent", Kind.MANIFEST): "sending",
    ("sending", Kind.PAGE): "sending",
    ("sending", Kind.END): "ended",
    ("ended", Kind.PAGE): "ended",
    ("silent", Kind.ERROR): "closed",
    ("sending", Kind.ERROR): "closed",
    ("ended", Kind.ERROR): "closed",
}
CONSUMER_KINDS = frozenset(kind for _, kind in CONSUMER)
PRODUCER_KINDS = frozenset(kind for _, kind in PRODUCER)

CONSUMER_CHUNK_BYTES = 1 << 20
PRODUCER_CHUNK_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Pages:
    """Pages whose checksum is right: (page index, payload), read-only views that own their memory."""

    pages: list[tuple[int, memoryview]]


@dataclass(frozen=True, slots=True)
class Damaged:
    """A page whose checksum is wrong; its index may be what was damaged."""

    page: int


ConsumerEvent = Manifest | Pages | Damaged | End | Failure
ProducerEvent = Hello | Resume | Credit | Again | Done | Cancel | Failure


def fresh(size: int) -> memoryview:
    """Memory that was never used before."""
    return memoryview(bytearray(size))


def _step(table: Table, who: str, state: str, kind: Kind) -> str:
    try:
        return table[state, kind]
    except KeyError:
        raise ProtocolError(f"{kind.name} frame: the {who} is {state} and may not send it now") from None


class ConsumerSide:
    """A consumer's end of one connection.

    Args:
        hello, resume: how the connection opens.
        lease: where memory for received bytes comes from.
    """

    def __init__(self, hello: Hello, resume: Resume, lease: Lease = fresh) -> None:
        self._hello = hello
        self._resume = resume
        self._intake = Intake(PRODUCER_KINDS, CONSUMER_CHUNK_BYTES, lease)
        self._mine = "opening"
        self._theirs = "silent"
        self._limit = hello.credit
        self._asked: set[int] = set()
        self._held = bytearray(resume.bitmap)
        self._manifest: Manifest | None = None
        self.page_frame_bytes = 0
        self._frames = 0
        self._payload_bytes = 0

    def opening(self) -> bytes:
        """Preface, HELLO and RESUME."""
        return PREFACE + self.send(self._hello) + self.send(self._resume)

    def send(self, message: Message) -> bytes:
        """The bytes of a message. Raises `ProtocolError` when it may not be sent now."""
        self._mine = _step(CONSUMER, "consumer", self._mine, kind_of(message))
        match message:
            case Credit(limit):
                self._limit = limit
            case Again(page):
                self._asked.add(page)
        return encode(message)

    def space(self) -> memoryview:
        """Where the next received bytes go."""
        return self._intake.space()

    @property
    def buffered_bytes(self) -> int:
        """Bytes that the peer makes this side hold now."""
        return self._intake.capacity_bytes

    def filled(self, count: int) -> list[ConsumerEvent]:
        """``count`` bytes were received into `space`: what happened.

        Raises:
            ProtocolError: the peer broke the specification; send ``Failure(MALFORMED)`` and close.
        """
        events: list[ConsumerEvent] = []
        run: list[tuple[int, memoryview]] | None = None
        for kind, plane, body in self._intake.filled(count):
            if kind is not Kind.PAGE:
                run = None
                events.append(self._control(kind, plane, body))
                continue
            page, payload, sound = self._page(plane, body)
            if not sound:
                run = None
                events.append(Damaged(page))
            elif self._take(page):
                if run is None:
                    run = []
                    events.append(Pages(run))
                run.append((page, payload))
        return events

    def resume_point(self) -> Resume:
        """What a new connection starts from."""
        if self._manifest is None:
            return self._resume
        return Resume(self._manifest.pages, bytes(self._held))

    def missing(self) -> Iterator[int]:
        """Pages not held. Only after the manifest."""
        manifest = self._manifest
        pages = manifest.pages if manifest and self._hello.plane in manifest.planes else 0
        return (page for page in range(pages) if not self._held[page >> 3] >> (page & 7) & 1)

    def _control(self, kind: Kind, plane: Plane, body: memoryview) -> ConsumerEvent:
        message = decode(kind, plane, body)
        self._theirs = _step(PRODUCER, "producer", self._theirs, kind)
        match message:
            case Manifest():
                if self._mine != "listening":
                    raise ProtocolError("MANIFEST frame: nothing was asked yet; the peer is malformed")
                if self._resume.pages not in (0, message.pages):
                    raise ProtocolError(f"MANIFEST frame: {message.pages} pages, {self._resume.pages} before")
                self._manifest = message
                self._held = self._held or bytearray(-(-message.pages // 8))
                self._intake.bound(Kind.PAGE, PAGE_BODY.size + message.max_payload_bytes)
            case End(_, pages, payload_bytes, _):
                self._own_plane(plane)
                if (pages, payload_bytes) != (self._frames, self._payload_bytes):
                    raise ProtocolError(
                        f"END frame: {pages} pages of {payload_bytes} bytes announced,"
                        f" {self._frames} of {self._payload_bytes} came"
                    )
        return message  # type: ignore[return-value]  # Intake lets only the producer's kinds through

    def _page(self, plane: Plane, body: memoryview) -> tuple[int, memoryview, bool]:
        self._theirs = _step(PRODUCER, "producer", self._theirs, Kind.PAGE)
        self._own_plane(plane)
        if len(body) < PAGE_BODY.size:
            raise ProtocolError(f"PAGE frame: {len(body)} bytes are less than its header; it is malformed")
        page, size, seal = PAGE_BODY.unpack_from(body)
        payload = body[PAGE_BODY.size :]
        assert self._manifest is not None  # the table let PAGE through, so MANIFEST came
        if size != len(payload) or page >= self._manifest.pages or plane not in self._manifest.planes:
            raise ProtocolError(f"PAGE frame: page {page} of {size} bytes is impossible; it is malformed")
        if self.page_frame_bytes >= self._limit:
            raise ProtocolError(f"PAGE frame: the credit of {self._limit} bytes was used up before it")
        self.page_frame_bytes += FRAME.size + len(body)
        self._frames += 1
        self._payload_bytes += size
        return page, payload, checksum(plane, page, payload) == seal

    def _take(self, page: int) -> bool:
        """Mark a sound page as held; False for the second copy of a page that was asked for again."""
        at, bit = page >> 3, 1 << (page & 7)
        if not self._held[at] & bit:
            if self._theirs == "ended" and page not in self._asked:
                raise ProtocolError(f"PAGE frame: page {page} came after END without being asked for")
            self._held[at] |= bit
            return True
        if page not in self._asked:
            raise ProtocolError(f"PAGE frame: page {page} came twice without being asked for again")
        return False

    def _own_plane(self, plane: Plane) -> None:
        if plane is not self._hello.plane:
            raise ProtocolError(f"frame of the {plane.name} plane on a {self._hello.plane.name} connection")


class ProducerSide:
    """A producer's end of one connection."""

    def __init__(self) -> None:
        self._intake = Intake(CONSUMER_KINDS, PRODUCER_CHUNK_BYTES, fresh)
        self._mine = "silent"
        self._theirs = "opening"
        self._greeted = False
        self._limit = 0
        self._pages: int | None = None
        self.page_frame_bytes = 0

    def send(self, message: Message) -> bytes:
        """The bytes of a message (never a page). Raises `ProtocolError` when it may not be sent now."""
        kind = kind_of(message)
        if isinstance(message, Manifest):
            if self._theirs != "listening":
                raise ProtocolError(f"MANIFEST frame: the consumer is {self._theirs} and asked nothing")
            self._pages = message.pages
        self._mine = _step(PRODUCER, "producer", self._mine, kind)
        preface = b"" if self._greeted else PREFACE
        self._greeted = True
        return preface + encode(message)

    @property
    def may_send(self) -> bool:
        """Whether a page frame may start: credit is left."""
        return self.page_frame_bytes < self._limit

    @property
    def credit_left(self) -> int:
        """Page-frame bytes that may still be sent; may be below zero."""
        return self._limit - self.page_frame_bytes

    def page_sent(self, frame_bytes: int) -> None:
        """Note a page frame handed to the network. Raises `ProtocolError` when it may not be sent now."""
        self._mine = _step(PRODUCER, "producer", self._mine, Kind.PAGE)
        self.page_frame_bytes += frame_bytes

    def space(self) -> memoryview:
        """Where the next received bytes go."""
        return self._intake.space()

    @property
    def buffered_bytes(self) -> int:
        """Bytes that the peer makes this side hold now."""
        return self._intake.capacity_bytes

    def filled(self, count: int) -> Iterator[ProducerEvent]:
        """``count`` bytes were received into `space`: what happened, read as it is iterated.

        One at a time, because an answer to one event (MANIFEST) is judged by the state that it left.

        Raises:
            ProtocolError: the peer broke the specification; send ``Failure(MALFORMED)`` and close.
        """
        for kind, plane, body in self._intake.filled(count):
            yield self._control(kind, plane, body)

    def _control(self, kind: Kind, plane: Plane, body: memoryview) -> ProducerEvent:
        message = decode(kind, plane, body)
        self._theirs = _step(CONSUMER, "consumer", self._theirs, kind)
        match message:
            case Hello():
                self._limit = message.credit
            case Credit(limit):
                if limit < self._limit:
                    raise ProtocolError(f"CREDIT frame: limit falls from {self._limit} to {limit}")
                self._limit = limit
            case Again(page):
                if self._pages is None or page >= self._pages:
                    raise ProtocolError(f"AGAIN frame: page {page} was never offered; it is malformed")
        return message  # type: ignore[return-value]  # Intake lets only the consumer's kinds through
