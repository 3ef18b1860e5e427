"""Which way a request takes, over many bodies."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lynx.errors import BadInput
from lynx.serve.plan import Api, Opaque, Split, Whole, decode_body, plan, prefill_body

APIS: tuple[Api, ...] = ("chat", "completions")

SCALARS = st.none() | st.booleans() | st.integers(-5, 50) | st.text(max_size=5)
ANSWER_FIELDS = {
    "stream": st.booleans(),
    "stream_options": st.just({"include_usage": True}),
    "n": st.integers(1, 4),
    "stop": st.lists(st.text(max_size=3), max_size=2),
    "min_tokens": st.integers(0, 9),
    "max_tokens": st.integers(2, 999),
    "max_completion_tokens": st.integers(2, 999),
    "logprobs": st.integers(0, 5),
    "top_logprobs": st.integers(0, 5),
    "ignore_eos": st.booleans(),
}
PROMPT_FIELDS = {
    "messages": st.just([{"role": "user", "content": "hello"}]),
    "prompt": st.text(max_size=5) | st.lists(st.integers(0, 9), min_size=1, max_size=3),
    "tools": st.just([{"type": "function", "function": {"name": "f"}}]),
    "temperature": st.floats(0, 2),
    "seed": st.integers(0, 9),
    "suffix": st.text(max_size=3),
    "unknown_field": SCALARS,
}
BODIES = st.fixed_dictionaries({}, optional=ANSWER_FIELDS | PROMPT_FIELDS)


@given(api=st.sampled_from(APIS), body=BODIES)
def test_prefill_computes_one_token_of_the_same_prompt(api: Api, body: dict[str, Any]) -> None:
    split = plan(api, json.dumps(body).encode())
    assert isinstance(split, Split)
    sent = prefill_body(api, split, "s1")
    limit = "max_completion_tokens" if api == "chat" else "max_tokens"
    assert (sent[limit], sent["stream"]) == (1, False)
    assert not set(sent) & (set(ANSWER_FIELDS) - {"stream", limit})
    assert {name: sent[name] for name in PROMPT_FIELDS if name in body} == {
        name: body[name] for name in PROMPT_FIELDS if name in body
    }
    assert sent["kv_transfer_params"] == {"lynx": {"role": "prefill", "session": "s1"}}


@given(api=st.sampled_from(APIS), body=BODIES)
def test_decode_gets_the_clients_own_body(api: Api, body: dict[str, Any]) -> None:
    split = plan(api, json.dumps(body).encode())
    assert isinstance(split, Split)
    sent = decode_body(split, "s1", {"endpoint": "h:1", "first_token": 7}, draft=True, timeout_s=3.0)
    params = sent.pop("kv_transfer_params")["lynx"]
    assert sent == body
    assert (params["role"], params["session"], params["endpoint"]) == ("decode", "s1", "h:1")
    assert ("first_token" in params) == (api == "chat" or "prompt" in body)


@given(given_params=st.dictionaries(st.sampled_from(["lynx", "other"]), SCALARS))
def test_a_client_cannot_point_an_engine_at_an_address(given_params: dict[str, Any]) -> None:
    raw = json.dumps({"prompt": "x", "kv_transfer_params": given_params}).encode()
    split = plan("completions", raw)
    assert isinstance(split, Split)
    assert "lynx" not in (split.body["kv_transfer_params"] or {})
    sent = prefill_body("completions", split, "s1")["kv_transfer_params"]
    assert sent["lynx"] == {"role": "prefill", "session": "s1"}
    assert sent.get("other") == given_params.get("other")


@pytest.mark.parametrize(
    "fields",
    [
        {"min_p": 0.1},
        {"logit_bias": {"5": 1}},
        {"prompt_logprobs": 0},
        {"echo": True},
        {"use_beam_search": True},
        {"prompt_embeds": "x"},
        {"truncate_prompt_tokens": -1},
        {"kv_transfer_params": "text"},
        {"max_tokens": 1},
    ],
)
def test_what_cannot_be_split_is_served_whole(fields: dict[str, Any]) -> None:
    way = plan("completions", json.dumps({"prompt": "x", "lynx_stream": "verified"} | fields).encode())
    assert isinstance(way, Whole)
    assert way.body == {"prompt": "x"} | fields


@pytest.mark.parametrize(
    "fields", [{"min_p": 0}, {"min_p": None}, {"logit_bias": {}}, {"echo": False}, {"max_tokens": 2}]
)
def test_neutral_values_do_not_stand_in_the_way(fields: dict[str, Any]) -> None:
    assert isinstance(plan("completions", json.dumps({"prompt": "x"} | fields).encode()), Split)


def test_chat_answers_of_one_token_go_by_the_limit_that_counts() -> None:
    both = {"max_completion_tokens": 5, "max_tokens": 1}
    assert isinstance(plan("chat", json.dumps(both).encode()), Split)
    assert isinstance(plan("chat", json.dumps({"max_completion_tokens": 1}).encode()), Whole)


def test_a_batch_has_no_one_first_token() -> None:
    for prompt, one in (("x", True), ([1, 2], True), (["x"], False), ([[1, 2]], False), ([], False)):
        split = plan("completions", json.dumps({"prompt": prompt}).encode())
        assert isinstance(split, Split)
        assert split.one_prompt is one


def test_a_forced_tool_call_is_not_asked_of_one_token() -> None:
    split = plan("chat", b'{"tool_choice": "required", "tools": []}')
    assert isinstance(split, Split)
    assert prefill_body("chat", split, "s")["tool_choice"] == "none"
    assert split.body["tool_choice"] == "required"


@pytest.mark.parametrize("raw", [b"", b"{", b"[1]", b'"x"', b"null", b"\xff\xfe"])
def test_what_is_no_object_is_passed_on(raw: bytes) -> None:
    assert plan("chat", raw) == Opaque()


@pytest.mark.parametrize("value", ["fast", 1, None, [], True])
def test_an_unknown_lynx_stream_is_refused(value: object) -> None:
    with pytest.raises(BadInput, match="lynx_stream is"):
        plan("chat", json.dumps({"lynx_stream": value, "stream": True}).encode())


def test_speculative_goes_with_a_stream_only() -> None:
    with pytest.raises(BadInput, match="set stream to true"):
        plan("chat", b'{"lynx_stream": "speculative"}')
    split = plan("chat", b'{"lynx_stream": "speculative", "stream": true}')
    assert split == Split({"stream": True}, speculative=True, one_prompt=True)
