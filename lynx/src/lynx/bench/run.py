"""Asks a deployment, mode by mode, and writes down what came back.

The instances are asked directly, not through the router: prefill first, and once it has answered, decode. So the end
of prefill is known to the microsecond and the same for every mode. Modes are interleaved, prompt by prompt, so that
a slow minute of the machine hits all of them.
"""

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from lynx.bench.compare import Equal, Parted, compare, likeliest
from lynx.bench.figures import Equality, Sample, row, sample
from lynx.bench.modes import Mode
from lynx.errors import BadInput, TransferLost
from lynx.serve.up import Running, UpConfig, running
from lynx.texts import Prompt, long_prompts

Say = Callable[[str], None]
BLOCK_TOKENS = 128
LEAST_TAIL_TOKENS = 32
"""A prompt asked again is a hit in prefill's cache up to its last block; so many tokens must be left to compute for
the same last queries to be seen."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What is run.

    Args:
        model: directory of the model.
        modes: what is compared.
        prompts: number of prompts.
        tokens: length of a prompt, at most.
        answer_tokens: length of an answer.
        repetitions: how often everything is asked.
        link_bps: rate of the link.
        dtype: the engines' arithmetic.
    """

    model: Path
    modes: Sequence[Mode]
    prompts: int
    tokens: int
    answer_tokens: int
    repetitions: int
    link_bps: int
    dtype: str


@dataclass(slots=True)
class Outcome:
    """What came of a run: rows as in the JSON file, every request, and the ties and differences seen."""

    rows: list[dict[str, Any]]
    samples: list[Sample]
    parted: list[tuple[str, int, Parted]]
    shaping: str
    answers: list[tuple[Prompt, str]] = field(default_factory=list)


def bench(settings: Settings, say: Say) -> Outcome:
    """Start instances over a shaped link, ask, end them.

    Raises:
        BadInput: something cannot be started; the message says what.
        TransferLost: an instance refused a request or is gone.
    """
    prompts = choose_prompts(settings)
    with _deployment(settings, say) as up, httpx.Client(timeout=600.0, trust_env=False) as http:
        asker = _Asker(http, up, settings.answer_tokens)
        _warm_up(asker, prompts[0], settings.modes, say)
        samples: list[Sample] = []
        references: dict[tuple[str, int], Sample] = {}
        total = settings.repetitions * len(prompts) * len(settings.modes)
        for repetition in range(settings.repetitions):
            for index, prompt in enumerate(prompts):
                for mode in settings.modes:
                    one = asker.ask(mode, index, prompt)
                    samples.append(one)
                    say(f"[{len(samples)}/{total}] prompt {index + 1}, {mode.name}: {_in_words(one)}")
                    if mode.draft and repetition == 0:
                        references[mode.name, index] = asker.ask(mode.without_drafts, index, prompt)
        parted = list(_compare_all(asker, settings, prompts, samples, references))
        rows = [_row(mode, samples, references, parted) for mode in settings.modes]
        texts = [(prompt, asker.text(samples, index)) for index, prompt in enumerate(prompts)]
    return Outcome(rows, samples, parted, up.shaping, texts)


