"""The daemon from Python.

    from k40s.local.client import Client
    with Client() as k40s:
        k40s.apply(Path("cell.yaml").read_text())
        print(k40s.top().score)

Errors are those of `k40s.errors`, as the daemon raised them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from k40s import api, errors
from k40s.api.manifest import parse
from k40s.errors import EffectFailed, K40sError, Unreachable
from k40s.local.bodies import AppliedBody, EventBody, Top
from k40s.local.config import socket_path

TIMEOUT_S = 60.0

REFUSED = "only root and the socket's group may talk to the daemon"


class Client:
    """A connection to the daemon. Every verb may raise `Unreachable`."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or socket_path()
        transport = httpx.HTTPTransport(uds=str(self.path))
        self._http = httpx.Client(transport=transport, base_url="http://k40s", timeout=TIMEOUT_S)

    def _ask(self, method: str, path: str, **options: Any) -> Any:
        try:
            answer = self._http.request(method, path, **options)
        except httpx.HTTPError as error:
            if os.access(self.path, os.F_OK) and not os.access(self.path, os.W_OK):
                raise Unreachable(f"socket {self.path}: {REFUSED}") from error
            raise Unreachable(
                f"socket {self.path}: no daemon answers ({error}); start one with `k40s up`, or set K40S_SOCKET"
            ) from error
        if answer.status_code == 403:
            raise Unreachable(f"socket {self.path}: {REFUSED}")
        if answer.is_error:
            raise _error_of(answer)
        return answer.json() if answer.content else None

    def health(self) -> dict[str, str]:
        """Version and node of the daemon."""
        found: dict[str, str] = self._ask("GET", "/v1/health")
        return found

    def apply(self, text: str) -> list[AppliedBody]:
        """Take manifests in."""
        return [
            AppliedBody.model_validate(one) for one in self._ask("POST", "/v1/apply", content=text.encode())
        ]

    def jobs(self) -> list[api.CriticalJob]:
        """All jobs with their status."""
        return [parse(api.CriticalJob, data) for data in self._ask("GET", "/v1/jobs")]

    def job(self, name: str) -> api.CriticalJob:
        """One job, `name` or `namespace/name`."""
        return parse(api.CriticalJob, self._ask("GET", f"/v1/jobs/{_full(name)}"))

    def why_not(self, name: str) -> Sequence[str]:
        """Why a job does not run."""
        return tuple(self._ask("GET", f"/v1/jobs/{_full(name)}/why-not")["lines"])

    def delete(self, name: str) -> None:
        """Stop a job and forget it."""
        self._ask("DELETE", f"/v1/jobs/{_full(name)}")

    def events(self, after: int = 0, most: int = 200) -> list[EventBody]:
        """What happened, oldest first."""
        found = self._ask("GET", "/v1/events", params={"after": after, "most": most})
        return [EventBody.model_validate(one) for one in found]

    def node(self) -> api.NodeAssurance:
        """The node's assurance."""
        return parse(api.NodeAssurance, self._ask("GET", "/v1/node"))

    def explain(self) -> Sequence[str]:
        """Every point of the node's score in words."""
        return tuple(self._ask("GET", "/v1/node/explain")["lines"])

    def top(self) -> Top:
        """What runs now."""
        return Top.model_validate(self._ask("GET", "/v1/top"))

    def down(self, everything: bool = False) -> None:
        """End the daemon, with its jobs or without."""
        self._ask("POST", "/v1/down", params={"everything": everything})

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _full(name: str) -> str:
    return name if "/" in name else f"default/{name}"


def _error_of(answer: httpx.Response) -> K40sError:
    try:
        body = answer.json()
        kind, message = getattr(errors, body["error"], EffectFailed), str(body["message"])
    except (ValueError, KeyError, TypeError):
        return EffectFailed(f"the daemon answered {answer.status_code}: {answer.text[:200]}")
    if kind is errors.InvalidManifest or not isinstance(kind, type) or not issubclass(kind, K40sError):
        return errors.BadInput(message) if answer.status_code == 400 else EffectFailed(message)
    return kind(message)
