"""Which way a request takes, and the two bodies that are sent for it: pure, no IO.

A request is *split* (prefill here, decode there) unless its answer needs something that a loaded prompt or a
drafting engine cannot give; then it is served *whole* by one engine. Either way the engine that makes the
answer sees the client's own body, so that what it answers is what the stock server answers.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from lynx.errors import BadInput

Api = Literal["chat", "completions"]
Body = dict[str, Any]

_NOT_FOR_PREFILL = (
    # Belong to the answer, not to the prompt's KV or to the first token's distribution.
    "stream", "stream_options", "stream_interval", "n", "best_of", "stop", "stop_token_ids", "ignore_eos",
    "include_stop_str_in_output", "min_tokens", "max_tokens", "max_completion_tokens", "logprobs",
    "top_logprobs", "logprob_token_ids", "echo", "return_token_ids", "return_prompt_text",
    "repetition_detection", "request_id",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Split:
    """Prefill on one instance, decode on another.

    Args:
        body: the client's body without Lynx's own fields.
        speculative: drafts go to the client at once, marked.
        one_prompt: the first token that prefill ships belongs to the only prompt there is.
    """

    body: Body
    speculative: bool
    one_prompt: bool


@dataclass(frozen=True, slots=True)
class Whole:
    """One engine does all of it, without drafts.

    Args:
        body: the client's body without Lynx's own fields.
        reason: why, in words for the request's record.
    """

    body: Body
    reason: str


@dataclass(frozen=True, slots=True)
class Opaque:
    """Not a JSON object: passed on untouched, so that the stock server words the refusal."""


Plan = Split | Whole | Opaque


def plan(api: Api, raw: bytes) -> Plan:
    """Decide the way of one request.

    Args:
        api: which endpoint it came to.
        raw: the body as received.

    Raises:
        BadInput: ``lynx_stream`` is unknown, or asks for drafts on an answer that is not streamed.
    """
    try:
        body = json.loads(raw)
    except ValueError:
        return Opaque()
    if not isinstance(body, dict):
        return Opaque()
    mode = body.pop("lynx_stream", "verified")
    if mode not in ("verified", "speculative"):
        raise BadInput(f"lynx_stream is {mode!r}; use 'verified' or 'speculative'")
    if mode == "speculative" and body.get("stream") is not True:
        raise BadInput("lynx_stream is 'speculative' but stream is not true; set stream to true")
    _drop_client_transfer(body)
    reason = _why_whole(api, body)
    if reason:
        return Whole(body, reason)
    return Split(body, mode == "speculative", api == "chat" or _is_one_prompt(body.get("prompt")))


def prefill_body(api: Api, split: Split, session: str) -> Body:
    """The body that makes prefill compute the prompt's KV and exactly one token."""
    body = {name: value for name, value in split.body.items() if name not in _NOT_FOR_PREFILL}
    body["max_completion_tokens" if api == "chat" else "max_tokens"] = 1
    if body.get("tool_choice") not in (None, "none", "auto"):
        body["tool_choice"] = "none"  # one token of a forced call is no call; the prompt is the same
    return body | {"stream": False, "kv_transfer_params": _transfer(split, role="prefill", session=session)}


def decode_body(
    split: Split, session: str, shipped: Mapping[str, Any], *, draft: bool, timeout_s: float
) -> Body:
    """The client's body, with what decode needs to fetch the KV.

    Args:
        split: the plan.
        session: the request's id.
        shipped: what prefill answered with: ``endpoint`` and, it may be, ``first_token``.
        draft: decode may draft on the anchor.
        timeout_s: how long decode may wait for planes.
    """
    fields: Body = {"role": "decode", "session": session, "endpoint": shipped["endpoint"], "draft": draft}
    fields["timeout_s"] = timeout_s
    if split.one_prompt and isinstance(shipped.get("first_token"), int):
        fields["first_token"] = shipped["first_token"]
    return split.body | {"kv_transfer_params": _transfer(split, **fields)}


def _transfer(split: Split, **fields: Any) -> Body:
    return (split.body.get("kv_transfer_params") or {}) | {"lynx": fields}


def _drop_client_transfer(body: Body) -> None:
    """A client may not point an engine at an address: only the router writes ``kv_transfer_params.lynx``."""
    given = body.get("kv_transfer_params")
    if isinstance(given, dict) and "lynx" in given:
        rest = {name: value for name, value in given.items() if name != "lynx"}
        body["kv_transfer_params"] = rest or None


def _why_whole(api: Api, body: Body) -> str | None:
    """The first reason for which the request cannot be split, or ``None``."""
    given = body.get
    if given("min_p") or given("logit_bias"):
        return "min_p and logit_bias are not served by a drafting engine"
    if given("prompt_logprobs") is not None or (api == "completions" and given("echo")):
        return "log-probabilities or echo of the prompt need the prompt computed where the answer is made"
    if given("use_beam_search"):
        return "beam search makes requests of its own"
    if given("prompt_embeds") is not None:
        return "prompt embeddings have no token ids to address the KV by"
    if given("truncate_prompt_tokens") is not None:
        return "the prompt is cut to what max_tokens leaves, which prefill cannot know"
    if given("kv_transfer_params") is not None and not isinstance(given("kv_transfer_params"), dict):
        return "kv_transfer_params is not an object"
    limit = given("max_completion_tokens") if api == "chat" else None
    if (limit if limit is not None else given("max_tokens")) in (0, 1):
        return "an answer of one token is complete when its prefill is"
    return None


def _is_one_prompt(prompt: object) -> bool:
    """A text or one list of token ids, not a batch."""
    if isinstance(prompt, list):
        return bool(prompt) and all(isinstance(token, int) for token in prompt)
    return isinstance(prompt, str)
