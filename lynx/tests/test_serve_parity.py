"""Whatever the stock server answers, the router answers: same status, same fields, same text, same errors.

One deployment for all of it. Prefill is the stock server to compare with: its engine does not draft, and what is
asked of it directly is served undivided.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from lynx import model
from lynx.serve.up import UpConfig, running

pytestmark = pytest.mark.engine

STORY = (
    "The lighthouse keeper counted the ships every evening, and every evening he wrote the number down. " * 12
)
MESSAGES = [{"role": "user", "content": f"{STORY}\nWhat did the keeper write down?"}]
TOOL = {"type": "function", "function": {"name": "note", "parameters": {"type": "object", "properties": {}}}}
SCHEMA = {
    "type": "object",
    "properties": {"ships": {"type": "integer"}},
    "required": ["ships"],
    "additionalProperties": False,
}
VARYING = {"id", "created", "system_fingerprint", "kv_transfer_params"}
"""What differs from one answer to the next, and where an engine that received KV says how."""


@dataclass(frozen=True)
class Deployment:
    """A router and, as reference, an engine that answers undivided."""

    router: str
    stock: str
    http: httpx.Client

    def both(self, path: str, body: Any) -> tuple[httpx.Response, httpx.Response]:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        stock = self.http.post(self.stock + path, content=content, headers=headers)
        return self.http.post(self.router + path, content=content, headers=headers), stock


@pytest.fixture(scope="module")
def lynx() -> Iterator[Deployment]:
    path = model.ensure()
    words = ("--model", str(path), "--dtype", "float32", "--max-model-len", "1024", "--kv-cache-mib", "768")
    config = UpConfig(prefill=words, decode=words, port=0, timeout_s=240.0)
    with running(config) as up, httpx.Client(timeout=240.0, trust_env=False) as http:
        yield Deployment(up.router, up.prefill[0], http)


def comparable(value: Any) -> Any:
    """An answer without what differs from one answer to the next; log-probabilities to 3 digits."""
    if isinstance(value, dict):
        return {name: comparable(inner) for name, inner in value.items() if name not in VARYING}
    if isinstance(value, list):
        return [comparable(inner) for inner in value]
    return round(value, 3) + 0.0 if isinstance(value, float) else value


def shape(value: Any) -> Any:
    """An answer's fields and their types, whatever was said."""
    if isinstance(value, dict) and all(isinstance(inner, float) for inner in value.values()):
        return "numbers by token"
    if isinstance(value, dict):
        return {name: shape(inner) for name, inner in value.items() if name not in VARYING}
    if isinstance(value, list):
        return [shape(inner) for inner in value[:1]]
    return type(value).__name__


def chunks(response: httpx.Response) -> list[Any]:
    """The events of a stream; how tokens are shared out over chunks is the engine's own affair."""
    return [line.removeprefix("data: ") for line in response.text.splitlines() if line]


def text_of(events: list[str]) -> str:
    choices = [choice for event in events if event != "[DONE]" for choice in json.loads(event)["choices"]]
    return "".join(choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in choices)


CHAT = {"messages": MESSAGES, "max_tokens": 24, "temperature": 0}
TEXT = {"prompt": STORY, "max_tokens": 24, "temperature": 0}
EQUAL = {
    "chat": ("chat/completions", CHAT),
    "stop strings": ("completions", TEXT | {"stop": [" number", "ships"], "max_tokens": 48}),
    "stop kept": ("completions", TEXT | {"stop": ["evening"], "include_stop_str_in_output": True}),
    "logprobs": ("completions", TEXT | {"logprobs": 2, "max_tokens": 8}),
    "chat logprobs": ("chat/completions", CHAT | {"logprobs": True, "top_logprobs": 2, "max_tokens": 8}),
    "penalties": ("completions", TEXT | {"frequency_penalty": 1.0, "repetition_penalty": 1.2}),
    "token ids": ("completions", TEXT | {"prompt": list(range(400, 700)), "return_token_ids": True}),
    "batch": ("completions", TEXT | {"prompt": [STORY, "The sea is", STORY[:300]]}),
    "batch of ids": ("completions", TEXT | {"prompt": [list(range(400, 500)), [900, 901, 902]]}),
    "json schema": (
        "chat/completions",
        CHAT | {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}},
    ),
    "choice": ("chat/completions", CHAT | {"structured_outputs": {"choice": ["many ships", "no ship"]}}),
    "tools": ("chat/completions", CHAT | {"tools": [TOOL], "tool_choice": "none"}),
    "echo": ("completions", TEXT | {"echo": True, "logprobs": 1, "max_tokens": 4}),
    "prompt logprobs": ("completions", TEXT | {"prompt_logprobs": 1, "max_tokens": 4}),
    "logit bias": ("completions", TEXT | {"logit_bias": {"253": -100}}),
    "min_p": ("completions", TEXT | {"min_p": 0.2}),
    "one token": ("completions", TEXT | {"max_tokens": 1}),
    "min tokens": ("completions", TEXT | {"min_tokens": 20}),
    "cut": ("completions", TEXT | {"truncate_prompt_tokens": 40}),
}


