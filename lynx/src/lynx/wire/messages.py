"""The messages of `docs/wire.md` as values. Knows neither their bytes (`frames`) nor order (`sides`)."""

from dataclasses import dataclass
from enum import IntEnum

from lynx.codec.interface import Plane
from lynx.errors import BadInput, LayoutMismatch, LynxError, PageCorrupt, ProtocolError, TransferLost
from lynx.layout import KvLayout

MAX_KEY_BYTES = 256
MAX_PAGES = 1 << 20
MAX_TOKENS = 1 << 24
MAX_PAYLOAD_BYTES = 1 << 24
MAX_STATS = 16
MAX_NAME_BYTES = 32
MAX_SENTENCE_BYTES = 512

Buffer = bytes | bytearray | memoryview


class Code(IntEnum):
    """Why a side goes away."""

    VERSION = 1
    FINGERPRINT = 2
    UNKNOWN_KEY = 3
    WITHDRAWN = 4
    FULL = 5
    MALFORMED = 6
    ENCODE_FAILED = 7
    RESUME = 8
    CLOSING = 9
    CORRUPT = 10


@dataclass(frozen=True, slots=True)
class Hello:
    """What a consumer wants on this connection.

    Args:
        fingerprint: 16 bytes of `KvLayout.fingerprint`.
        fetch_id: 16 bytes, the same on every connection of one fetch.
        plane: the connection's class.
        wanted: every plane that this fetch wants; holds ``plane``.
        key: the offer's name, 1 to 256 bytes.
        wait_ms: how long the producer may wait for the offer to appear.
        credit: first credit limit in bytes of page frames.
    """

    fingerprint: bytes
    fetch_id: bytes
    plane: Plane
    wanted: tuple[Plane, ...]
    key: bytes
    wait_ms: int
    credit: int


@dataclass(frozen=True, slots=True)
class Resume:
    """Pages already held: a bitmap of ``pages`` bits, least significant bit first; 0 pages = none held."""

    pages: int
    bitmap: bytes

    def holds(self, page: int) -> bool:
        return page < self.pages and bool(self.bitmap[page >> 3] >> (page & 7) & 1)


@dataclass(frozen=True, slots=True)
class Credit:
    """Page-frame bytes that the producer may have sent on this connection, counted from its start."""

    limit: int


@dataclass(frozen=True, slots=True)
class Again:
    """A page arrived damaged: send it once more."""

    page: int


@dataclass(frozen=True, slots=True)
class Done:
    """Every page of the connection's plane is held."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """The consumer wants no more."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What an offer is.

    Args:
        codec: name of the codec, 1 to 32 ASCII characters.
        layout: shape and dtype of the source cache.
        tokens: context length, 1 to 2**24.
        plane_bytes: payload bytes of each plane, one entry per plane; 0 where not known in advance.
        first_token: id of the first generated token, when prefill sampled it.
        stats: at most 16 named counters for people, e.g. ``("prefill_ns", 12)``.

    Raises:
        BadInput: a field is out of its range.
    """

    codec: str
    layout: KvLayout
    tokens: int
    plane_bytes: tuple[int, ...]
    first_token: int | None = None
    stats: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        names = (self.codec, *(name for name, _ in self.stats))
        if not all(name.isascii() and 1 <= len(name) <= MAX_NAME_BYTES for name in names):
            raise BadInput(f"manifest name among {names} is not 1 to {MAX_NAME_BYTES} ASCII characters")
        if not 1 <= self.tokens <= MAX_TOKENS:
            raise BadInput(f"manifest tokens is {self.tokens}; it must be 1 to {MAX_TOKENS}")
        if self.pages > MAX_PAGES:
            raise BadInput(f"manifest has {self.pages} pages; send at most {MAX_PAGES} in one offer")
        if len(self.plane_bytes) not in (1, 2):
            raise BadInput(f"manifest has {len(self.plane_bytes)} planes; a codec has 1 or 2")
        if len(self.stats) > MAX_STATS:
            raise BadInput(f"manifest has {len(self.stats)} stats; give at most {MAX_STATS}")
        numbers = (*self.plane_bytes, *(value for _, value in self.stats))
        if not all(0 <= number < 1 << 64 for number in numbers):
            raise BadInput(f"manifest number among {numbers} does not fit 64 unsigned bits")
        if self.first_token is not None and not 0 <= self.first_token < 1 << 32:
            raise BadInput(f"manifest first_token is {self.first_token}; it must fit 32 unsigned bits")

    @property
    def pages(self) -> int:
        """Number of pages of each plane."""
        return self.layout.page_count(self.tokens)

    @property
    def planes(self) -> tuple[Plane, ...]:
        return tuple(Plane(i) for i in range(len(self.plane_bytes)))

    @property
    def max_payload_bytes(self) -> int:
        """Longest payload that a page of this layout may have."""
        return min(MAX_PAYLOAD_BYTES, 1024 * self.layout.channels + 65536)


@dataclass(frozen=True, slots=True)
class End:
    """Everything not held at RESUME was sent: pages and payload bytes on this connection, encoding time."""

    plane: Plane
    pages: int
    payload_bytes: int
    encode_ns: int


@dataclass(frozen=True, slots=True)
class Failure:
    """Why the sender goes away."""

    code: Code
    sentence: str

    def error(self) -> LynxError:
        """The exception that this refusal is on the other side."""
        match self.code:
            case Code.VERSION | Code.MALFORMED:
                return ProtocolError(self.sentence)
            case Code.FINGERPRINT | Code.RESUME:
                return LayoutMismatch(self.sentence)
            case Code.CORRUPT:
                return PageCorrupt(self.sentence)
            case _:
                return TransferLost(self.sentence)


Message = Hello | Resume | Credit | Again | Done | Cancel | Manifest | End | Failure
