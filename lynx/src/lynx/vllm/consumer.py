"""Decode's halves of the connector: planes from the wire become blocks of waiting requests.

One fetch serves every request that wants the same prompt: the draft (anchor level) and the main request or
requests (full level). Pages are decoded and written as they come, in one landing thread, into blocks of requests
that vLLM keeps waiting; once a level is complete its requests are reported as received.
"""

import logging
import math
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np

from lynx import codec as codecs
from lynx.codec.interface import Codec, Plane
from lynx.errors import BadInput, LayoutMismatch, LynxError, TransferLost
from lynx.layout import PageRef
from lynx.transport import Fetch, KvClient, TransferStats
from lynx.vllm.cache import PagedCache
from lynx.vllm.params import Consume, Draft, offer_key, parse
from lynx.vllm.proposals import TABLE, Proposal, Step, place_drafts
from lynx.wire import Manifest

logger = logging.getLogger(__name__)

LANDING_BYTES = 1 << 20
"""Payload bytes landed together: each landing takes turns with the engine at the interpreter."""

LANDING_NICE = 5
"""Priority of the landing thread below the engine's, as nice values."""

LEFT_TO_COMPUTE = 1
"""Prompt tokens that a loaded request computes itself. With one, vLLM leaves room for drafts in its first step."""


class Level(Enum):
    """How much of the KV a request waits for."""

    ANCHOR = "anchor"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Load:
    """A request that waits for KV.

    Args:
        request_id: the engine's id.
        key: name of the offer.
        host: where to fetch it.
        port: likewise.
        level: what the request waits for.
        blocks: its cache blocks.
        start: first token to write; those before are in the cache already.
        stop: end of the tokens to write.
        timeout_s: how long the fetch may take.
    """

    request_id: str
    key: bytes
    host: str
    port: int
    level: Level
    blocks: list[int]
    start: int
    stop: int
    timeout_s: float


@dataclass(frozen=True, slots=True)
class ConsumerMeta:
    """What decode's scheduler half tells its worker half with a step."""

    loads: list[Load] = field(default_factory=list)
    proposals: list[Proposal] = field(default_factory=list)
    retired: list[str] = field(default_factory=list)
    released: list[bytes] = field(default_factory=list)


@dataclass(slots=True)
class _Tracked:
    """A request that the scheduler half knows."""

    request: Any
    params: Consume | Draft
    key: bytes
    kv_tokens: int
    cached_tokens: int = 0
    asked: bool = False


