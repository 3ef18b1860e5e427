"""The whole way on real engines: drafted answers equal undrafted ones, whatever is sampled beside them, and
nothing stays behind.

In float32, where a verification pass and single-token passes give the same tokens. The link is slowed by the
transport's own token bucket, so that there is time to draft.
"""

import re
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from transformers import AutoTokenizer

from lynx import model
from lynx.serve.up import UpConfig, running
from lynx.texts import long_prompts

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

ANSWER_TOKENS = 24


@dataclass(frozen=True)
class Pair:
    """A prefill and a decode instance, asked directly."""

    prefill: str
    decode: str
    prompts: list[list[int]]
    http: httpx.Client

    def answer(
        self,
        prompt: list[int],
        *,
        draft: bool,
        codec: str = "nested",
        endpoint: str | None = None,
        **options: Any,
    ) -> tuple[list[int], dict[str, Any]]:
        """Token ids of an answer and decode's record of the request."""
        session = uuid.uuid4().hex
        shipped = self._post(
            self.prefill, prompt, {"role": "prefill", "session": session, "codec": codec}, max_tokens=1
        )
        where = endpoint or shipped["kv_transfer_params"]["lynx"]["endpoint"]
        consume = {"role": "decode", "session": session, "endpoint": where, "draft": draft, "timeout_s": 60}
        options = {"max_tokens": ANSWER_TOKENS, "cache_salt": session, "return_token_ids": True} | options
        if endpoint:
            consume["timeout_s"] = 1
        answer = self._post(self.decode, prompt, consume, **options)
        record = self.http.get(f"{self.decode}/lynx/requests/{session}").raise_for_status().json()
        return answer["choices"][0]["token_ids"], record["requests"][0]

    def blocks_in_use(self, url: str) -> float:
        """Share of the engine's cache that requests hold."""
        text = self.http.get(f"{url}/metrics").raise_for_status().text
        found = re.search(r"^vllm:kv_cache_usage_perc\S* (\S+)", text, re.MULTILINE)
        assert found
        return float(found[1])

    def _post(self, url: str, prompt: list[int], lynx: dict[str, Any], **options: Any) -> dict[str, Any]:
        body = {"prompt": prompt, "temperature": 0, "ignore_eos": True, "kv_transfer_params": {"lynx": lynx}}
        response = self.http.post(f"{url}/v1/completions", json=body | options)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    path = model.ensure()
    words = ("--model", str(path), "--dtype", "float32", "--max-model-len", "1200", "--kv-cache-mib", "512")
    # 40 Mbit/s: half a second and more between anchor and residual of these prompts.
    config = UpConfig(prefill=(*words, "--rate", "40mbit"), decode=words, port=0)
    prompts = [list(p.token_ids) for p in long_prompts(AutoTokenizer.from_pretrained(path), 700, 2)]
    with running(config) as up, httpx.Client(timeout=300.0, trust_env=False) as http:
        yield Pair(up.prefill[0], up.decode[0], prompts, http)


def test_drafted_answers_equal_undrafted_ones(pair):
    kept = 0
    for prompt in pair.prompts:
        plain, record = pair.answer(prompt, draft=False)
        assert record["drafted"] == []
        drafted, record = pair.answer(prompt, draft=True)
        assert drafted == plain
        assert record["verified"] == plain
        kept += record["accepted"]
    assert kept > 0


@pytest.mark.parametrize("codec", ["bf16", "int8", "int4", "kivi4", "lynx"])
def test_every_codec_answers_at_full_length(pair, codec):
    tokens, record = pair.answer(pair.prompts[0], draft=codec == "lynx", codec=codec)
    assert len(tokens) == ANSWER_TOKENS
    assert "error" not in record["transfer"]
    assert record["transfer"]["anchor_bytes"] > 0


@pytest.mark.parametrize(
    "sampling", [{"top_k": 1}, {"top_k": 20, "top_p": 1e-6}, {"top_p": 1e-6}], ids=["k", "kp", "p"]
)
def test_sampling_that_leaves_one_choice_is_greedy_also_beside_a_greedy_request(pair, sampling):
    greedy, _ = pair.answer(pair.prompts[0], draft=False)
    other, _ = pair.answer(pair.prompts[1], draft=False)
    with ThreadPoolExecutor(2) as pool:
        sampled = pool.submit(pair.answer, pair.prompts[0], draft=True, temperature=0.9, seed=1, **sampling)
        beside = pool.submit(pair.answer, pair.prompts[1], draft=True)
        assert sampled.result()[0] == greedy
        assert beside.result()[0] == other


def test_lost_producer_costs_time_not_the_answer(pair):
    tokens, record = pair.answer(pair.prompts[0], draft=True, endpoint="127.0.0.1:9")
    assert len(tokens) == ANSWER_TOKENS
    assert record["drafted"] == []


def test_malformed_parameters_are_refused_with_the_field_named(pair):
    body = {
        "prompt": "Hello",
        "max_tokens": 2,
        "kv_transfer_params": {"lynx": {"role": "both", "session": "s"}},
    }
    response = pair.http.post(f"{pair.decode}/v1/completions", json=body)
    assert response.status_code == 400
    assert "kv_transfer_params.lynx.role" in response.text


def test_nothing_stays_behind(pair):
    """Runs last: every block of both engines is free again."""
    pair.answer(pair.prompts[0], draft=True)
    # A request's blocks are freed in the step after its answer; one more answer is a step or more.
    for url in (pair.prefill, pair.decode):
        pair.http.post(f"{url}/v1/completions", json={"prompt": "Hello", "max_tokens": 4}).raise_for_status()
        assert pair.blocks_in_use(url) < 0.02
