"""The bytes of messages: pure, total, bounded. Knows no order of messages (see `sides`).

`encode` turns a message into a frame; `decode` turns a frame's body into a message or raises
`ProtocolError` with one sentence. Pages are the exception: `page_header` makes the 24 bytes that precede a
payload, so that a payload is never copied here.
"""

import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Any, get_args

import xxhash

from lynx.codec.interface import Plane
from lynx.errors import BadInput, ProtocolError
from lynx.layout import KvDtype, KvLayout
from lynx.wire.messages import (
    MAX_KEY_BYTES,
    MAX_PAGES,
    MAX_PAYLOAD_BYTES,
    MAX_SENTENCE_BYTES,
    Again,
    Buffer,
    Cancel,
    Code,
    Credit,
    Done,
    End,
    Failure,
    Hello,
    Manifest,
    Message,
    Resume,
)

VERSION = 1
MAGIC = b"\x89LYNX\n"
PREFACE = MAGIC + VERSION.to_bytes(2, "little")

FRAME = struct.Struct("<BBHI")
PAGE = struct.Struct("<BBHIIIQ")
PAGE_BODY = struct.Struct("<IIQ")
_HELLO = struct.Struct("<16s16sBBHIQ")
_END = struct.Struct("<IQQ")
_SHAPE = struct.Struct("<HBHHBIIB")
_FIRST = struct.Struct("<BI")
_CODES = frozenset(Code)
_DTYPES: tuple[KvDtype, ...] = get_args(KvDtype)


class Kind(IntEnum):
    """What a frame is; the value is its first byte."""

    HELLO = 1
    RESUME = 2
    CREDIT = 3
    AGAIN = 4
    DONE = 5
    CANCEL = 6
    MANIFEST = 16
    PAGE = 17
    END = 18
    ERROR = 31


MAX_BODY: dict[Kind, int] = {
    Kind.HELLO: _HELLO.size + MAX_KEY_BYTES,
    Kind.RESUME: 4 + MAX_PAGES // 8,
    Kind.CREDIT: 8,
    Kind.AGAIN: 4,
    Kind.DONE: 0,
    Kind.CANCEL: 0,
    Kind.MANIFEST: 1024,
    Kind.PAGE: MAX_PAYLOAD_BYTES + 16,
    Kind.END: _END.size,
    Kind.ERROR: 2 + MAX_SENTENCE_BYTES,
}
"""Longest body of each kind, checked when the frame's header is read."""


def checksum(plane: int, page: int, payload: Buffer) -> int:
    """XXH3-64 of a payload, bound to its place by the seed."""
    digest: int = xxhash.xxh3_64_intdigest(payload, seed=plane << 32 | page)
    return digest


def page_header(plane: Plane, page: int, payload: Buffer) -> bytes:
    """The 24 bytes that precede ``payload`` on the wire.

    Raises:
        BadInput: the payload is longer than 16 MiB.
    """
    size = len(payload)
    if size > MAX_PAYLOAD_BYTES:
        raise BadInput(f"payload of page {page} has {size} bytes; send at most {MAX_PAYLOAD_BYTES}")
    return PAGE.pack(Kind.PAGE, plane, 0, size + 16, page, size, checksum(plane, page, payload))


def kind_of(message: Message) -> Kind:
    """The kind of frame that carries ``message``."""
    return _KIND_OF[type(message)]


def encode(message: Message) -> bytes:
    """The frame of one message.

    Raises:
        BadInput: a field does not fit the specification.
    """
    plane = 0
    match message:
        case Hello():
            body = _hello_body(message)
        case Resume(pages, bitmap):
            body = pages.to_bytes(4, "little") + bitmap
        case Credit(limit):
            body = limit.to_bytes(8, "little")
        case Again(page):
            body = page.to_bytes(4, "little")
        case Done() | Cancel():
            body = b""
        case Manifest():
            body = _manifest_body(message)
        case End():
            plane = message.plane
            body = _END.pack(message.pages, message.payload_bytes, message.encode_ns)
        case Failure(code, sentence):
            text = sentence.encode()[:MAX_SENTENCE_BYTES].decode(errors="ignore").encode()
            body = code.to_bytes(2, "little") + text
    return FRAME.pack(kind_of(message), plane, 0, len(body)) + body


def decode(kind: Kind, plane: Plane, body: Buffer) -> Message:
    """The message that a frame's body holds; for every kind but PAGE.

    Raises:
        ProtocolError: the body is not one that the specification allows.
    """
    reader = _Reader(kind.name, bytes(body))
    message: Message = _READERS[kind](reader, plane)
    reader.finish()
    return message


def _hello_body(hello: Hello) -> bytes:
    if len(hello.fingerprint) != 16 or len(hello.fetch_id) != 16:
        raise BadInput(
            f"fingerprint has {len(hello.fingerprint)} and fetch id {len(hello.fetch_id)} bytes; give 16 each"
        )
    if not 1 <= len(hello.key) <= MAX_KEY_BYTES:
        raise BadInput(f"key has {len(hello.key)} bytes; give 1 to {MAX_KEY_BYTES}")
    if hello.plane not in hello.wanted:
        raise BadInput(f"wanted planes {hello.wanted} do not hold the connection's own, {hello.plane!r}")
    wanted = sum(1 << plane for plane in set(hello.wanted))
    head = (
        hello.fingerprint,
        hello.fetch_id,
        hello.plane,
        wanted,
        len(hello.key),
        hello.wait_ms,
        hello.credit,
    )
    return _HELLO.pack(*head) + hello.key