class ConsumerScheduler:
    """Claims KV for requests, and at arrival reads what the draft has written so far.

    Args:
        longest_wait_s: bounds how long a request may ask to wait for its KV.
    """

    def __init__(self, longest_wait_s: float = math.inf) -> None:
        self._longest_wait_s = longest_wait_s
        self._tracked: dict[str, _Tracked] = {}
        self._drafts: dict[bytes, Any] = {}
        self._meta = ConsumerMeta()
        self._transfers: dict[bytes, dict[str, Any]] = {}

    def add(self, request: Any) -> None:
        """A request was submitted."""
        try:
            params = parse(request.kv_transfer_params)
        except BadInput:
            # The API process has refused it already; an engine must outlive whatever reaches it.
            return
        prompt = request.prompt_token_ids
        match params:
            case Consume(session=session):
                kv_tokens = len(prompt)
            case Draft(session=session, kv_tokens=kv_tokens):
                prompt = prompt[:kv_tokens]
            case _:
                return
        key = offer_key(session, prompt)
        self._tracked[request.request_id] = _Tracked(request, params, key, kv_tokens)
        if isinstance(params, Draft):
            self._drafts[key] = request

    def claim(self, request: Any, cached_tokens: int) -> tuple[int, bool]:
        """How many tokens beyond ``cached_tokens`` are to be loaded, and whether that takes several steps."""
        tracked = self._tracked.get(request.request_id)
        if tracked is None or tracked.asked:
            # A load that failed once is not tried again: vLLM recomputes.
            return 0, False
        wanted = min(tracked.kv_tokens, request.num_tokens - LEFT_TO_COMPUTE) - cached_tokens
        tracked.cached_tokens = cached_tokens
        return (wanted, True) if wanted > 0 else (0, False)

    def allocate(self, request: Any, blocks: list[int], tokens: int) -> None:
        """Blocks for ``tokens`` claimed tokens are there; 0 when nothing is to be loaded."""
        tracked = self._tracked.get(request.request_id)
        if tracked is None or tracked.asked:
            return
        tracked.asked = True
        if not tokens:
            self._settle(request.request_id)
            return
        host, _, port = tracked.params.endpoint.rpartition(":")
        self._meta.loads.append(
            Load(
                request_id=request.request_id,
                key=tracked.key,
                host=host,
                port=int(port),
                level=Level.ANCHOR if isinstance(tracked.params, Draft) else Level.FULL,
                blocks=blocks,
                start=tracked.cached_tokens,
                stop=tracked.cached_tokens + tokens,
                timeout_s=min(tracked.params.timeout_s, self._longest_wait_s),
            )
        )

    def received(self, request_ids: set[str], transfers: dict[bytes, dict[str, Any]]) -> None:
        """Loads ended; a main request's is the moment at which its draft is read."""
        known = {tracked.key for tracked in self._tracked.values()}
        self._transfers.update((key, transfer) for key, transfer in transfers.items() if key in known)
        for request_id in request_ids:
            tracked = self._tracked.get(request_id)
            if tracked is None or isinstance(tracked.params, Draft):
                continue
            if drafted := self._drafted(tracked):
                self._meta.proposals.append(Proposal(request_id, tracked.request.prompt_token_ids, drafted))

    def build_meta(self, step: Step) -> ConsumerMeta:
        """The coming step's metadata; drafts are placed in the first step of the requests they were made for."""
        place_drafts(step, self._first_drafts)
        meta, self._meta = self._meta, ConsumerMeta()
        return meta

    def finish(self, request: Any) -> dict[str, Any] | None:
        """A request ended; answers what its response carries."""
        tracked = self._tracked.get(request.request_id)
        if tracked is None:
            return None
        transfer = self._transfers.get(tracked.key)
        self._settle(request.request_id)
        return {"lynx": transfer} if transfer and isinstance(tracked.params, Consume) else None

    def held(self) -> int:
        """Requests, drafts and transfers known; 0 at rest."""
        return len(self._tracked) + len(self._drafts) + len(self._transfers)

    def _drafted(self, tracked: _Tracked) -> list[int]:
        draft = self._drafts.get(tracked.key)
        return list(draft.all_token_ids[tracked.kv_tokens :]) if draft is not None else []

    def _first_drafts(self, request_id: str) -> list[int]:
        tracked = self._tracked.get(request_id)
        if tracked is None or isinstance(tracked.params, Draft) or tracked.request.use_structured_output:
            # A grammar must see drafts before they are verified: vLLM shows it those of the proposer.
            return []
        return self._drafted(tracked)

    def _settle(self, request_id: str) -> None:
        tracked = self._tracked.pop(request_id)
        self._meta.retired.append(request_id)
        # A draft that ended is read all the same when its main request's KV arrives.
        if all(other.key != tracked.key for other in self._tracked.values()):
            self._drafts.pop(tracked.key, None)
            self._transfers.pop(tracked.key, None)
            self._meta.released.append(tracked.key)


@dataclass(slots=True)
class _Target:
    """A load and what became of it."""

    load: Load
    ended: bool = False


