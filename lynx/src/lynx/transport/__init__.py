"""Moves pages between processes: asyncio TCP, and an in-memory network for tests."""

from lynx.transport.client import Fetch, KvClient
from lynx.transport.ports import (
    Endpoint,
    Held,
    Outcome,
    PageBatch,
    PageSource,
    PlaneStats,
    Sink,
    TransferStats,
)
from lynx.transport.server import KvServer
from lynx.transport.tcp import TcpNetwork, TcpOptions

__all__ = [
    "Endpoint",
    "Fetch",
    "Held",
    "KvClient",
    "KvServer",
    "Outcome",
    "PageBatch",
    "PageSource",
    "PlaneStats",
    "Sink",
    "TcpNetwork",
    "TcpOptions",
    "TransferStats",
]
