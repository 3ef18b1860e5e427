"""``LynxConnector``: the one class that vLLM instantiates, in its scheduler and in its worker.

It translates vLLM's calls into those of one of four halves and holds no logic of its own.
"""

import hashlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)

from lynx import codec as codecs
from lynx.errors import BadInput
from lynx.serve.host import end_with_server
from lynx.transport import KvClient, KvServer, TcpNetwork, TcpOptions
from lynx.vllm.cache import PagedCache
from lynx.vllm.consumer import ConsumerMeta, ConsumerScheduler, ConsumerWorker
from lynx.vllm.producer import ProducerMeta, ProducerScheduler, ProducerWorker
from lynx.vllm.queries import QueryCatcher

SWITCH_INTERVAL_S = 0.0005
"""Longest turn of a thread at the interpreter while another waits."""

IDLE_STEP_S = 0.01
"""How long a step that computes nothing waits for KV to move; new requests are delayed by no more than this."""

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput


@dataclass(frozen=True, slots=True)
class StepMeta(KVConnectorMetadata):
    """What the scheduler half tells the worker half with a step."""

    body: ProducerMeta | ConsumerMeta


@dataclass(frozen=True, slots=True)
class Endpoint(KVConnectorHandshakeMetadata):
    """Where a producer's worker listens."""

    address: str


@dataclass(frozen=True, slots=True)
class Transfers(KVConnectorWorkerMetadata):
    """Breakdowns of loads that ended, by offer key."""

    by_key: dict[bytes, dict[str, Any]]

    def aggregate(self, other: KVConnectorWorkerMetadata) -> "Transfers":
        assert isinstance(other, Transfers)
        return Transfers({**self.by_key, **other.by_key})


