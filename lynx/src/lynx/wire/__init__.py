"""The wire of Lynx, sans-IO: bytes in, events out. Specified in docs/wire.md; knows no torch, no asyncio."""

from lynx.wire.frames import checksum, page_header
from lynx.wire.messages import Buffer, Code, Failure, Manifest

__all__ = ["Buffer", "Code", "Failure", "Manifest", "checksum", "page_header"]
