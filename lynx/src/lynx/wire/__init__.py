"""The wire of Lynx, sans-IO: bytes in, events out. Specified in docs/wire.md; knows no torch, no asyncio."""

from lynx.wire.chunks import Chunks
from lynx.wire.frames import checksum, page_header
from lynx.wire.intake import WrongVersionError
from lynx.wire.messages import (
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
    Resume,
)
from lynx.wire.sides import ConsumerSide, Damaged, Pages, ProducerSide

__all__ = [
    "Again",
    "Buffer",
    "Cancel",
    "Chunks",
    "Code",
    "ConsumerSide",
    "Credit",
    "Damaged",
    "Done",
    "End",
    "Failure",
    "Hello",
    "Manifest",
    "Pages",
    "ProducerSide",
    "Resume",
    "WrongVersionError",
    "checksum",
    "page_header",
]