class _Arrival:
    """One fetch: its payloads as they come, and the requests they are written for.

    Lives in the landing thread alone, but for the sink's methods, which only gather and post to it.
    """

    def __init__(self, key: bytes, worker: "ConsumerWorker") -> None:
        self.key = key
        self.fetch: Fetch | None = None
        self.targets: list[_Target] = []
        self.error: LynxError | None = None
        self.times: dict[str, Any] = {"dequantise_ns": 0}
        self._worker = worker
        self._codec: Codec | None = None
        self._refs: list[PageRef] = []
        self._payloads: dict[Plane, dict[int, memoryview]] = {Plane.ANCHOR: {}, Plane.RESIDUAL: {}}
        self._afloat: dict[Plane, list[tuple[int, memoryview]]] = {Plane.ANCHOR: [], Plane.RESIDUAL: []}
        self._afloat_bytes = dict.fromkeys(Plane, 0)
        self._anchored = False
        self._done = False

    # The sink, called in the client's thread.

    def on_manifest(self, manifest: Manifest) -> None:
        mine = self._worker.cache.layout
        theirs = manifest.layout
        if (mine.layers, mine.parts, mine.kv_heads, mine.head_size) != (
            theirs.layers, theirs.parts, theirs.kv_heads, theirs.head_size,
        ):  # fmt: skip
            raise LayoutMismatch(
                f"prefill's cache is {theirs} and decode's is {mine}; start both with one model"
            )
        self._codec = codecs.by_name(manifest.codec)
        self._refs = list(mine.pages(manifest.tokens))

    def on_pages(self, plane: Plane, pages: Sequence[tuple[int, memoryview]]) -> None:
        self._afloat[plane] += pages
        self._afloat_bytes[plane] += sum(len(payload) for _, payload in pages)
        if self._afloat_bytes[plane] >= LANDING_BYTES:
            self._hand_over(plane)

    def on_plane_end(self, plane: Plane) -> None:
        self._hand_over(plane)
        self._worker.post(self, lambda: self._end_plane(plane))

    def on_done(self, stats: TransferStats) -> None:
        self._worker.post(self, lambda: self._finish(stats))

    def on_error(self, error: LynxError) -> None:
        self._worker.post(self, lambda: self.fail(error))

    def _hand_over(self, plane: Plane) -> None:
        pages, self._afloat[plane], self._afloat_bytes[plane] = self._afloat[plane], [], 0
        if pages:
            self._worker.post(self, lambda: self._land(plane, pages))

    # The landing thread.

    def serve(self, load: Load) -> None:
        """Write for one more request, with what is here already."""
        target = _Target(load)
        self.targets.append(target)
        for plane in (Plane.ANCHOR, Plane.RESIDUAL):
            self._write(target, plane, sorted(self._payloads[plane]))
        self._settle(target)

    def abandon(self, request_id: str) -> None:
        """A request that was waiting has gone: stop writing for it, so that its blocks may be freed."""
        for target in self.targets:
            if target.load.request_id == request_id and not target.ended:
                self._end(target, failed=False)

    @property
    def wanted(self) -> bool:
        """Whether a request still waits for pages."""
        return any(not target.ended for target in self.targets)

    def _land(self, plane: Plane, pages: Sequence[tuple[int, memoryview]]) -> None:
        self._payloads[plane].update(pages)
        fresh = [index for index, _ in pages]
        for target in self.targets:
            self._write(target, plane, fresh)

    def _end_plane(self, plane: Plane) -> None:
        self._anchored = self._anchored or plane is Plane.ANCHOR
        self.times[f"{plane.name.lower()}_landed_ns"] = time.monotonic_ns()
        for target in self.targets:
            self._settle(target)

    def _finish(self, stats: TransferStats) -> None:
        for name, plane in (("anchor", stats.anchor), ("residual", stats.residual)):
            if plane.pages:
                self.times[f"{name}_first_ns"] = plane.first_byte_ns
            self.times[f"{name}_end_ns"] = plane.end_ns
            self.times[f"{name}_bytes"] = plane.wire_bytes
        self.times["started_ns"] = stats.started_ns
        self.times["quantise_ns"] = max(stats.anchor.encode_ns, stats.residual.encode_ns)
        self._done = True
        for target in self.targets:
            self._settle(target)

    def fail(self, error: LynxError) -> None:
        """The KV will not come: every request that needs all of it is told so."""
        self.error = self.error or error
        self.times["error"] = str(error)
        for target in self.targets:
            # A draft that cannot start would recompute the prompt; it is left waiting until the front aborts it.
            if not target.ended and target.load.level is Level.FULL:
                self._end(target, failed=True)

    def _settle(self, target: _Target) -> None:
        if target.ended:
            return
        if self._done or (self._anchored and target.load.level is Level.ANCHOR):
            self._end(target, failed=False)
        elif self.error is not None:
            self.fail(self.error)

    def _end(self, target: _Target, failed: bool) -> None:
        target.ended = True
        self._worker.report(target.load.request_id, self.key, failed, dict(self.times))

    def _write(self, target: _Target, plane: Plane, indices: list[int]) -> None:
        """Decode the pages that are complete at the target's level by now and write them into its blocks."""
        if target.ended or not indices or self._codec is None:
            return
        anchors, residuals = self._payloads[Plane.ANCHOR], self._payloads[Plane.RESIDUAL]
        ready: list[tuple[int, tuple[memoryview, ...]]]
        if target.load.level is Level.ANCHOR:
            ready = [(index, (anchors[index],)) for index in indices] if plane is Plane.ANCHOR else []
        elif len(self._codec.planes) == 1:
            ready = [(index, (anchors[index],)) for index in indices]
        else:
            ready = [
                (index, (anchors[index], residuals[index]))
                for index in indices
                if index in anchors and index in residuals
            ]
        load = target.load
        ready = [
            (index, payloads)
            for index, payloads in ready
            if self._refs[index].first_token < load.stop
            and self._refs[index].first_token + self._refs[index].tokens > load.start
        ]
        for tokens in {self._refs[index].tokens for index, _ in ready}:
            self._decode(
                load, [(index, planes) for index, planes in ready if self._refs[index].tokens == tokens]
            )

    def _decode(self, load: Load, pages: list[tuple[int, tuple[memoryview, ...]]]) -> None:
        assert self._codec is not None
        cache = self._worker.cache
        tokens = self._refs[pages[0][0]].tokens
        out = np.empty((len(pages), tokens, cache.layout.channels), dtype=cache.numpy_dtype)
        began_ns = time.monotonic_ns()
        self._codec.decode([payloads for _, payloads in pages], cache.layout.dtype, out)
        runs: dict[tuple[int, int], list[tuple[int, int, int, int]]] = {}
        for place, (index, _) in enumerate(pages):
            ref = self._refs[index]
            first, stop = max(ref.first_token, load.start), min(ref.first_token + tokens, load.stop)
            run = place, first, first - ref.first_token, stop - first
            runs.setdefault((ref.layer, ref.part), []).append(run)
        for (layer, part), of_layer in runs.items():
            cache.write_pages(layer, part, load.blocks, of_layer, out)
        self.times["dequantise_ns"] += time.monotonic_ns() - began_ns


