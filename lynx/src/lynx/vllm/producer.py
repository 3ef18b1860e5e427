"""Prefill's halves of the connector: a finished prompt becomes planes on the wire.

When a prompt's one token is sampled, the scheduler half keeps its blocks and tells the worker half, which offers
the prompt's KV on its ``KvServer``. The server pulls layer after layer: the tokens that matter are chosen, the
layer's pages encoded, while the layer before is on the wire. Once everything is encoded the blocks are freed,
whatever becomes of the consumer; the encoded planes are held until it has them, or for ``hold_s``.
"""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from vllm.v1.request import RequestStatus

from lynx import codec as codecs
from lynx import importance
from lynx.codec.interface import Codec, Plane
from lynx.errors import BadInput
from lynx.layout import PAGE_TOKENS, PageRef
from lynx.transport import KvServer, PageBatch
from lynx.vllm.cache import PagedCache
from lynx.vllm.params import Produce, offer_key, parse
from lynx.vllm.queries import EndingPrompt, QueryCatcher
from lynx.wire import Manifest


@dataclass(frozen=True, slots=True)
class Send:
    """A prompt whose KV is to be offered.

    Args:
        request_id: the engine's id.
        key: name of the offer.
        tokens: prompt length.
        blocks: cache blocks that hold it.
        first_token: the token that follows it.
        codec: name of the codec, or ``None`` for the instance's own.
    """

    request_id: str
    key: bytes
    tokens: int
    blocks: list[int]
    first_token: int | None
    codec: str | None


@dataclass(frozen=True, slots=True)
class ProducerMeta:
    """What prefill's scheduler half tells its worker half with a step."""

    ending: list[EndingPrompt] = field(default_factory=list)
    sends: list[Send] = field(default_factory=list)


