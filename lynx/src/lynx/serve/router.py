"""The router: one OpenAI-compatible address in front of prefill and decode instances.

A request is prefilled on one instance and answered by another, whose answer goes to the client byte for byte.
Whatever fails on the way, the client gets a correct answer or one clear error: prefill lost means that decode
computes the prompt itself, decode lost (before the first byte) means one more attempt elsewhere.
"""

import asyncio
import json
import time
import uuid
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import httpx
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from lynx.errors import BadInput
from lynx.serve.answer import EventSplitter, error_body, error_event, event_data, lynx_event
from lynx.serve.breakdown import stages
from lynx.serve.listener import bind
from lynx.serve.metrics import RouterMetrics
from lynx.serve.plan import Api, Body, Opaque, Split, Whole, decode_body, plan, prefill_body
from lynx.serve.pool import Instance, Pool

_NOT_RELAYED = frozenset(
    # Hop by hop, or written anew by the server and client libraries on either side.
    (
        "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer",
        "transfer-encoding", "upgrade", "host", "content-length", "accept-encoding", "date", "server",
    )
)  # fmt: skip
_CLIENT_GONE = 499
"""What books and metrics call it; nobody is there to read it."""
_RECORDS = 1024
_ATTEMPTS = 2
"""A request that ends its engine must not be carried from one engine to the next until none is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig:
    """How a router behaves.

    Args:
        prefill: base URLs of prefill instances.
        decode: base URLs of decode instances.
        timeout_s: how long a client may wait without getting a byte.
        probe_every_s: time between health checks.
    """

    prefill: tuple[str, ...]
    decode: tuple[str, ...]
    timeout_s: float = 300.0
    probe_every_s: float = 2.0


class _Lost(Exception):
    """An instance gave no answer; ``status`` and the message are what the client gets if nobody else does."""

    def __init__(self, status: HTTPStatus, message: str, *, taken: bool = True) -> None:
        super().__init__(message)
        self.status = status
        self.taken = taken
        """Whether the instance took the request; only then may the request be what ended it."""


@dataclass(slots=True)
class _Asked:
    """One client request on its way.

    Args:
        api: which endpoint's chunks its stream has; ``None`` for a path that is only passed on.
        session: the id in ``x-lynx-session``.
        deadline_s: event-loop time by which the first byte is due.
        record: its breakdown, as ``/lynx/requests/{session}`` shows it.
    """

    request: Request
    api: Api | None
    session: str
    started_s: float
    deadline_s: float
    record: dict[str, Any] = field(default_factory=dict)

    @property
    def left_s(self) -> float:
        return max(self.deadline_s - asyncio.get_running_loop().time(), 0.001)

    @property
    def elapsed_s(self) -> float:
        return asyncio.get_running_loop().time() - self.started_s

    @property
    def path(self) -> str:
        query = self.request.url.query
        return self.request.url.path + (f"?{query}" if query else "")


class Router:
    """Routes over the instances of ``config``; ``app`` is its ASGI application.

    Args:
        config: instances and limits.
        http: client for them; the router closes it with its own lifespan.
    """

    def __init__(self, config: RouterConfig, http: httpx.AsyncClient) -> None:
        self._config = config
        self._http = http
        self.pool = Pool(config.prefill, config.decode, http)
        self.metrics = RouterMetrics()
        self._records: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()
        get, post = ["GET"], ["POST"]
        every = [*get, *post, "PUT", "PATCH", "DELETE", "OPTIONS"]
        self.app = Starlette(
            routes=[
                Route("/health", self._health, methods=get),
                Route("/metrics", self._metrics, methods=get),
                Route("/lynx/requests/{session}", self._record_of, methods=get),
                Route("/lynx/instances", self._instances, methods=get),
                Route("/v1/chat/completions", self._generate, methods=post),
                Route("/v1/completions", self._generate, methods=post),
                Route("/lynx/{rest:path}", self._nothing_here, methods=every),
                Route("/{rest:path}", self._pass_on, methods=every),
            ],
            exception_handlers={Exception: _unforeseen},
            lifespan=self._lifespan,
        )

    # Its own endpoints -----------------------------------------------------------------------------------

    async def _health(self, _: Request) -> Response:
        """200 when some engine can answer, with what is wrong with the others."""
        troubles = [instance.trouble for instance in self.pool.instances if instance.trouble]
        up = any(instance.up for instance in self.pool.instances)
        return JSONResponse({"status": "ok" if up else "down", "troubles": troubles}, 200 if up else 503)

    async def _metrics(self, _: Request) -> Response:
        return Response(self.metrics.page(self.pool.instances), media_type=CONTENT_TYPE_LATEST)

    async def _instances(self, _: Request) -> Response:
        fields = ("url", "role", "up", "trouble", "load", "info")
        return JSONResponse([{name: getattr(i, name) for name in fields} for i in self.pool.instances])

    async def _record_of(self, request: Request) -> Response:
        session = request.path_params["session"]
        record = self._records.get(session)
        if record is None:
            return _error(
                HTTPStatus.NOT_FOUND, f"session {session!r} is not among the last {_RECORDS} requests"
            )
        return JSONResponse(record)

    async def _nothing_here(self, request: Request) -> Response:
        return _error(HTTPStatus.NOT_FOUND, f"{request.url.path} is not an endpoint of the router")

    # Requests that are answered by instances -------------------------------------------------------------

    async def _pass_on(self, request: Request) -> Response:
        """Any other path goes to one engine as it is: models, tokenize, responses and whatever comes."""
        asked = self._asked(request, None)
        return await _unless_gone(request, self._serve(asked, await request.body()))

    async def _generate(self, request: Request) -> Response:
        asked = self._asked(request, "chat" if "/chat/" in request.url.path else "completions")
        self._remember(asked)
        raw = await request.body()
        try:
            way = plan(asked.api or "chat", raw)
        except BadInput as error:
            return self._answered(asked, _error(HTTPStatus.BAD_REQUEST, str(error), "lynx_stream"))
        asked.record["way"] = type(way).__name__.lower()
        match way:
            case Split():
                answer = self._serve(asked, _encode(way.body), way)
            case Whole(body, reason):
                asked.record["reason"] = reason
                answer = self._serve(asked, _encode(body))
            case Opaque():
                answer = self._serve(asked, raw)
        return self._answered(asked, await _unless_gone(request, answer))

    async def _serve(self, asked: _Asked, raw: bytes, split: Split | None = None) -> Response:
        """An answer from whichever instances can give it, or the one error that says why none can.

        Only instances that took the request count as attempts: one that refuses the connection costs nothing.
        """
        lost: list[Instance] = []
        attempts = 0
        error: _Lost | None = None
        while attempts < _ATTEMPTS:
            decode = self.pool.choose("decode", lost) if split else None
            instance = decode or self.pool.choose_whole(lost)
            if instance is None:
                break
            try:
                if split and decode:
                    return await self._split(asked, split, decode, len(lost))
                asked.record["whole"] = instance.url
                return await self._relay(asked, instance, raw)
            except _Lost as trouble:
                error = trouble
            lost.append(instance)
            attempts += error.taken
            self._lost(asked, instance, error)
            if error.status == HTTPStatus.GATEWAY_TIMEOUT:
                break
        if error is None or attempts == 0:
            return _error(HTTPStatus.SERVICE_UNAVAILABLE, self._nobody())
        return _error(error.status, str(error))

    async def _split(self, asked: _Asked, split: Split, decode: Instance, attempt: int) -> Response:
        """Prefill on the instance that is least loaded, the answer from ``decode``."""
        session = f"{asked.session}-{attempt}" if attempt else asked.session
        shipped = await self._prefill(asked, split, session)
        asked.record |= {"decode": decode.url, "decode_session": session}
        if shipped is None:
            return await self._relay(asked, decode, _encode(split.body))
        body = decode_body(split, session, shipped, draft=True, timeout_s=asked.left_s / 2)
        drafts = None
        if split.speculative:
            model = body.get("model") or decode.info.get("model")
            drafts = self._drafts(asked, f"{decode.url}/lynx/drafts/{session}", model)
        return await self._relay(asked, decode, _encode(body), drafts)

    async def _prefill(self, asked: _Asked, split: Split, session: str) -> Mapping[str, Any] | None:
        """What prefill ships, or ``None`` when decode must compute the prompt itself.

        A refusal (4xx) is no reason to answer the client: decode sees the client's own body and words it.
        """
        body = _encode(prefill_body(asked.api or "chat", split, session))
        lost: list[Instance] = []
        while len(lost) < _ATTEMPTS and (instance := self.pool.choose("prefill", lost)):
            asked.record["prefill"] = instance.url
            begun_s = asked.elapsed_s
            try:
                with instance.in_use():
                    async with asyncio.timeout(asked.left_s / 2):
                        response = await self._http.post(
                            instance.url + asked.path, content=body, headers=_relayed(asked.request.headers)
                        )
            except (httpx.HTTPError, TimeoutError) as error:
                self._lost(asked, instance, error)
                lost.append(instance)
                continue
            asked.record["prefill_s"] = asked.elapsed_s - begun_s
            if response.status_code == HTTPStatus.OK:
                self.metrics.prefilled(asked.record["prefill_s"])
                return _shipped(response, asked.record)
            asked.record["prefill_status"] = response.status_code
            if response.status_code < 500 and response.status_code != HTTPStatus.TOO_MANY_REQUESTS:
                return None
            lost.append(instance)
        return None

    # One attempt on one instance -------------------------------------------------------------------------

    async def _relay(
        self,
        asked: _Asked,
        instance: Instance,
        raw: bytes,
        drafts: AsyncGenerator[bytes, None] | None = None,
    ) -> Response:
        """Send ``raw`` to ``instance`` and give back its answer, from its first byte on.

        Raises:
            _Lost: nothing of the answer came; the client has seen nothing either.
        """
        async with AsyncExitStack() as stack:
            stack.enter_context(instance.in_use())
            if drafts:
                stack.push_async_callback(drafts.aclose)
            request = self._http.build_request(
                asked.request.method,
                instance.url + asked.path,
                content=raw,
                headers=_relayed(asked.request.headers),
                timeout=httpx.Timeout(self._config.timeout_s, connect=5.0),
            )
            try:
                async with asyncio.timeout(asked.left_s):
                    response = await self._http.send(request, stream=True)
                    stack.push_async_callback(response.aclose)
                    headers = _relayed(response.headers)
                    if "text/event-stream" not in response.headers.get("content-type", ""):
                        content = b"".join([part async for part in response.aiter_raw()])
                        return Response(content, response.status_code, headers)
                    events = _events(response, drafts)
                    stack.push_async_callback(events.aclose)
                    first = await anext(events, b"")
            except (TimeoutError, httpx.ReadTimeout):
                raise _Lost(HTTPStatus.GATEWAY_TIMEOUT, self._late(instance)) from None
            except httpx.HTTPError as error:
                message = (
                    f"{instance.role} instance {instance.url} was lost ({type(error).__name__}); ask again"
                )
                taken = not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
                raise _Lost(HTTPStatus.BAD_GATEWAY, message, taken=taken) from None
            self._first_byte(asked)
            return StreamingResponse(
                self._stream(asked, instance, first, events, stack.pop_all()), response.status_code, headers
            )

    async def _stream(
        self,
        asked: _Asked,
        instance: Instance,
        first: bytes,
        events: AsyncIterator[bytes],
        stack: AsyncExitStack,
    ) -> AsyncIterator[bytes]:
        """The rest of an answer that has begun; what goes wrong now is one last event."""
        async with stack:
            try:
                yield first
                async for event in events:
                    yield event
            except httpx.ReadTimeout:
                yield error_event(HTTPStatus.GATEWAY_TIMEOUT, self._late(instance))
            except httpx.HTTPError as error:
                message = (
                    f"{instance.url} was lost in the middle of the answer ({type(error).__name__}); ask again"
                )
                yield error_event(HTTPStatus.BAD_GATEWAY, message)
            finally:
                self._finish(asked)

    async def _drafts(self, asked: _Asked, url: str, model: object) -> AsyncGenerator[bytes, None]:
        """Decode's drafts as marked events; ends early when there are none to be had."""
        created_s = int(time.time())
        splitter = EventSplitter()
        try:
            async with self._http.stream("GET", url, timeout=self._config.timeout_s) as response:
                if response.status_code != HTTPStatus.OK:
                    asked.record["drafts_lost"] = f"status {response.status_code}"
                    return
                async for part in response.aiter_raw():
                    for event in splitter.feed(part):
                        if data := event_data(event):
                            yield lynx_event(asked.api or "chat", asked.session, model, created_s, data)
        except httpx.HTTPError as error:
            asked.record["drafts_lost"] = type(error).__name__

    # Books -----------------------------------------------------------------------------------------------

    def _asked(self, request: Request, api: Api | None) -> _Asked:
        now_s = asyncio.get_running_loop().time()
        return _Asked(request, api, uuid.uuid4().hex, now_s, now_s + self._config.timeout_s)

    def _remember(self, asked: _Asked) -> None:
        asked.record |= {"session": asked.session, "path": asked.request.url.path}
        self._records[asked.session] = asked.record
        while len(self._records) > _RECORDS:
            self._records.popitem(last=False)

    def _answered(self, asked: _Asked, response: Response) -> Response:
        response.headers["x-lynx-session"] = asked.session
        asked.record["status"] = response.status_code
        self.metrics.answered(asked.record.get("way", "refused"), response.status_code)
        if not isinstance(response, StreamingResponse):
            self._first_byte(asked)
            self._finish(asked)
        return response

    def _first_byte(self, asked: _Asked) -> None:
        asked.record["first_byte_s"] = asked.elapsed_s
        self.metrics.first_byte(asked.elapsed_s)

    def _lost(self, asked: _Asked, instance: Instance, error: Exception) -> None:
        self.metrics.retried()
        asked.record.setdefault("lost", []).append(f"{instance.url}: {error or type(error).__name__}")
        if isinstance(error, httpx.ConnectError) or (isinstance(error, _Lost) and not error.taken):
            instance.trouble = f"{instance.url} cannot be reached"

    def _finish(self, asked: _Asked) -> None:
        """Close the request's books; decode's own breakdown is fetched behind the client's back."""
        asked.record["total_s"] = asked.elapsed_s
        if asked.record.get("shipped"):
            task = asyncio.create_task(self._fetch_breakdown(asked.record))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def _fetch_breakdown(self, record: dict[str, Any]) -> None:
        url = f"{record['decode']}/lynx/requests/{record['decode_session']}"
        try:
            response = await self._http.get(url, timeout=5.0)
            breakdown = response.json() if response.status_code == HTTPStatus.OK else None
        except (httpx.HTTPError, ValueError) as error:
            record["breakdown_lost"] = type(error).__name__
            return
        if isinstance(breakdown, dict):
            record["breakdown"] = breakdown
            record["stages"] = [stages(request) for request in breakdown.get("requests", [])]
            for found in record["stages"]:
                self.metrics.breakdown(found)

    def _nobody(self) -> str:
        troubles = "; ".join(instance.trouble or "" for instance in self.pool.instances)
        return f"no instance is up: {troubles or 'none is configured'}"

    def _late(self, instance: Instance) -> str:
        return (
            f"{instance.role} instance {instance.url} sent nothing for {self._config.timeout_s:g} s; "
            "ask again, or start the router with a longer --timeout"
        )

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        async with self._http:
            await self.pool.probe()
            watch = asyncio.create_task(self.pool.watch(self._config.probe_every_s))
            try:
                yield
            finally:
                watch.cancel()
                for task in self._closing:
                    task.cancel()


