"""The instances behind a router: which are up, which is least loaded, which do not belong together.

Knows how to ask an instance for its health and what it serves; knows nothing of requests.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from lynx.errors import BadInput
from lynx.serve.config import Role

_MUST_MATCH = ("model", "fingerprint", "codec")
"""What a prefill and a decode instance must say alike in ``/lynx/info``."""


@dataclass(slots=True, eq=False)
class Instance:
    """One prefill or decode instance as the router sees it.

    Args:
        url: base address, without a trailing slash.
        role: which pool it is in.
        info: its ``/lynx/info``; empty for a stock server that has none.
        trouble: why it is not used, in a sentence; ``None`` when it is up.
        mismatched: it is up, but serves another model or codec than the rest.
        load: requests that the router has in flight on it.
    """

    url: str
    role: Role
    info: dict[str, Any] = field(default_factory=dict)
    trouble: str | None = "not yet asked for its health"
    mismatched: bool = False
    load: int = 0

    @property
    def up(self) -> bool:
        return self.trouble is None

    @property
    def drafts(self) -> bool:
        """Whether its engine drafts, and therefore refuses what a drafting engine cannot serve."""
        return self.role == "decode" and self.info.get("drafts", 0) != 0

    @contextmanager
    def in_use(self) -> Iterator[None]:
        self.load += 1
        try:
            yield
        finally:
            self.load -= 1


class Pool:
    """All instances of one router.

    Args:
        prefill: base URLs of the prefill instances.
        decode: base URLs of the decode instances, at least one instance in all.
        http: client to ask them with.
        probe_timeout_s: how long an answer to a health question may take.

    Raises:
        BadInput: no instance, or an address that is not ``http://host:port``.
    """

    def __init__(
        self,
        prefill: Sequence[str],
        decode: Sequence[str],
        http: httpx.AsyncClient,
        probe_timeout_s: float = 5.0,
    ) -> None:
        if not decode and not prefill:
            raise BadInput("no instance was named; give --prefill and --decode at least one URL each")
        self.instances = [Instance(_base_url(url), "prefill") for url in prefill]
        self.instances += [Instance(_base_url(url), "decode") for url in decode]
        self._http = http
        self._probe_timeout_s = probe_timeout_s

    def choose(self, role: Role, without: Sequence[Instance] = ()) -> Instance | None:
        """The least loaded instance of ``role`` that is up and not in ``without``."""
        return min(
            (i for i in self.instances if i.role == role and i.up and i not in without),
            key=lambda instance: instance.load,
            default=None,
        )

    def choose_whole(self, without: Sequence[Instance] = ()) -> Instance | None:
        """The engine that serves a request undivided: one that does not draft, decode before prefill.

        When none is up, one that missed its health check is still worth a try; a mismatched one never is.
        """
        return min(
            (i for i in self.instances if not i.mismatched and i not in without),
            key=lambda i: (not i.up, i.drafts, i.role == "prefill", i.load),
            default=None,
        )

    async def probe(self) -> None:
        """Ask every instance for its health, and one that has come up for what it serves."""
        troubles = await asyncio.gather(*(self._trouble(instance) for instance in self.instances))
        for instance, trouble in zip(self.instances, troubles, strict=True):
            mismatch = None if trouble else _mismatch(instance, self.instances)
            instance.trouble, instance.mismatched = trouble or mismatch, mismatch is not None

    async def watch(self, every_s: float) -> None:
        """Probe for ever."""
        while True:
            await self.probe()
            await asyncio.sleep(every_s)

    async def _trouble(self, instance: Instance) -> str | None:
        try:
            health = await self._http.get(f"{instance.url}/health", timeout=self._probe_timeout_s)
            if health.status_code != 200:
                return f"{instance.url} answers its health check with {health.status_code}"
            if not instance.up:
                info = await self._http.get(f"{instance.url}/lynx/info", timeout=self._probe_timeout_s)
                instance.info = info.json() if info.status_code == 200 else {}
        except (httpx.HTTPError, ValueError) as error:
            return f"{instance.url} cannot be reached ({type(error).__name__})"
        return None


def _mismatch(instance: Instance, others: Sequence[Instance]) -> str | None:
    """Why ``instance`` does not belong with the first decode instance whose info is known: its KV would be
    refused, so it must not be used.
    """
    first = min((i for i in others if i.info), key=lambda i: i.role == "prefill", default=None)
    for name in _MUST_MATCH if first and instance.info else ():
        if first and instance.info.get(name) != first.info.get(name):
            return (
                f"{instance.url} serves {name} {instance.info.get(name)!r} but {first.url} serves "
                f"{first.info.get(name)!r}; start both with the same model and codec"
            )
    return None


def _base_url(url: str) -> str:
    parsed = httpx.URL(url)
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise BadInput(f"instance address is {url!r}; write it as http://host:port")
    return url.rstrip("/")
