"""The router over fake instances: every way a request can go wrong, and what the client then gets."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from lynx.errors import BadInput
from lynx.serve.answer import EventSplitter, event_data
from lynx.serve.router import Router, RouterConfig

INFO = {"model": "m", "fingerprint": "f", "codec": "nested", "drafts": 64}
SHIPPED = {"kv_transfer_params": {"lynx": {"endpoint": "kv:9", "first_token": 5}}}
ANSWER = b'{"id": "cmpl-1", "choices": [{"text": "yes"}]}'
EVENTS = [
    b'data: {"choices": [{"text": "y"}]}\n\n',
    b'data: {"choices": [{"text": "es"}]}\n\n',
    b"data: [DONE]\n\n",
]

Reply = httpx.Response | Exception | str
"""A response, an error of the connection, or ``hang``."""


class Parts(httpx.AsyncByteStream):
    """A body that comes in parts and may break off or hang."""

    def __init__(self, *parts: bytes | Exception | str, seen: Callable[[], None] = lambda: None) -> None:
        self._parts = parts
        self._seen = seen

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self._parts:
            if isinstance(part, Exception):
                raise part
            if isinstance(part, str):
                await asyncio.Event().wait()
            else:
                yield part

    async def aclose(self) -> None:
        self._seen()


def stream(*parts: bytes | Exception | str) -> httpx.Response:
    return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=Parts(*parts))


@dataclass
class Fake:
    """An instance: answers by path from ``replies``, remembers what it was asked."""

    replies: dict[str, Reply | Callable[[dict[str, Any]], Reply]]
    info: dict[str, Any] | None = field(default_factory=lambda: dict(INFO))
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    healthy: bool = True

    async def answer(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if path == "/health":
            return httpx.Response(200 if self.healthy else 503)
        if path == "/lynx/info":
            return httpx.Response(404) if self.info is None else httpx.Response(200, json=self.info)
        body = json.loads(request.content) if request.content.endswith(b"}") else {}
        self.asked.append((path, body))
        reply = self.replies.get(path) or self.replies.get(path.rsplit("/", 1)[0]) or httpx.Response(404)
        if callable(reply) and not isinstance(reply, httpx.Response):
            reply = reply(body)
        if isinstance(reply, Exception):
            raise reply
        if isinstance(reply, str):
            await asyncio.Event().wait()
            raise AssertionError
        return httpx.Response(reply.status_code, headers=reply.headers, stream=reply.stream, request=request)

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [body for path, body in self.asked if path.startswith("/v1/")]


class Wires(httpx.AsyncBaseTransport):
    """Leads to fakes by host name; an unknown host refuses the connection."""

    def __init__(self, fakes: dict[str, Fake]) -> None:
        self._fakes = fakes

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        fake = self._fakes.get(request.url.host)
        if fake is None:
            raise httpx.ConnectError("refused")
        await request.aread()
        return await fake.answer(request)


@dataclass
class House:
    """A router and its client."""

    router: Router
    client: httpx.AsyncClient
    fakes: dict[str, Fake]

    async def complete(self, **body: Any) -> httpx.Response:
        return await self.client.post("/v1/completions", json={"prompt": "x"} | body)

    async def record(self, response: httpx.Response) -> dict[str, Any]:
        # The breakdown is fetched behind the client's back; it is there once the books are closed.
        await asyncio.gather(*self.router._closing)
        found = await self.client.get(f"/lynx/requests/{response.headers['x-lynx-session']}")
        record: dict[str, Any] = found.json()
        return record


def prefill(**replies: Any) -> Fake:
    return Fake({"/v1/completions": httpx.Response(200, json=SHIPPED)} | replies, info=INFO | {"drafts": 0})


def decode(reply: Any = None) -> Fake:
    return Fake({"/v1/completions": reply or httpx.Response(200, content=ANSWER)})


async def house(fakes: dict[str, Fake] | None = None, timeout_s: float = 30.0, **more: Fake) -> House:
    """A router over fakes named ``p...`` for prefill and ``d...`` for decode; all have been probed."""
    fakes = (fakes or {}) | more
    config = RouterConfig(
        prefill=tuple(f"http://{name}" for name in fakes if name.startswith("p")),
        decode=tuple(f"http://{name}" for name in fakes if name.startswith("d")),
        timeout_s=timeout_s,
    )
    router = Router(config, httpx.AsyncClient(transport=Wires(fakes), timeout=None))
    await router.pool.probe()
    client = httpx.AsyncClient(transport=httpx.ASGITransport(router.app), base_url="http://router")
    return House(router, client, fakes)


def error_of(response: httpx.Response) -> dict[str, Any]:
    error: dict[str, Any] = response.json()["error"]
    assert error["code"] == response.status_code
    return error


async def test_a_request_is_prefilled_here_and_answered_there() -> None:
    home = await house(p=prefill(), d=decode())
    response = await home.complete(max_tokens=9, n=2)
    assert (response.status_code, response.content) == (200, ANSWER)
    ((asked,), (answered,)) = home.fakes["p"].bodies, home.fakes["d"].bodies
    session = response.headers["x-lynx-session"]
    assert asked == {
        "prompt": "x",
        "max_tokens": 1,
        "stream": False,
        "kv_transfer_params": {"lynx": {"role": "prefill", "session": session}},
    }
    params = answered.pop("kv_transfer_params")["lynx"]
    assert answered == {"prompt": "x", "max_tokens": 9, "n": 2}
    assert (
        params.items() >= {"role": "decode", "session": session, "endpoint": "kv:9", "first_token": 5}.items()
    )


async def test_a_stream_is_relayed_byte_for_byte() -> None:
    ragged = [b"".join(EVENTS)[:17], b"".join(EVENTS)[17:]]
    home = await house(p=prefill(), d=decode(stream(*ragged)))
    response = await home.complete(stream=True)
    assert response.content == b"".join(EVENTS)
    assert response.headers["content-type"] == "text/event-stream"


async def test_drafts_travel_between_verified_events_marked() -> None:
    drafts = [
        b'data: {"event": "draft", "token_ids": [1, 2], "text": "ye"}\n\n',
        b'data: {"event": "correction", "accepted": 1}\n\n',
    ]
    d = decode(lambda _: stream(*EVENTS))
    d.replies["/lynx/drafts"] = stream(*drafts)
    home = await house(p=prefill(), d=d)
    response = await home.complete(stream=True, lynx_stream="speculative", model="m")
    events = EventSplitter().feed(response.content)
    marked = [data["lynx"] for event in events if (data := event_data(event)) and "lynx" in data]
    assert [event["event"] for event in marked] == ["draft", "correction"]
    assert [event for event in events if b'"lynx"' not in event] == EVENTS
    assert all("lynx_stream" not in body for body in home.fakes["d"].bodies)


@pytest.mark.parametrize(
    "drafts", [httpx.ConnectError("x"), httpx.Response(404), stream(httpx.ReadError("x"))]
)
async def test_without_drafts_a_speculative_stream_is_a_verified_one(drafts: Reply) -> None:
    d = decode(lambda _: stream(*EVENTS))
    d.replies["/lynx/drafts"] = drafts
    home = await house(p=prefill(), d=d)
    response = await home.complete(stream=True, lynx_stream="speculative")
    assert response.content == b"".join(EVENTS)
    assert (await home.record(response))["drafts_lost"]


async def test_an_unknown_lynx_stream_is_refused_before_any_work() -> None:
    home = await house(p=prefill(), d=decode())
    response = await home.complete(lynx_stream="fast")
    assert response.status_code == 400
    assert error_of(response)["param"] == "lynx_stream"
    assert not home.fakes["p"].asked
    assert not home.fakes["d"].asked


@pytest.mark.parametrize(
    "trouble",
    [
        httpx.ConnectError("refused"),
        httpx.ReadError("reset"),
        httpx.RemoteProtocolError("closed"),
        httpx.Response(500),
        httpx.Response(503),
        httpx.Response(429),
        httpx.Response(200, content=b"not json"),
        httpx.Response(200, json={"kv_transfer_params": None}),
        httpx.Response(200, json={"kv_transfer_params": {"lynx": {"endpoint": 5}}}),
        httpx.Response(200, json=[1]),
    ],
)
async def test_prefill_lost_means_that_decode_computes_the_prompt(trouble: Reply) -> None:
    home = await house(p=prefill(**{"/v1/completions": trouble}), d=decode())
    response = await home.complete(max_tokens=9)
    assert (response.status_code, response.content) == (200, ANSWER)
    assert home.fakes["d"].bodies == [{"prompt": "x", "max_tokens": 9}]


async def test_another_prefill_is_asked_when_one_is_lost() -> None:
    home = await house(p1=prefill(**{"/v1/completions": httpx.ReadError("x")}), p2=prefill(), d=decode())
    response = await home.complete()
    assert response.status_code == 200
    assert home.fakes["d"].bodies[0]["kv_transfer_params"]["lynx"]["endpoint"] == "kv:9"


async def test_a_prefill_that_hangs_leaves_time_for_the_answer() -> None:
    home = await house(timeout_s=0.4, p=prefill(**{"/v1/completions": "hang"}), d=decode())
    response = await home.complete()
    assert (response.status_code, response.content) == (200, ANSWER)


async def test_a_refusal_is_worded_by_the_engine_that_sees_the_clients_body() -> None:
    refusal = httpx.Response(400, json={"error": {"message": "own words", "code": 400}})
    home = await house(p=prefill(**{"/v1/completions": httpx.Response(400)}), d=decode(refusal))
    response = await home.complete(temperature=-1)
    assert (response.status_code, response.content) == (400, refusal.content)
    assert home.fakes["d"].bodies == [{"prompt": "x", "temperature": -1}]


@pytest.mark.parametrize(
    "trouble", [httpx.ConnectError("x"), httpx.ReadError("x"), httpx.RemoteProtocolError("x")]
)
async def test_decode_lost_before_the_first_byte_means_another_attempt(trouble: Exception) -> None:
    home = await house(p=prefill(), d1=decode(trouble), d2=decode())
    response = await home.complete()
    assert (response.status_code, response.content) == (200, ANSWER)
    first, second = (body["kv_transfer_params"]["lynx"]["session"] for body in home.fakes["p"].bodies)
    assert first != second
    record = await home.record(response)
    assert record["decode"] == "http://d2"
    assert record["lost"]


@pytest.mark.parametrize(
    "broken",
    [
        httpx.Response(200, stream=Parts(b'{"half', httpx.ReadError("x"))),
        stream(httpx.ReadError("x")),
    ],
)
async def test_half_an_answer_is_none(broken: httpx.Response) -> None:
    home = await house(p=prefill(), d1=decode(broken), d2=decode())
    response = await home.complete(stream=True)
    assert response.content == ANSWER


async def test_without_decode_the_prefill_instance_does_all_of_it() -> None:
    whole = httpx.Response(200, content=ANSWER)
    p = prefill(
        **{
            "/v1/completions": lambda body: (
                whole if "kv_transfer_params" not in body else httpx.Response(200, json=SHIPPED)
            )
        }
    )
    home = await house(p=p, d=decode(httpx.ReadError("x")))
    response = await home.complete(max_tokens=9)
    assert (response.status_code, response.content) == (200, ANSWER)
    assert p.bodies[-1] == {"prompt": "x", "max_tokens": 9}


async def test_a_request_does_not_end_one_engine_after_another() -> None:
    dying = [decode(httpx.ReadError("x")) for _ in range(4)]
    home = await house({f"d{i}": fake for i, fake in enumerate(dying)}, p=prefill())
    response = await home.complete()
    assert response.status_code == 502
    assert "was lost" in error_of(response)["message"]
    assert sum(len(fake.bodies) for fake in dying) == 2


async def test_instances_that_refuse_the_connection_cost_no_attempt() -> None:
    dead = [decode(httpx.ConnectError("x")) for _ in range(4)]
    home = await house({f"d{i}": fake for i, fake in enumerate(dead)}, p=prefill(), d9=decode())
    response = await home.complete()
    assert response.content == ANSWER


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_decode_that_hangs_is_a_504_in_time(streamed: bool) -> None:
    slow: Reply = stream("hang") if streamed else "hang"
    home = await house(timeout_s=0.2, p=prefill(), d1=decode(slow), d2=decode())
    response = await home.complete(stream=streamed)
    assert response.status_code == 504
    assert "sent nothing for 0.2 s" in error_of(response)["message"]
    assert not home.fakes["d2"].bodies


async def test_what_is_lost_in_mid_stream_is_one_last_event() -> None:
    home = await house(p=prefill(), d1=decode(stream(EVENTS[0], httpx.ReadError("x"))), d2=decode())
    response = await home.complete(stream=True)
    assert response.status_code == 200
    first, error, done = EventSplitter().feed(response.content)
    assert (first, done) == (EVENTS[0], b"data: [DONE]\n\n")
    assert (event_data(error) or {})["error"]["code"] == 502
    assert not home.fakes["d2"].bodies


async def test_nobody_up_is_a_503_that_says_why() -> None:
    home = await house(d=Fake({"/v1/completions": httpx.ConnectError("x")}, healthy=False))
    assert (await home.client.get("/health")).status_code == 503
    response = await home.complete()
    assert response.status_code == 503
    assert error_of(response)["message"] == "no instance is up: http://d cannot be reached"


@pytest.mark.parametrize("fields", [{"min_p": 0.1}, {"logit_bias": {"5": 2}}])
async def test_what_a_drafting_engine_refuses_goes_to_one_that_does_not_draft(fields: dict[str, Any]) -> None:
    home = await house(p=prefill(**{"/v1/completions": httpx.Response(200, content=ANSWER)}), d=decode())
    response = await home.complete(max_tokens=9, **fields)
    assert response.content == ANSWER
    assert home.fakes["p"].bodies == [{"prompt": "x", "max_tokens": 9} | fields]
    assert not home.fakes["d"].bodies


async def test_an_undrafting_decode_is_preferred_for_it() -> None:
    plain = decode()
    plain.info = INFO | {"drafts": 0}
    home = await house(p=prefill(), d1=decode(), d2=plain)
    assert (await home.complete(min_p=0.1)).content == ANSWER
    assert len(plain.bodies) == 1


async def test_other_paths_and_broken_bodies_are_passed_on_untouched() -> None:
    p = prefill(
        **{
            "/v1/models": httpx.Response(200, json={"data": []}),
            "/tokenize": httpx.Response(200),
            "/v1/completions": httpx.Response(400, content=b"own"),
        }
    )
    home = await house(p=p, d=decode())
    assert (await home.client.get("/v1/models?x=1")).json() == {"data": []}
    assert (await home.client.post("/tokenize", json={"prompt": "x"})).status_code == 200
    assert p.asked[-1] == ("/tokenize", {"prompt": "x"})
    response = await home.client.post("/v1/completions", content=b'{"prompt')
    assert (response.status_code, response.content) == (400, b"own")


async def test_lynx_paths_are_not_passed_on() -> None:
    home = await house(p=prefill(), d=decode())
    response = await home.client.get("/lynx/drafts/x")
    assert response.status_code == 404
    assert not home.fakes["d"].asked


async def test_the_least_loaded_instance_is_chosen() -> None:
    home = await house(p=prefill(), d1=decode(), d2=decode())
    with home.router.pool.instances[1].in_use():
        await home.complete()
    assert (len(home.fakes["d1"].bodies), len(home.fakes["d2"].bodies)) == (0, 1)
    assert all(instance.load == 0 for instance in home.router.pool.instances)


async def test_a_mismatched_prefill_is_not_used_and_is_named() -> None:
    p = prefill()
    p.info = INFO | {"codec": "lynx"}
    home = await house(p=p, d=decode())
    assert (await home.complete()).content == ANSWER
    assert not p.bodies
    (trouble,) = (await home.client.get("/health")).json()["troubles"]
    assert "serves codec 'lynx' but http://d serves 'nested'" in trouble


async def test_stock_servers_without_info_serve_too() -> None:
    home = await house(
        p=Fake({}, info=None), d=Fake({"/v1/completions": httpx.Response(200, content=ANSWER)}, info=None)
    )
    assert (await home.complete()).content == ANSWER


async def test_an_instance_that_comes_back_is_used_again() -> None:
    d = decode()
    d.healthy = False
    p = prefill(**{"/v1/completions": httpx.Response(200, content=b"whole")})
    home = await house(p=p, d=d)
    assert (await home.complete()).content == b"whole"
    d.healthy = True
    await home.router.pool.probe()
    assert (await home.complete()).content == ANSWER


async def test_the_breakdown_and_the_metrics_tell_of_a_request() -> None:
    d = decode()
    d.replies["/lynx/requests"] = httpx.Response(200, json={"requests": [{"drafted": [1, 2], "accepted": 1}]})
    home = await house(p=prefill(), d=d)
    record = await home.record(await home.complete())
    assert record["way"] == "split"
    assert record["prefill"] == "http://p"
    assert 0 <= record["prefill_s"] <= record["first_byte_s"] <= record["total_s"]
    assert record["breakdown"]["requests"][0]["accepted"] == 1
    page = (await home.client.get("/metrics")).text
    assert 'lynx_requests_total{status="200",way="split"} 1.0' in page
    assert 'lynx_instance_up{role="prefill",url="http://p"} 1.0' in page
    assert (await home.client.get("/lynx/requests/none")).status_code == 404


async def test_a_client_that_hangs_up_frees_the_instance() -> None:
    home = await house(p=prefill(), d=decode("hang"))
    asking = asyncio.create_task(_hang_up_later(home.router, home.fakes["d"]))
    await asyncio.wait_for(asking, 10)
    assert all(instance.load == 0 for instance in home.router.pool.instances)


async def _hang_up_later(router: Router, asked: Fake) -> None:
    """One request whose client leaves as soon as decode has been asked."""
    messages = iter([{"type": "http.request", "body": b'{"prompt": "x"}', "more_body": False}])

    async def receive() -> dict[str, Any]:
        for message in messages:
            return message
        while not asked.bodies:
            await asyncio.sleep(0)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        assert message.get("status", 499) == 499

    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": [], "query_string": b""}
    await router.app(scope, receive, send)


def test_an_instance_needs_an_address() -> None:
    for urls in ((), ("localhost:8001",)):
        with pytest.raises(BadInput):
            Router(RouterConfig(prefill=(), decode=urls), httpx.AsyncClient())