FREE = {"logprobs", "chat logprobs", "token ids", "batch of ids", "json schema"}
"""Where 8-bit KV may say something else than BF16 KV: exact log-probabilities, prompts without sense, white space."""


@pytest.mark.parametrize("name", EQUAL)
def test_answers_are_equal(lynx: Deployment, name: str) -> None:
    path, body = EQUAL[name]
    ours, stock = lynx.both(f"/v1/{path}", body)
    assert (ours.status_code, stock.status_code) == (200, 200)
    if name in FREE:
        assert shape(ours.json()) == shape(stock.json())
    else:
        assert comparable(ours.json()) == comparable(stock.json())


REFUSED: dict[str, tuple[str, Any]] = {
    "prompt too long": ("completions", TEXT | {"prompt": STORY * 9}),
    "answer too long": ("completions", TEXT | {"max_tokens": 5000}),
    "temperature": ("completions", TEXT | {"temperature": -1}),
    "top_p": ("chat/completions", CHAT | {"top_p": 5}),
    "n": ("completions", TEXT | {"n": 0}),
    "n of greedy answers": ("completions", TEXT | {"n": 2}),
    "unknown model": ("chat/completions", CHAT | {"model": "gpt-none"}),
    "no messages": ("chat/completions", {"max_tokens": 5}),
    "empty prompt": ("completions", {"prompt": []}),
    "ids beyond the vocabulary": ("completions", TEXT | {"prompt": [10**6]}),
    "bad schema": ("chat/completions", CHAT | {"response_format": {"type": "json_schema"}}),
    "too many logprobs": ("completions", TEXT | {"logprobs": 99}),
    "tool choice": ("chat/completions", CHAT | {"tools": [TOOL], "tool_choice": "auto"}),
    "not json": ("completions", b'{"prompt'),
    "not an object": ("completions", b"[1]"),
    "wrong type": ("completions", TEXT | {"max_tokens": "many"}),
    "stream options": ("completions", TEXT | {"stream_options": {"include_usage": True}}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_are_equal(lynx: Deployment, name: str) -> None:
    path, body = REFUSED[name]
    ours, stock = lynx.both(f"/v1/{path}", body)
    assert stock.status_code >= 400
    assert (ours.status_code, ours.json()) == (stock.status_code, stock.json())


@pytest.mark.parametrize("mode", ["verified", "speculative"])
@pytest.mark.parametrize(("path", "body"), [("chat/completions", CHAT), ("completions", TEXT)])
def test_streams_say_the_same_and_end_alike(
    lynx: Deployment, path: str, body: dict[str, Any], mode: str
) -> None:
    asked = body | {"stream": True, "stream_options": {"include_usage": True}, "lynx_stream": mode}
    ours, stock = map(chunks, lynx.both(f"/v1/{path}", asked))
    drafts = [event for event in ours if '"lynx":' in event]
    ours = [event for event in ours if '"lynx":' not in event]
    assert text_of(ours) == text_of(stock)
    assert comparable(json.loads(ours[-2])) == comparable(json.loads(stock[-2]))
    assert json.loads(ours[0]).keys() == json.loads(stock[0]).keys()
    assert ours[-1] == stock[-1] == "[DONE]"
    assert bool(drafts) == (mode == "speculative")


def test_a_seed_repeats_a_sampled_answer_of_an_undrafted_request(lynx: Deployment) -> None:
    asked = TEXT | {"temperature": 0.9, "seed": 7, "min_p": 0.01}
    ours, stock = lynx.both("/v1/completions", asked)
    assert comparable(ours.json()) == comparable(stock.json())


def test_a_sampled_answer_is_well_formed(lynx: Deployment) -> None:
    for fields in ({"top_k": 20, "top_p": 0.8}, {"top_k": 5}, {"top_p": 1e-4}, {"seed": 3}, {"n": 2}):
        ours, stock = lynx.both("/v1/completions", TEXT | {"temperature": 0.7} | fields)
        assert ours.status_code == stock.status_code == 200
        assert ours.json().keys() == stock.json().keys()
        assert [choice.keys() for choice in ours.json()["choices"]] == [
            choice.keys() for choice in stock.json()["choices"]
        ]


def test_models_and_tokenize_are_the_stock_servers(lynx: Deployment) -> None:
    ours, stock = lynx.both("/tokenize", {"prompt": STORY})
    assert ours.json() == stock.json()
    listed = lynx.http.get(f"{lynx.router}/v1/models").json()["data"]
    assert [(entry["id"], entry["max_model_len"]) for entry in listed] == [(model.DEFAULT_MODEL, 1024)]


def test_a_request_leaves_a_breakdown(lynx: Deployment) -> None:
    response = lynx.http.post(f"{lynx.router}/v1/completions", json=TEXT)
    record: dict[str, Any] = {}
    for _ in range(200):  # the breakdown is fetched behind the client's back
        record = lynx.http.get(f"{lynx.router}/lynx/requests/{response.headers['x-lynx-session']}").json()
        if "stages" in record:
            break
    (stages,) = record["stages"]
    assert {"exposed_s", "quantise_s", "dequantise_s", "bytes", "drafted", "accepted"} <= stages.keys()
    assert stages["bytes"]["anchor"] > 0
    assert record["prefill_s"] > 0