def _manifest_body(manifest: Manifest) -> bytes:
    layout = manifest.layout
    parts = [
        _name(manifest.codec),
        _SHAPE.pack(
            layout.layers,
            layout.parts,
            layout.kv_heads,
            layout.head_size,
            _DTYPES.index(layout.dtype),
            manifest.tokens,
            manifest.pages,
            len(manifest.plane_bytes),
        ),
        *(size.to_bytes(8, "little") for size in manifest.plane_bytes),
        _FIRST.pack(manifest.first_token is not None, manifest.first_token or 0),
        bytes([len(manifest.stats)]),
        *(_name(name) + value.to_bytes(8, "little") for name, value in manifest.stats),
    ]
    return b"".join(parts)


def _name(text: str) -> bytes:
    return bytes([len(text)]) + text.encode("ascii")


class _Reader:
    """Takes fields off a body; every way of running out or leaving something is the same error."""

    def __init__(self, name: str, body: bytes) -> None:
        self.name = name
        self._body = body
        self._at = 0

    def refuse(self, why: str) -> ProtocolError:
        return ProtocolError(f"{self.name} frame: {why}; the peer does not follow docs/wire.md")

    def take(self, count: int) -> bytes:
        if self._at + count > len(self._body):
            raise self.refuse(f"{len(self._body)} bytes are too few")
        self._at += count
        return self._body[self._at - count : self._at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def unpack(self, form: struct.Struct) -> tuple[Any, ...]:
        return form.unpack(self.take(form.size))

    def rest(self) -> bytes:
        return self.take(len(self._body) - self._at)

    def ascii(self) -> str:
        raw = self.take(self.number(1))
        if not raw.isascii():
            raise self.refuse(f"name {raw!r} is not ASCII")
        return raw.decode("ascii")

    def finish(self) -> None:
        if self._at != len(self._body):
            raise self.refuse(f"{len(self._body) - self._at} bytes are left over")


def _read_hello(reader: _Reader, _plane: Plane) -> Hello:
    fingerprint, fetch_id, plane, wanted, key_bytes, wait_ms, credit = reader.unpack(_HELLO)
    if plane > 1 or wanted > 3 or not wanted >> plane & 1:
        raise reader.refuse(f"class {plane} and wanted {wanted} are impossible together")
    if not 1 <= key_bytes <= MAX_KEY_BYTES:
        raise reader.refuse(f"key of {key_bytes} bytes is outside 1 to {MAX_KEY_BYTES}")
    planes = tuple(p for p in Plane if wanted >> p & 1)
    return Hello(fingerprint, fetch_id, Plane(plane), planes, reader.take(key_bytes), wait_ms, credit)


def _read_resume(reader: _Reader, _plane: Plane) -> Resume:
    pages = reader.number(4)
    if pages > MAX_PAGES:
        raise reader.refuse(f"{pages} pages are more than {MAX_PAGES}")
    bitmap = reader.take(-(-pages // 8))
    if pages % 8 and bitmap[-1] >> pages % 8:
        raise reader.refuse("spare bits of the bitmap are set")
    return Resume(pages, bitmap)


def _read_manifest(reader: _Reader, _plane: Plane) -> Manifest:
    codec = reader.ascii()
    layers, parts, kv_heads, head_size, dtype, tokens, pages, planes = reader.unpack(_SHAPE)
    if dtype >= len(_DTYPES) or planes not in (1, 2):
        raise reader.refuse(f"dtype {dtype} or number of planes {planes} is unknown")
    plane_bytes = tuple(reader.number(8) for _ in range(planes))
    has_first, first_token = reader.unpack(_FIRST)
    if has_first > 1 or (not has_first and first_token):
        raise reader.refuse(f"first token {first_token} with flag {has_first} is impossible")
    stats = tuple((reader.ascii(), reader.number(8)) for _ in range(reader.number(1)))
    try:
        layout = KvLayout(layers, parts, kv_heads, head_size, _DTYPES[dtype])
        manifest = Manifest(codec, layout, tokens, plane_bytes, first_token if has_first else None, stats)
    except BadInput as error:
        raise reader.refuse(str(error)) from error
    if pages != manifest.pages:
        raise reader.refuse(f"{pages} pages do not fit {tokens} tokens, which make {manifest.pages}")
    return manifest


def _read_error(reader: _Reader, _plane: Plane) -> Failure:
    code = reader.number(2)
    if code not in _CODES:
        raise reader.refuse(f"code {code} is unknown")
    return Failure(Code(code), reader.rest().decode(errors="replace"))


_READERS: dict[Kind, Callable[[_Reader, Plane], Message]] = {
    Kind.HELLO: _read_hello,
    Kind.RESUME: _read_resume,
    Kind.CREDIT: lambda reader, _: Credit(reader.number(8)),
    Kind.AGAIN: lambda reader, _: Again(reader.number(4)),
    Kind.DONE: lambda *_: Done(),
    Kind.CANCEL: lambda *_: Cancel(),
    Kind.MANIFEST: _read_manifest,
    Kind.END: lambda reader, plane: End(plane, *reader.unpack(_END)),
    Kind.ERROR: _read_error,
}

_KIND_OF: dict[type[Message], Kind] = {
    Hello: Kind.HELLO,
    Resume: Kind.RESUME,
    Credit: Kind.CREDIT,
    Again: Kind.AGAIN,
    Done: Kind.DONE,
    Cancel: Kind.CANCEL,
    Manifest: Kind.MANIFEST,
    End: Kind.END,
    Failure: Kind.ERROR,
}
