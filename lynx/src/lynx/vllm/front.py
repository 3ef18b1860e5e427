"""The decode instance's API process: one user request becomes a *main* and a *draft* request of the same engine.

The main request waits for its full KV as any disaggregated request does, and everything the client sees comes
from it. The draft request starts on the anchor under a cache salt of its own; its tokens are worth something only
once the main request has verified them. Whatever befalls the draft, the main request goes on as a plain transfer.
"""

import asyncio
import contextlib
import time
import uuid
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import asdict, dataclass, field
from typing import Any

from vllm.inputs.engine import tokens_input
from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine.async_llm import AsyncLLM

from lynx.errors import BadInput
from lynx.speculate import accepted_prefix
from lynx.vllm.config import MARGIN_TOKENS
from lynx.vllm.params import Consume, draft_params, parse

_KEPT_SESSIONS = 1024
"""Sessions whose records are kept for ``/lynx/requests``; the oldest go first."""

_KEPT_TIMES = 256
"""Tokens of one answer whose times are kept."""


@dataclass(slots=True)
class RequestRecord:
    """What became of one prompt of a session. Times are CLOCK_MONOTONIC nanoseconds.

    ``draft_ns`` and ``verified_ns`` hold a time per token, in token order, for at most 256 tokens; ``transfer`` is
    the connector's part: bytes per plane and when each plane began, ended and was in the cache.
    """

    prompt_tokens: int
    submitted_ns: int
    drafted: list[int] = field(default_factory=list)
    draft_ns: list[int] = field(default_factory=list)
    verified: list[int] = field(default_factory=list)
    verified_ns: list[int] = field(default_factory=list)
    accepted: int = 0
    finished: bool = False
    transfer: dict[str, Any] = field(default_factory=dict)


