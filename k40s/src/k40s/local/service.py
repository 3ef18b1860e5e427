"""The HTTP API of the daemon, and who may use it: root and the members of the socket's group.

Two locks on one door: the socket file belongs to root and the group with mode 0660, and each connection's peer is
asked for by SO_PEERCRED, so that a socket passed on or a mode changed by mistake lets nobody else in. OpenAPI at
`/openapi.json`.
"""

from __future__ import annotations

import asyncio
import grp
import os
import pwd
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from uvicorn.protocols.http.h11_impl import H11Protocol

from k40s import __version__, api
from k40s.api.manifest import to_data
from k40s.errors import BadInput, Conflict, K40sError, NotFound, Unsupported
from k40s.local.bodies import AppliedBody, EventBody, Lines, Top
from k40s.local.engine import Engine
from k40s.local.top import top_of

STATUS: dict[type[K40sError], int] = {BadInput: 400, NotFound: 404, Conflict: 409, Unsupported: 422}
MOST_BODY_BYTES = 8 << 20
PEER = struct.Struct("3i")


def make_app(engine: Engine, stop: Callable[[bool], None]) -> FastAPI:
    """The API over an engine. `stop(everything)` ends the daemon, with its jobs or without."""
    app = FastAPI(title="k4.0s on one machine", version=__version__)

    @app.exception_handler(K40sError)
    async def _told(_: Request, error: K40sError) -> JSONResponse:
        code = next((code for kind, code in STATUS.items() if isinstance(error, kind)), 500)
        return JSONResponse({"error": type(error).__name__, "message": str(error)}, status_code=code)

    @app.get("/v1/health")
    def health() -> dict[str, str]:
        """Whether it answers, and its version."""
        return {"version": __version__, "node": engine.config.node}

    @app.post(
        "/v1/apply", openapi_extra={"requestBody": {"content": {"application/yaml": {}}, "required": True}}
    )
    async def apply(request: Request) -> list[AppliedBody]:
        """Take manifests in (YAML or JSON); jobs are admitted with a proof or refused with reasons."""
        text = await _text(request)
        resources = api.load(text)
        done = await asyncio.to_thread(engine.apply, resources)
        return [AppliedBody.model_validate(applied) for applied in done]

    @app.get("/v1/jobs")
    def jobs() -> list[dict[str, Any]]:
        """All jobs with their status, the most critical first."""
        return [to_data(job) for job in engine.all_jobs()]

    @app.get("/v1/jobs/{namespace}/{name}")
    def job(namespace: str, name: str) -> dict[str, Any]:
        """One job with its status."""
        return to_data(engine.job(f"{namespace}/{name}"))

    @app.get("/v1/jobs/{namespace}/{name}/why-not")
    def why_not(namespace: str, name: str) -> Lines:
        """Why a job does not run."""
        return Lines(lines=engine.why_not(f"{namespace}/{name}"))

    @app.delete("/v1/jobs/{namespace}/{name}", status_code=204)
    def delete(namespace: str, name: str) -> Response:
        """Stop a job and forget it."""
        engine.delete(f"{namespace}/{name}")
        return Response(status_code=204)

    @app.get("/v1/events")
    def events(after: int = 0, most: int = 200) -> list[EventBody]:
        """What happened after event `after`: the newest `most`, oldest first."""
        return [EventBody.model_validate(event) for event in engine.events(after, max(1, min(most, 1000)))]

    @app.get("/v1/node")
    def node() -> dict[str, Any]:
        """The node's assurance with its evidence."""
        return to_data(engine.node())

    @app.get("/v1/node/explain")
    def explain() -> Lines:
        """Every point of the score, what can be enforced, and what is measured how often."""
        return Lines(lines=engine.explanation())

    @app.get("/v1/top")
    def top() -> Top:
        """What runs now, how it does, and what the daemon itself costs."""
        return top_of(engine)

    @app.post("/v1/down", status_code=202)
    def down(everything: bool = False) -> dict[str, str]:
        """End the daemon: jobs run on, or with `everything` they are stopped and the machine is as it was."""
        stop(everything)
        return {"outcome": "stopping"}

    return app


async def _text(request: Request) -> str:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_BODY_BYTES:
            raise BadInput(f"manifest: more than {MOST_BODY_BYTES >> 20} MiB, split it")
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise BadInput(f"manifest: byte {error.start} is not UTF-8, save it as UTF-8") from error


def allowed(uid: int, gid: int, group: str) -> bool:
    """Whether a process of this user and group may use the socket."""
    if uid == 0:
        return True
    wanted = grp.getgrnam(group)
    if gid == wanted.gr_gid and wanted.gr_gid != 0:
        return True
    try:
        return pwd.getpwuid(uid).pw_name in wanted.gr_mem
    except KeyError:
        return False  # a user without a name is in no group


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """User and group id at the other end of a Unix socket."""
    _, uid, gid = PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))
    return uid, gid


def guarded_protocol(group: str) -> type[H11Protocol]:
    """uvicorn's protocol, closed to everybody else before a byte is read."""

    class Guarded(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn narrows it
            if allowed(*peer_of(transport.get_extra_info("socket")), group):
                super().connection_made(transport)
            else:
                transport.write(b"HTTP/1.1 403 Forbidden\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
                transport.close()
                self.refused = True

        def data_received(self, data: bytes) -> None:
            if not getattr(self, "refused", False):
                super().data_received(data)

        def connection_lost(self, exc: Exception | None) -> None:
            if not getattr(self, "refused", False):
                super().connection_lost(exc)

        def eof_received(self) -> None:
            if not getattr(self, "refused", False):
                super().eof_received()

    return Guarded


def listen(path: Path, group: str) -> socket.socket:
    """The socket, made so that there is no moment in which others could open it."""
    try:
        gid = grp.getgrnam(group).gr_gid
    except KeyError as error:
        raise BadInput(f"group {group!r} does not exist: make it with groupadd, or name another") from error
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_socket():
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(str(path)) == 0:
                raise Conflict(f"socket {path}: a daemon answers there already, stop it with `k40s down`")
        path.unlink()
    fresh = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        fresh.bind(str(path))
    finally:
        os.umask(before)
    os.chown(path, 0, gid)
    path.chmod(0o660)
    return fresh
