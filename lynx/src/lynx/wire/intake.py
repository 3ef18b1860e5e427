"""Cuts a stream of bytes into frames, in place.

Received bytes are written straight into a chunk that this module hands out; bodies are views of it. A chunk
is never written again where a view was given out, and lives for as long as a view of it does. Only an
incomplete frame at a chunk's end is copied, into the next chunk. At most one incomplete frame is ever held,
and its length was checked against its kind's bound first.
"""

from collections.abc import Callable, Collection, Iterator

from lynx.codec.interface import Plane
from lynx.errors import ProtocolError
from lynx.wire.frames import FRAME, MAGIC, MAX_BODY, PREFACE, VERSION, Kind

Lease = Callable[[int], memoryview]
"""Gives a writable view of at least so many bytes."""

_KINDS = {int(kind): kind for kind in Kind}
_PLANES = tuple(Plane)


class WrongVersionError(ProtocolError):
    """The peer speaks another version of the wire."""


class Intake:
    """Receives one direction of a connection.

    Args:
        allowed: kinds that the peer may send at all.
        chunk_bytes: least size of a fresh chunk.
        lease: where chunks come from.
    """

    def __init__(self, allowed: Collection[Kind], chunk_bytes: int, lease: Lease) -> None:
        self._bounds = {kind: MAX_BODY[kind] for kind in allowed}
        self._chunk_bytes = chunk_bytes
        self._lease = lease
        self._chunk = lease(chunk_bytes)
        self._start = 0
        self._end = 0
        self._greeted = False

    @property
    def pending_bytes(self) -> int:
        """Bytes of an incomplete frame held now."""
        return self._end - self._start

    @property
    def capacity_bytes(self) -> int:
        """Size of the chunk in use."""
        return len(self._chunk)

    def bound(self, kind: Kind, body_bytes: int) -> None:
        """Lower the bound of one kind."""
        self._bounds[kind] = min(self._bounds[kind], body_bytes)

    def space(self) -> memoryview:
        """Where the next received bytes go; never empty."""
        needed = self._frame_bytes()
        if self._start + needed > len(self._chunk) or self._end == len(self._chunk):
            chunk = self._lease(max(self._chunk_bytes, needed))
            held = self.pending_bytes
            chunk[:held] = self._chunk[self._start : self._end]
            self._chunk, self._start, self._end = chunk, 0, held
        return self._chunk[self._end :]

    def filled(self, count: int) -> Iterator[tuple[Kind, Plane, memoryview]]:
        """``count`` bytes were written to `space`: every frame that is complete now.

        Raises:
            ProtocolError: the bytes are not a frame of an allowed kind within its bound.
        """
        self._end += count
        if not self._greeted and not self._greet():
            return
        while self.pending_bytes >= FRAME.size:
            kind, plane, body_bytes = self._header()
            body = self._start + FRAME.size
            if body + body_bytes > self._end:
                return
            self._start = body + body_bytes
            yield kind, plane, self._chunk[body : self._start].toreadonly()

    def _greet(self) -> bool:
        seen = bytes(self._chunk[self._start : min(self._end, self._start + len(PREFACE))])
        if not MAGIC.startswith(seen[: len(MAGIC)]):
            raise ProtocolError(f"preface is {seen!r}; the peer does not speak Lynx: check the port")
        if len(seen) < len(PREFACE):
            return False
        version = int.from_bytes(seen[len(MAGIC) :], "little")
        if version != VERSION:
            raise WrongVersionError(f"wire version is {version} there, {VERSION} here; run the same release")
        self._start += len(PREFACE)
        self._greeted = True
        return True

    def _header(self) -> tuple[Kind, Plane, int]:
        number, plane, zero, body_bytes = FRAME.unpack_from(self._chunk, self._start)
        kind = _KINDS.get(number)
        if kind is None or kind not in self._bounds:
            raise ProtocolError(f"frame kind is {number}, which this peer may not send; it is malformed")
        if zero or plane > 1 or (plane and kind not in (Kind.PAGE, Kind.END)):
            raise ProtocolError(f"{kind.name} frame: plane is {plane} and zero is {zero}; it is malformed")
        if body_bytes > self._bounds[kind]:
            raise ProtocolError(f"{kind.name} frame: length {body_bytes} is above {self._bounds[kind]}")
        return kind, _PLANES[plane], body_bytes

    def _frame_bytes(self) -> int:
        if not self._greeted:
            return len(PREFACE)
        if self.pending_bytes < FRAME.size:
            return FRAME.size
        return FRAME.size + self._header()[2]
