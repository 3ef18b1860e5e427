"""What the benches that put a deployment of Lynx to the test share: questions, answers, and whether an answer is right.

The right answer is that of the same engine without drafting, on the same full-level KV, with its log-probabilities: two
likeliest tokens that are equal to rounding may change places, and such a tie is counted as one, never as equal.
"""

import asyncio
import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from lynx.bench.compare import Equal, Parted, compare, likeliest
from lynx.layout import PAGE_TOKENS
from lynx.serve.up import Running
from lynx.texts import Tokenizer, long_prompts

ANSWER_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt and its right answer.

    Args:
        prompt: token ids.
        answer: the greedy answer.
        logprobs: for each token of it those of the likeliest tokens.
    """

    prompt: list[int]
    answer: list[int]
    logprobs: list[dict[int, float]]

    def judge(self, answer: Sequence[int]) -> str:
        """``equal``, ``tie`` or ``wrong``."""
        match compare(answer, self.answer, self.logprobs, "float32"):
            case Equal():
                return "equal"
            case Parted(tie=tie):
                return "tie" if tie else "wrong"


def prompts(tokenizer: Tokenizer, lengths: Sequence[int]) -> list[list[int]]:
    """Real prompts cut from their start to the lengths wanted, no two alike."""
    longest = max(*lengths, 10 * PAGE_TOKENS)
    texts = long_prompts(tokenizer, longest, len(lengths))
    return [
        list(text.token_ids)[len(text.token_ids) - min(length, len(text.token_ids)) :]
        for length, text in zip(lengths, texts, strict=True)
    ]


async def question(http: httpx.AsyncClient, up: Running, prompt: list[int]) -> Question:
    """Ask prefill and decode directly, without drafting."""
    session = uuid.uuid4().hex
    shipped = await _post(
        http, up.prefill[0], _body(prompt, {"role": "prefill", "session": session}) | {"max_tokens": 1}
    )
    where = shipped["kv_transfer_params"]["lynx"]["endpoint"]
    consume = {"role": "decode", "session": session, "endpoint": where, "draft": False}
    options = {"logprobs": 5, "return_tokens_as_token_ids": True}
    choice = (await _post(http, up.decode[0], _body(prompt, consume) | options))["choices"][0]
    return Question(prompt, choice["token_ids"], likeliest(choice))


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client of the router got: tokens, or an error in words, or nothing within its timeout."""

    tokens: list[int] | None
    error: str = ""

    @property
    def silent(self) -> bool:
        """No answer and no error: the one thing that must not happen."""
        return self.tokens is None and not self.error


async def ask(
    http: httpx.AsyncClient, up: Running, prompt: list[int], stream: bool, timeout_s: float
) -> Answer:
    """Ask the router as any client does; a stream that ends early is an error only if it says so."""
    body = _body(prompt, None) | {"stream": stream}
    try:
        async with asyncio.timeout(timeout_s):
            response = await http.post(f"{up.router}/v1/completions", json=body)
    except TimeoutError:
        return Answer(None)
    except httpx.HTTPError as error:  # the router itself is gone: the connection says so at once
        return Answer(None, f"connection: {type(error).__name__}")
    if response.status_code != 200:
        return Answer(None, f"{response.status_code}: {_message(response.text)}")
    if not stream:
        return Answer(response.json()["choices"][0]["token_ids"])
    tokens: list[int] = []
    for line in response.text.splitlines():
        data = line.removeprefix("data: ")
        if data == "[DONE]":
            return Answer(tokens)
        if data:
            event = json.loads(data)
            if "error" in event:
                return Answer(None, f"in the stream: {event['error']['message']}")
            for choice in event["choices"]:
                tokens += choice.get("token_ids") or []
    return Answer(None)


def family(pid: int) -> list[int]:
    """A process and all below it."""
    children = [
        int(child)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]
    return [pid, *(grandchild for child in children for grandchild in family(child))]


def _body(prompt: list[int], lynx: dict[str, Any] | None) -> dict[str, Any]:
    body: dict[str, Any] = {
        "prompt": prompt,
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
        # Else the second request of a prompt would find its KV in the engines' own caches.
        "cache_salt": uuid.uuid4().hex,
    }
    return body | ({"kv_transfer_params": {"lynx": lynx}} if lynx else {})


async def _post(http: httpx.AsyncClient, url: str, body: dict[str, Any]) -> dict[str, Any]:
    response = await http.post(f"{url}/v1/completions", json=body)
    if response.status_code != 200:
        raise SystemExit(f"error: {url} answered {response.status_code}: {response.text[:300]}")
    answer: dict[str, Any] = response.json()
    return answer


def _message(text: str) -> str:
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return text[:200]