class ProducerScheduler:
    """Knows which prompts end when, and which blocks must outlive their request."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._computing: dict[str, Any] = {}
        self._sends: list[Send] = []
        self.endpoint = ""

    def add(self, request: Any) -> None:
        """A request was submitted."""
        if isinstance(_params(request), Produce):
            self._computing[request.request_id] = request

    def build_meta(self, scheduled: dict[str, int], block_ids: Any) -> ProducerMeta:
        """The coming step's metadata; ``scheduled`` counts tokens, ``block_ids(request_id)`` lists blocks."""
        ending = []
        for request_id, count in scheduled.items():
            request = self._computing.get(request_id)
            if request is None or request.num_computed_tokens + count < request.num_prompt_tokens:
                continue
            del self._computing[request_id]
            last = (request.num_prompt_tokens - 1) // self._block_tokens
            ending.append(EndingPrompt(request_id, request.num_prompt_tokens, block_ids(request_id)[last]))
        meta = ProducerMeta(ending, self._sends)
        self._sends = []
        return meta

    def finish(self, request: Any, blocks: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """A request ended; answers whether its blocks stay, and what its response carries."""
        self._computing.pop(request.request_id, None)
        params = _params(request)
        answered = request.status in (RequestStatus.FINISHED_LENGTH_CAPPED, RequestStatus.FINISHED_STOPPED)
        if not isinstance(params, Produce) or not answered:
            return False, None
        tokens = request.num_prompt_tokens
        first_token = request.output_token_ids[0] if request.output_token_ids else None
        key = offer_key(params.session, request.prompt_token_ids)
        self._sends.append(Send(request.request_id, key, tokens, blocks, first_token, params.codec))
        return True, {"lynx": {"endpoint": self.endpoint, "tokens": tokens, "first_token": first_token}}


class ProducerWorker:
    """Encodes and offers prompts.

    Args:
        cache: the engine's cache.
        catcher: catches the prompts' last queries.
        server: started; offers go there.
        codec: what pages are encoded with, unless a request names another.
        early_share: share of tokens whose residual travels with the anchor.
    """

    def __init__(
        self, cache: PagedCache, catcher: QueryCatcher, server: KvServer, codec: Codec, early_share: float
    ) -> None:
        self._cache = cache
        self._catcher = catcher
        self._server = server
        self._codec = codec
        self._early_share = early_share
        self._encoding = 0
        self._encoded: set[str] = set()
        self._lock = threading.Lock()
        self._reported = threading.Event()

    def begin_step(self, meta: ProducerMeta) -> None:
        """Before the step's forward pass."""
        self._catcher.expect(meta.ending)
        for send in meta.sends:
            self._offer(send)

    def drop(self, finished: set[str]) -> None:
        """Requests ended; what was caught for those that are not sent is forgotten."""
        self._catcher.forget(finished)

    def idle(self, timeout_s: float) -> None:
        """With nothing to compute, wait for the encoder: stepping on would take the processor from it."""
        if self._encoding:
            self._reported.wait(timeout_s)

    def take_encoded(self) -> set[str]:
        """Requests whose blocks may be freed, each once."""
        self._reported.clear()
        with self._lock:
            encoded, self._encoded = self._encoded, set()
        return encoded

    def close(self) -> None:
        """Withdraw every offer and take the hooks off."""
        self._server.close()
        self._catcher.close()

    def _offer(self, send: Send) -> None:
        codec = codecs.by_name(send.codec) if send.codec else self._codec
        manifest = Manifest(
            codec=codec.name,
            layout=self._cache.layout,
            tokens=send.tokens,
            plane_bytes=(0,) * len(codec.planes),
            first_token=send.first_token,
        )
        queries = self._catcher.take(send.request_id)
        source = _PromptSource(self._cache, codec, send, queries, self._early_share)
        with self._lock:
            self._encoding += 1
        request_id = send.request_id
        try:
            taken = self._server.offer(
                send.key, manifest, source, on_encoded=lambda _: self._on_encoded(request_id)
            )
        except BadInput:
            # The same prompt is on offer under this session already (twice in one batch): one offer serves both.
            taken = False
        if not taken:
            self._on_encoded(request_id)

    def _on_encoded(self, request_id: str) -> None:
        with self._lock:
            self._encoding -= 1
            self._encoded.add(request_id)
        self._reported.set()


class _PromptSource:
    """One prompt's pages, layer by layer, so that the first layers travel while the last are encoded."""

    def __init__(
        self,
        cache: PagedCache,
        codec: Codec,
        send: Send,
        queries: NDArray[np.float32] | None,
        early_share: float,
    ) -> None:
        self._cache = cache
        self._codec = codec
        self._send = send
        self._queries = queries
        self._early_share = early_share

    def batches(self) -> Iterator[PageBatch]:
        layout, tokens = self._cache.layout, self._send.tokens
        refs = list(layout.pages(tokens))
        full_tokens = tokens - tokens % PAGE_TOKENS
        kv = np.empty((layout.parts, tokens, layout.channels), dtype=self._cache.numpy_dtype)
        for layer in range(layout.layers):
            for part in range(layout.parts):
                self._cache.read(layer, part, self._send.blocks, 0, kv[part])
            early = self._early(layer, kv[0])
            mine = [index for index, ref in enumerate(refs) if ref.layer == layer]
            for group, count in ((full_tokens, PAGE_TOKENS), (tokens, tokens % PAGE_TOKENS)):
                indices = [
                    index for index in mine if refs[index].tokens == count and refs[index].first_token < group
                ]
                if indices:
                    yield self._encode(kv, early, indices, [refs[index] for index in indices])

    def _encode(
        self, kv: NDArray[Any], early: NDArray[np.int64], indices: list[int], refs: list[PageRef]
    ) -> PageBatch:
        pages = np.stack([kv[ref.part, ref.first_token : ref.first_token + ref.tokens] for ref in refs])
        in_page = [
            (
                early[(early >= ref.first_token) & (early < ref.first_token + ref.tokens)] - ref.first_token
            ).astype(np.uint16)
            for ref in refs
        ]
        return PageBatch(indices, self._codec.encode(pages, self._cache.layout.dtype, in_page, refs))

    def _early(self, layer: int, keys: NDArray[Any]) -> NDArray[np.int64]:
        if Plane.RESIDUAL not in self._codec.planes:
            return np.empty(0, dtype=np.int64)
        return importance.early_tokens(
            None if self._queries is None else self._queries[layer],
            keys.reshape(len(keys), self._cache.layout.kv_heads, -1),
            self._cache.layout.dtype,
            self._early_share,
        )


def _params(request: Any) -> Produce | None:
    try:
        params = parse(request.kv_transfer_params)
    except BadInput:
        # The API process has refused it already; an engine must outlive whatever reaches it.
        return None
    return params if isinstance(params, Produce) else None