class LynxConnector(KVConnectorBase_V1, SupportsHMA):
    """vLLM's view of Lynx.

    Raises:
        BadInput: the engine is set up in a way that Lynx does not handle.
    """

    def __init__(
        self, vllm_config: "VllmConfig", role: KVConnectorRole, kv_cache_config: "KVCacheConfig"
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        end_with_server()
        groups = len(kv_cache_config.kv_cache_groups)
        if groups != 1:
            raise BadInput(
                f"model has {groups} KV cache groups; Lynx handles models with one (no sliding window)"
            )
        parallel = vllm_config.parallel_config
        if parallel.world_size != 1:
            raise BadInput(
                f"engine has {parallel.world_size} workers; Lynx handles one (no tensor parallelism)"
            )
        self._settings: dict[str, Any] = dict(self._kv_transfer_config.kv_connector_extra_config)
        self._scheduler: ProducerScheduler | ConsumerScheduler | None = None
        self._worker: ProducerWorker | ConsumerWorker | None = None
        self._address = ""
        self._ended_transfers: dict[bytes, dict[str, Any]] = {}
        if role is KVConnectorRole.SCHEDULER:
            block_tokens = vllm_config.cache_config.block_size
            produces = self._kv_transfer_config.is_kv_producer
            self._scheduler = (
                ProducerScheduler(block_tokens)
                if produces
                else ConsumerScheduler(self._settings["timeout_s"])
            )

    # ---- in the scheduler ----------------------------------------------------------------------------------

    def set_xfer_handshake_metadata(self, metadata: dict[int, KVConnectorHandshakeMetadata]) -> None:
        endpoint = metadata.get(0)
        if isinstance(self._scheduler, ProducerScheduler) and isinstance(endpoint, Endpoint):
            self._scheduler.endpoint = endpoint.address

    def on_new_request(self, request: Any) -> None:
        assert self._scheduler is not None
        self._scheduler.add(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        if isinstance(self._scheduler, ConsumerScheduler):
            return self._scheduler.claim(request, num_computed_tokens)
        return 0, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if isinstance(self._scheduler, ConsumerScheduler):
            self._scheduler.allocate(request, list(blocks.get_block_ids()[0]), num_external_tokens)

    def build_connector_meta(self, scheduler_output: "SchedulerOutput") -> StepMeta:
        match self._scheduler:
            case ProducerScheduler() as scheduler:
                return StepMeta(scheduler.build_meta(scheduler_output.num_scheduled_tokens, self._block_ids))
            case ConsumerScheduler() as scheduler:
                return StepMeta(scheduler.build_meta(scheduler_output))
        raise AssertionError("build_connector_meta is the scheduler's to call")

    def update_connector_output(self, connector_output: "KVConnectorOutput") -> None:
        if isinstance(self._scheduler, ConsumerScheduler):
            meta = connector_output.kv_connector_worker_meta
            transfers = meta.by_key if isinstance(meta, Transfers) else {}
            self._scheduler.received(set(connector_output.finished_recving or ()), transfers)

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        match self._scheduler:
            case ProducerScheduler() as scheduler:
                return scheduler.finish(request, list(block_ids[0]))
            case ConsumerScheduler() as scheduler:
                return False, scheduler.finish(request)
        raise AssertionError("request_finished is the scheduler's to call")

    def _block_ids(self, request_id: str) -> list[int]:
        assert self._kv_cache_manager is not None
        return list(self._kv_cache_manager.get_block_ids(request_id)[0])

    # ---- in the worker -------------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        context = self._vllm_config.compilation_config.static_forward_context
        layers = [context[name] for name in kv_caches]
        cache = PagedCache(layers, list(kv_caches.values()))
        for tensor in kv_caches.values():
            tensor.zero_()  # touches every page of memory now: faults would fall on the first transfers
        fingerprint = cache.layout.fingerprint(model_identity(Path(self._vllm_config.model_config.model)))
        settings = self._settings
        codecs.warm_up()  # else the first request would wait for a compiler
        # The engine and the threads that move KV take turns at the interpreter; 5 ms is as long as a page takes.
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        network = TcpNetwork(
            TcpOptions(anchor_dscp=settings["anchor_dscp"], residual_dscp=settings["residual_dscp"])
        )
        if not self._kv_transfer_config.is_kv_producer:
            client = KvClient(fingerprint, network=network)
            client.start()
            self._worker = ConsumerWorker(cache, client)
            return
        server = KvServer(
            settings["kv_host"],
            settings["kv_port"],
            fingerprint=fingerprint,
            policy=settings["policy"],
            rate_bps=settings["rate_bps"],
            hold_s=settings["hold_s"],
            network=network,
        )
        host, port = server.start()
        self._address = f"{host}:{port}"
        catcher = QueryCatcher(layers, cache.block_tokens)
        codec = codecs.by_name(settings["codec"])
        self._worker = ProducerWorker(cache, catcher, server, codec, settings["early_share"])

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        return Endpoint(self._address) if self._address else None

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        match self._worker:
            case ProducerWorker() as worker:
                worker.drop(finished_req_ids)
                return KVConnectorTransferResults(finished_sending=worker.take_encoded())
            case ConsumerWorker() as worker:
                worker.drop(finished_req_ids)
                received, failed, self._ended_transfers = worker.take_results()
                return KVConnectorTransferResults(finished_recving=received, failed_recving=failed)
        return KVConnectorTransferResults()

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        return Transfers(self._ended_transfers) if self._ended_transfers else None

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        super().bind_connector_metadata(connector_metadata)
        assert isinstance(connector_metadata, StepMeta)
        match self._worker, connector_metadata.body:
            case ProducerWorker() as producer, ProducerMeta() as body:
                producer.begin_step(body)
            case ConsumerWorker() as consumer, ConsumerMeta() as body:
                consumer.begin_step(body)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Loads begin with the step's metadata and run by themselves; a step without work waits for them."""
        if self._worker is not None and forward_context.attn_metadata is None:
            self._worker.idle(IDLE_STEP_S)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """A request runs only once its load has ended."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """A prompt is read when it has ended, not layer by layer."""

    def wait_for_save(self) -> None:
        """Blocks being read are kept by the scheduler; nothing to wait for."""

    def shutdown(self) -> None:
        if self._worker is not None:
            self._worker.close()


def model_identity(model: Path) -> str:
    """What two instances must share to exchange KV: digest of the model's configuration and weight sizes."""
    digest = hashlib.blake2b(digest_size=16)
    config = model / "config.json"
    if config.is_file():
        digest.update(config.read_bytes())
        for weights in sorted(model.glob("*.safetensors")):
            digest.update(f"{weights.name}:{weights.stat().st_size}".encode())
    else:
        digest.update(str(model).encode())
    return digest.hexdigest()