class ConsumerWorker:
    """Fetches and lands KV.

    Args:
        cache: the engine's cache.
        client: started.
    """

    def __init__(self, cache: PagedCache, client: KvClient) -> None:
        self.cache = cache
        self._client = client
        self._arrivals: dict[bytes, _Arrival] = {}
        self._waiting: dict[str, bytes] = {}
        self._received: set[str] = set()
        self._failed: set[str] = set()
        self._transfers: dict[bytes, dict[str, Any]] = {}
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[tuple[_Arrival, Callable[[], None]] | None] = queue.SimpleQueue()
        self._reported = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lynx-landing", daemon=True)
        self._thread.start()

    def begin_step(self, meta: ConsumerMeta) -> None:
        """Before the step's forward pass."""
        TABLE.add(meta.proposals)
        TABLE.retire(meta.retired)
        for load in meta.loads:
            self._begin(load)
        for key in meta.released:
            arrival = self._arrivals.pop(key, None)
            if arrival is not None and arrival.fetch is not None:
                arrival.fetch.cancel()

    def drop(self, finished: set[str]) -> None:
        """Requests ended; those still waiting for KV are reported as soon as nothing is written for them."""
        for request_id in finished:
            key = self._waiting.get(request_id)
            if key is not None:
                self._abandon(key, request_id)

    def idle(self, timeout_s: float) -> None:
        """With nothing to compute, wait for a load to end: the engine would step a thousand times a second."""
        if self._waiting:
            self._reported.wait(timeout_s)

    def take_results(self) -> tuple[set[str], set[str], dict[bytes, dict[str, Any]]]:
        """Requests received (failed ones among them), those that failed, and breakdowns; each once."""
        self._reported.clear()
        with self._lock:
            results = self._received, self._failed, self._transfers
            self._received, self._failed, self._transfers = set(), set(), {}
        for request_id in results[0]:
            self._waiting.pop(request_id, None)
        return results

    def report(self, request_id: str, key: bytes, failed: bool, times: dict[str, Any]) -> None:
        """A load ended; called in the landing thread, when nothing more is written for it."""
        with self._lock:
            self._received.add(request_id)
            self._transfers[key] = times
            if failed:
                self._failed.add(request_id)
        self._reported.set()

    def post(self, arrival: _Arrival, job: Callable[[], None]) -> None:
        """Run ``job`` in the landing thread; from any thread."""
        self._jobs.put((arrival, job))

    def held(self) -> int:
        """Arrivals and waiting requests; 0 at rest."""
        return len(self._arrivals) + len(self._waiting)

    def close(self) -> None:
        """Cancel every fetch and end the threads."""
        self._client.close()
        self._jobs.put(None)
        self._thread.join(timeout=5.0)

    def _begin(self, load: Load) -> None:
        self._waiting[load.request_id] = load.key
        arrival = self._arrivals.get(load.key)
        if arrival is None:
            arrival = self._arrivals[load.key] = _Arrival(load.key, self)
            arrival.fetch = self._client.fetch((load.host, load.port), load.key, arrival, load.timeout_s)
        serve = arrival.serve
        self.post(arrival, lambda: serve(load))

    def _abandon(self, key: bytes, request_id: str) -> None:
        arrival = self._arrivals.get(key)
        if arrival is None:
            return

        def abandon() -> None:
            arrival.abandon(request_id)
            if not arrival.wanted and arrival.fetch is not None:
                arrival.fetch.cancel()

        self.post(arrival, abandon)

    def _run(self) -> None:
        # Where processors are few, a draft that runs goes before a residual that lands.
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LANDING_NICE)
        while (item := self._jobs.get()) is not None:
            arrival, job = item
            try:
                job()
            except LynxError as error:
                arrival.fail(error)
            except Exception as error:
                # A fault in one transfer must not end everyone's landing.
                logger.exception("landing KV failed")
                arrival.fail(TransferLost(f"KV could not be written: {error!r}"))