async def _events(response: httpx.Response, side: AsyncIterator[bytes] | None) -> AsyncGenerator[bytes, None]:
    """The answer's bytes as they come, or whole events with those of ``side`` between them."""
    if side is None:
        async for part in response.aiter_raw():
            yield part
        return
    async for event in _interleaved(_whole_events(response), side):
        yield event


async def _whole_events(response: httpx.Response) -> AsyncIterator[bytes]:
    splitter = EventSplitter()
    async for part in response.aiter_raw():
        for event in splitter.feed(part):
            yield event
    if splitter.rest:
        yield splitter.rest


async def _interleaved(main: AsyncIterator[bytes], side: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Items of both as they come, ``side`` first when both are there, until ``main`` ends."""
    next_main = asyncio.ensure_future(anext(main, None))
    next_side = asyncio.ensure_future(anext(side, None))
    try:
        while True:
            waiting: Iterable[asyncio.Future[bytes | None]] = {next_main, next_side}
            if next_side.done() and next_side.result() is None:
                waiting = {next_main}
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if next_side.done() and (item := next_side.result()) is not None:
                yield item
                next_side = asyncio.ensure_future(anext(side, None))
            elif next_main.done():
                if (item := next_main.result()) is None:
                    return
                yield item
                next_main = asyncio.ensure_future(anext(main, None))
    finally:
        for pending in (next_main, next_side):
            pending.cancel()
        await asyncio.gather(next_main, next_side, return_exceptions=True)


async def _unless_gone(request: Request, answer: Awaitable[Response]) -> Response:
    """``answer``, dropped (and with it the request upstream) when the client hangs up first."""
    work = asyncio.ensure_future(answer)
    gone = asyncio.ensure_future(_hung_up(request.receive))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            return Response(status_code=_CLIENT_GONE)
        return work.result()
    finally:
        for task in (work, gone):
            task.cancel()
        await asyncio.gather(work, gone, return_exceptions=True)


async def _hung_up(receive: Callable[[], Awaitable[Any]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _shipped(response: httpx.Response, record: dict[str, Any]) -> Mapping[str, Any] | None:
    """``kv_transfer_params.lynx`` of prefill's answer, if it offers KV to fetch."""
    try:
        params = response.json().get("kv_transfer_params") or {}
    except (ValueError, AttributeError):
        return None
    lynx = params.get("lynx") if isinstance(params, dict) else None
    if not isinstance(lynx, dict) or not isinstance(lynx.get("endpoint"), str):
        return None
    record["shipped"] = lynx
    return lynx


async def _unforeseen(_: Request, error: Exception) -> Response:
    """A fault of the router's own still is an answer; the server logs the traceback."""
    return _error(HTTPStatus.INTERNAL_SERVER_ERROR, f"the router failed ({type(error).__name__}); ask again")


def http_client() -> httpx.AsyncClient:
    """A router's client: no time limit of its own, idle connections dropped before servers do."""
    return httpx.AsyncClient(
        timeout=httpx.Timeout(None, connect=5.0),
        limits=httpx.Limits(max_connections=None, keepalive_expiry=2.0),
        headers={"accept-encoding": "identity"},
        trust_env=False,
    )


def _relayed(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _NOT_RELAYED}


def _error(status: HTTPStatus, message: str, param: str | None = None) -> Response:
    return Response(error_body(status, message, param), status, media_type="application/json")


def _encode(body: Body) -> bytes:
    return json.dumps(body).encode()


def run_router(config: RouterConfig, host: str, port: int) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        BadInput: the port is taken, or an instance's address is none.
    """
    import uvicorn

    with bind(host, port) as listener:
        router = Router(config, http_client())
        server = uvicorn.Server(uvicorn.Config(router.app, log_level="warning", access_log=False))
        server.run(sockets=[listener])