def choose_prompts(settings: Settings) -> list[Prompt]:
    """Different prompts, none of which leaves too few tokens behind its last full cache block."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(settings.model)
    fitting = [
        prompt
        for prompt in long_prompts(tokenizer, settings.tokens, 3 * settings.prompts + 3)
        if (len(prompt.token_ids) - 1) % BLOCK_TOKENS + 1 >= LEAST_TAIL_TOKENS
    ]
    if len(fitting) < settings.prompts:
        raise BadInput(
            f"prompts is {settings.prompts}; this machine's texts give {len(fitting)} of that length"
        )
    return fitting[: settings.prompts]


@contextmanager
def _deployment(settings: Settings, say: Say) -> Iterator[Running]:
    shared = ("--model", str(settings.model), "--dtype", settings.dtype)
    length = ("--max-model-len", str(settings.tokens + settings.answer_tokens + 1))
    config = UpConfig(
        prefill=(*shared, *length), decode=(*shared, *length), port=0, link_bps=settings.link_bps
    )
    with running(config, say) as up:
        yield up


class _Asker:
    """Asks both instances and reads decode's record of it."""

    def __init__(self, http: httpx.Client, up: Running, answer_tokens: int) -> None:
        self._http = http
        self._prefill = up.prefill[0]
        self._decode = up.decode[0]
        self._answer_tokens = answer_tokens

    def ask(self, mode: Mode, index: int, prompt: Prompt) -> Sample:
        """One request of one mode, greedily, to the full length."""
        prefill_end_ns, record, _ = self._run(mode, prompt)
        return sample(mode.name, index, prefill_end_ns, record)

    def warm_up(self, mode: Mode, prompt: Prompt) -> None:
        """A few tokens of one mode, not measured."""
        self._run(mode, prompt, max_tokens=4)

    def logprobs(self, mode: Mode, prompt: Prompt) -> list[dict[int, float]]:
        """For each token of an answer the log-probabilities of the likeliest tokens."""
        _, _, answer = self._run(mode, prompt, logprobs=5, return_tokens_as_token_ids=True)
        return likeliest(answer["choices"][0])

    def text(self, samples: Sequence[Sample], index: int) -> str:
        """The answer to a prompt, in words."""
        tokens = next(one.token_ids for one in reversed(samples) if one.prompt == index)
        answer = self._post(self._decode, "/detokenize", {"tokens": list(tokens)})
        return str(answer["prompt"])

    def _run(self, mode: Mode, prompt: Prompt, **options: Any) -> tuple[int, dict[str, Any], dict[str, Any]]:
        session = uuid.uuid4().hex
        ids = list(prompt.token_ids)
        produce = {"role": "prefill", "session": session, "codec": mode.codec}
        shipped = self._post(
            self._prefill,
            "/v1/completions",
            {"prompt": ids, "max_tokens": 1, "temperature": 0, "kv_transfer_params": {"lynx": produce}},
        )
        prefill_end_ns = time.monotonic_ns()
        consume = {
            "role": "decode",
            "session": session,
            "endpoint": shipped["kv_transfer_params"]["lynx"]["endpoint"],
            "draft": mode.draft,
        }
        body = {
            "prompt": ids,
            "max_tokens": self._answer_tokens,
            "temperature": 0,
            "ignore_eos": True,
            # Without a salt the second request for a prompt would find its KV in decode's own cache.
            "cache_salt": session,
            "kv_transfer_params": {"lynx": consume},
        }
        answer = self._post(self._decode, "/v1/completions", body | options)
        record = (
            self._http.get(f"{self._decode}/lynx/requests/{session}").raise_for_status().json()["requests"][0]
        )
        if record["transfer"].get("error"):
            raise TransferLost(f"{mode.name}: {record['transfer']['error']}")
        return prefill_end_ns, record, answer

    def _post(self, url: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        try:
            response = self._http.post(url + path, json=body)
        except httpx.HTTPError as error:
            raise TransferLost(f"{url} is gone ({type(error).__name__}); see its log") from error
        if response.status_code != 200:
            raise TransferLost(f"{url} answered {response.status_code}: {response.text[:300]}")
        answer: dict[str, Any] = response.json()
        return answer


def _warm_up(asker: _Asker, prompt: Prompt, modes: Sequence[Mode], say: Say) -> None:
    """One short request a mode: the first of anything compiles and allocates."""
    say("Warming up")
    short = Prompt(prompt.title, prompt.question, prompt.content, prompt.token_ids[-300:])
    for mode in modes:
        asker.warm_up(mode, short)


def _compare_all(
    asker: _Asker,
    settings: Settings,
    prompts: Sequence[Prompt],
    samples: Sequence[Sample],
    references: dict[tuple[str, int], Sample],
) -> Iterator[tuple[str, int, Parted]]:
    """Every drafted answer that is not its reference, with the logits at which they part."""
    logprobs: dict[tuple[str, int], list[dict[int, float]]] = {}
    for one in samples:
        place = one.mode, one.prompt
        reference = references.get(place)
        if reference is None or one.token_ids == reference.token_ids:
            continue
        if place not in logprobs:
            mode = next(mode for mode in settings.modes if mode.name == one.mode)
            logprobs[place] = asker.logprobs(mode.without_drafts, prompts[one.prompt])
        match compare(one.token_ids, reference.token_ids, logprobs[place], settings.dtype):
            case Parted() as parted:
                yield one.mode, one.prompt, parted
            case Equal():
                pass


def _row(
    mode: Mode,
    samples: Sequence[Sample],
    references: dict[tuple[str, int], Sample],
    parted: Sequence[tuple[str, int, Parted]],
) -> dict[str, Any]:
    mine = [one for one in samples if one.mode == mode.name]
    if not mode.draft:
        return row(mode.name, mine, None)
    ties = sum(found.tie for name, _, found in parted if name == mode.name)
    different = sum(not found.tie for name, _, found in parted if name == mode.name)
    equal = sum(one.token_ids == references[mode.name, one.prompt].token_ids for one in mine)
    return row(mode.name, mine, Equality(equal, ties, different))


def _in_words(one: Sample) -> str:
    def at(times: tuple[float, ...], token: int) -> str:
        return f"{times[token - 1]:.2f} s" if len(times) >= token else "-"

    text = f"first token {at(one.drafted_s, 1)}, 32nd verified {at(one.verified_s, 32)}, {one.wire_bytes / 1e6:.1f} MB"
    return f"{text}, {one.accepted} of {one.drafted} drafts kept" if one.drafted else text
