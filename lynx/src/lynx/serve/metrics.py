"""Prometheus metrics of the router; one registry per router, so that two in a process do not mix."""

from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from lynx.serve.pool import Instance

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class RouterMetrics:
    """Counts of requests, times of their stages, bytes of their planes."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "lynx_requests", "Requests answered", ["way", "status"], registry=self.registry
        )
        self._retries = Counter("lynx_retries", "Attempts after a lost instance", registry=self.registry)
        self._ttft = Histogram(
            "lynx_ttft_seconds", "Request to first byte", registry=self.registry, buckets=_SECONDS
        )
        self._stages = Histogram(
            "lynx_stage_seconds", "Time of one stage", ["stage"], registry=self.registry, buckets=_SECONDS
        )
        self._bytes = Counter("lynx_wire_bytes", "Bytes on the wire", ["plane"], registry=self.registry)
        self._drafted = Counter("lynx_drafted_tokens", "Tokens drafted", registry=self.registry)
        self._accepted = Counter("lynx_accepted_tokens", "Drafted tokens accepted", registry=self.registry)
        self._up = Gauge("lynx_instance_up", "1 when in use", ["role", "url"], registry=self.registry)
        self._load = Gauge(
            "lynx_instance_requests", "Requests in flight", ["role", "url"], registry=self.registry
        )

    def answered(self, way: str, status: int) -> None:
        self._requests.labels(way, str(status)).inc()

    def retried(self) -> None:
        self._retries.inc()

    def first_byte(self, seconds: float) -> None:
        self._ttft.observe(seconds)

    def prefilled(self, seconds: float) -> None:
        self._stages.labels("prefill").observe(seconds)

    def breakdown(self, record: Mapping[str, Any]) -> None:
        """Take in ``lynx.serve.breakdown.stages`` of one request."""
        for name, value in record.items():
            if name.endswith("_s") and isinstance(value, int | float):
                self._stages.labels(name.removesuffix("_s")).observe(value)
        for plane, count in (record.get("bytes") or {}).items():
            self._bytes.labels(plane).inc(count)
        self._drafted.inc(record.get("drafted") or 0)
        self._accepted.inc(record.get("accepted") or 0)

    def page(self, instances: list[Instance]) -> bytes:
        """The text that Prometheus scrapes."""
        for instance in instances:
            self._up.labels(instance.role, instance.url).set(instance.up)
            self._load.labels(instance.role, instance.url).set(instance.load)
        page: bytes = generate_latest(self.registry)
        return page