class _Session:
    """Records and draft events of one session; readers wait on ``changed``."""

    def __init__(self) -> None:
        self.records: list[RequestRecord] = []
        self.events: list[dict[str, Any]] = []
        self.closed = False
        self.changed = asyncio.Event()

    def tell(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        self.wake()

    def wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


class DraftingEngine(AsyncLLM):
    """vLLM's engine client, drafting for requests that carry ``kv_transfer_params["lynx"]``.

    Build it as any ``AsyncLLM``, from ``lynx.vllm.config.decode_args``. Clients are held to the served limit: the
    engine's own limit is longer by the draft margin, and this process is told the shorter one.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        speculative = self.vllm_config.speculative_config
        self._longest_draft = int(speculative.num_speculative_tokens) if speculative else 0
        if self._longest_draft:
            # The engine runs in another process; only this one's copy of the limit changes.
            self.model_config.max_model_len -= self._longest_draft + MARGIN_TOKENS

    async def generate(
        self, prompt: Any, sampling_params: SamplingParams, request_id: str, **options: Any
    ) -> AsyncGenerator[RequestOutput, None]:
        """As ``AsyncLLM.generate``; a malformed ``lynx`` object is a ``ValueError`` (HTTP 400)."""
        try:
            params = parse((sampling_params.extra_args or {}).get("kv_transfer_params"))
        except BadInput as error:
            raise ValueError(str(error)) from error
        match params:
            case Consume() if isinstance(prompt, dict) and prompt.get("type") == "token":
                watched = _watched(sampling_params)
                main = super().generate(prompt, watched, request_id, **options)
                outputs = self._generate_drafted(main, params, prompt["prompt_token_ids"], watched)
            case _:
                watched = sampling_params
                outputs = super().generate(prompt, sampling_params, request_id, **options)
        last_only = watched is not sampling_params
        async with contextlib.aclosing(outputs):
            async for output in outputs:
                if output.finished or not last_only:
                    yield output

    def record(self, session: str) -> dict[str, Any] | None:
        """The breakdown of a session's requests, or ``None`` if the session is unknown or forgotten."""
        known = self._sessions.get(session)
        if known is None:
            return None
        return {"session": session, "requests": [asdict(record) for record in known.records]}

    async def drafts(self, session: str, timeout_s: float = 60.0) -> AsyncIterator[dict[str, Any]]:
        """Draft and correction events of a session as they happen, from its beginning.

        ``{"event": "draft", "index": prompt, "token_ids": [..]}``, then, once verification has spoken,
        ``{"event": "correction", "index": prompt, "accepted": k, "token_ids": [what stands after them]}``.
        Ends when the session's requests have ended, or ``timeout_s`` after the last event.
        """
        known = self._session(session)
        sent = 0
        while True:
            while sent < len(known.events):
                yield known.events[sent]
                sent += 1
            if known.closed:
                return
            try:
                await asyncio.wait_for(known.changed.wait(), timeout_s)
            except TimeoutError:
                return

    async def _generate_drafted(
        self,
        main: AsyncGenerator[RequestOutput, None],
        consume: Consume,
        prompt: list[int],
        sampling_params: SamplingParams,
    ) -> AsyncGenerator[RequestOutput, None]:
        session = self._session(consume.session)
        record = RequestRecord(prompt_tokens=len(prompt), submitted_ns=time.monotonic_ns())
        session.records.append(record)
        draft = None
        if consume.draft and self._longest_draft and sampling_params.prompt_logprobs is None:
            draft = asyncio.create_task(self._draft(session, record, consume, prompt, sampling_params))
        delta = sampling_params.output_kind is RequestOutputKind.DELTA
        try:
            async with contextlib.aclosing(main):
                async for output in main:
                    if draft is not None and output.outputs and output.outputs[0].token_ids:
                        draft.cancel()
                    _note_verified(record, output, delta)
                    self._maybe_correct(session, record)
                    yield output
        finally:
            record.finished = True
            self._maybe_correct(session, record)
            if draft is not None:
                draft.cancel()
                # Whatever the draft died of, the main request has already answered.
                await asyncio.wait([draft])
            session.closed = all(other.finished for other in session.records)
            session.wake()

    async def _draft(
        self,
        session: _Session,
        record: RequestRecord,
        consume: Consume,
        prompt: list[int],
        main: SamplingParams,
    ) -> None:
        params = _draft_sampling(main, consume, len(prompt), self._longest_draft)
        known = _known_tokens(consume, main)
        index = session.records.index(record)
        self._note_draft(session, record, index, known)
        if params.max_tokens is None or params.max_tokens <= len(known):
            return
        params.max_tokens -= len(known)
        twin = tokens_input(prompt + known, cache_salt=uuid.uuid4().hex)
        drafting = super().generate(twin, params, f"draft-{consume.session}-{index}")
        async with contextlib.aclosing(drafting):
            async for output in drafting:
                self._note_draft(session, record, index, list(output.outputs[0].token_ids))

    def _note_draft(self, session: _Session, record: RequestRecord, index: int, tokens: list[int]) -> None:
        if not tokens:
            return
        record.drafted += tokens
        record.draft_ns += [time.monotonic_ns()] * len(tokens)
        session.tell({"event": "draft", "index": index, "token_ids": tokens})

    def _maybe_correct(self, session: _Session, record: RequestRecord) -> None:
        """Tell readers once how much of the draft stands."""
        index = session.records.index(record)
        told = any(event["event"] == "correction" and event["index"] == index for event in session.events)
        agreed = accepted_prefix(record.drafted, record.verified)
        decided = record.finished or agreed < min(len(record.drafted), len(record.verified))
        if told or not record.drafted or not (decided or len(record.verified) >= len(record.drafted)):
            return
        record.accepted = agreed
        standing = record.verified[agreed:]
        session.tell({"event": "correction", "index": index, "accepted": agreed, "token_ids": standing})

    def _session(self, name: str) -> _Session:
        session = self._sessions.get(name)
        if session is None:
            session = self._sessions[name] = _Session()
            while len(self._sessions) > _KEPT_SESSIONS:
                self._sessions.popitem(last=False)
        return session


def _watched(sampling_params: SamplingParams) -> SamplingParams:
    """The same request, reporting each token, so that the draft can end at the first one."""
    if sampling_params.output_kind is not RequestOutputKind.FINAL_ONLY or sampling_params.n != 1:
        return sampling_params
    watched = sampling_params.clone()
    watched.output_kind = RequestOutputKind.CUMULATIVE
    return watched


def _draft_sampling(main: SamplingParams, consume: Consume, kv_tokens: int, longest: int) -> SamplingParams:
    """What the draft samples by: the main request's constraints, greedily, and no more than ``longest`` tokens."""
    params = main.clone()
    params.n = 1
    params.temperature = 0.0
    params.top_p, params.top_k, params.min_p = 1.0, 0, 0.0
    params.seed = None
    params.stop = []
    params.logprobs = None
    params.detokenize = False
    params.output_text_buffer_length = 0
    params.output_kind = RequestOutputKind.DELTA
    params.max_tokens = min(longest, main.max_tokens or longest)
    params.min_tokens = min(params.min_tokens, params.max_tokens)
    params.extra_args = {"kv_transfer_params": draft_params(consume, kv_tokens)}
    return params


def _known_tokens(consume: Consume, main: SamplingParams) -> list[int]:
    """Prefill's first token, when nothing random or stateful chose it: then it is the main request's own."""
    if consume.first_token is None or main.temperature != 0.0 or main.structured_outputs is not None:
        return []
    return [consume.first_token]


def _note_verified(record: RequestRecord, output: RequestOutput, delta: bool) -> None:
    if not output.outputs or output.outputs[0].index != 0:
        return
    tokens = list(output.outputs[0].token_ids)
    fresh = tokens if delta else tokens[len(record.verified) :]
    room = _KEPT_TIMES - len(record.verified)
    record.verified += fresh[:room]
    record.verified_ns += [time.monotonic_ns()] * len(fresh[:room])
    if output.kv_transfer_params:
        record.transfer = dict(output.kv_transfer_params.get("lynx", {}))
