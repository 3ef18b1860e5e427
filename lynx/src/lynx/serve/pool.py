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

_MUST_MATCH = ("fingerprint", "codec")
"""What a prefill and a decode instance must say alike in ``/lynx/info``."""


@dataclass(slots=True, eq=False)
class Instance:
    """One prefill or decode instance as the router sees it.

    Args:
        url: base address, without a trailing slash.
        role: which pool it is in.
        info: its ``/lynx/info``; empty for a stock server that has none.
        trouble: why it is not used, in a sentence; ``None`` when it is up.
        load: requests that the router has in flight on it.
    """

    url: str
    role: Role
    info: dict[str, Any] = field(default_factory=dict)
    trouble: str | None = "not yet asked for its health"
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
        probe_timeout_s: float = 2.0,
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
        """The engine that serves a request undivided: best one that does not draft, decode before prefill."""
        return min(
            (i for i in self.instances if i.up and i not in without),
            key=lambda i: (i.drafts, i.role == "prefill", i.load),
            default=None,
        )

    async def probe(self) -> None:
        """Ask every instance for its health, and one that has come up for what it serves."""
        await asyncio.gather(*(self._probe(instance) for instance in self.instances))
        _mark_mismatches(self.instances)

    async def watch(self, every_s: float) -> None:
        """Probe for ever."""
        while True:
            await self.probe()
            await asyncio.sleep(every_s)

    async def _probe(self, instance: Instance) -> None:
        try:
            health = await self._http.get(f"{instance.url}/health", timeout=self._probe_timeout_s)
            if health.status_code != 200:
                instance.trouble = f"{instance.url} answers its health check with {health.status_code}"
                return
            if not instance.up:
                info = await self._http.get(f"{instance.url}/lynx/info", timeout=self._probe_timeout_s)
                instance.info = info.json() if info.status_code == 200 else {}
        except (httpx.HTTPError, ValueError) as error:
            instance.trouble = f"{instance.url} cannot be reached ({type(error).__name__})"
            return
        instance.trouble = None


def _mark_mismatches(instances: Sequence[Instance]) -> None:
    """Take out of use what differs from the first decode instance that is up: its KV would be refused."""
    known = [instance for instance in instances if instance.up and instance.info]
    first = min(known, key=lambda instance: instance.role == "prefill", default=None)
    for instance in known:
        for name in _MUST_MATCH:
            if first and instance.info.get(name) != first.info.get(name):
                instance.trouble = (
                    f"{instance.url} serves {name} {instance.info.get(name)!r} but {first.url} serves "
                    f"{first.info.get(name)!r}; start both with the same model and codec"
                )


def _base_url(url: str) -> str:
    parsed = httpx.URL(url)
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise BadInput(f"instance address is {url!r}; write it as http://host:port")
    return url.rstrip("/")
