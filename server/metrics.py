"""Prometheus metrics of one application: its own registry, labels from closed sets only.

The hot path (one call per streamed delta) touches pre-bound children; engine figures are read from the engine's
own snapshot when /metrics is scraped.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.client import EngineClient, EngineError
from engine.messages import SchedulerStats

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_LATENCY = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_TOKEN_GAP = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2.5)
_STATUS = ("2xx", "3xx", "4xx", "5xx", "disconnect")

_GAUGES: tuple[tuple[str, str, str], ...] = (
    ("running", "requests_running", "Requests in the running batch."),
    ("waiting", "requests_waiting", "Requests in the engine's queue."),
    ("free_pages", "kv_free_pages", "KV pages that nobody holds."),
    ("cached_pages", "kv_cached_pages", "KV pages that only the prefix cache holds."),
    ("total_pages", "kv_total_pages", "KV pages in all."),
    ("page_size", "kv_page_size_tokens", "Tokens of one KV page."),
    ("grammar_rows", "grammar_rows", "Running requests under a grammar."),
)
_COUNTERS: tuple[tuple[str, str, str], ...] = (
    ("step", "engine_steps", "Steps of the scheduler."),
    ("preemptions", "preemptions", "Requests that gave their KV pages back and started again."),
    ("cache_query_tokens", "prefix_cache_query_tokens", "Prompt tokens looked up in the prefix cache."),
    ("cache_hit_tokens", "prefix_cache_hit_tokens", "Prompt tokens found in the prefix cache."),
    ("draft_tokens", "draft_tokens", "Tokens proposed by speculation."),
    ("accepted_tokens", "accepted_draft_tokens", "Proposed tokens that the model confirmed."),
    ("generated_tokens", "engine_generated_tokens", "Tokens of answers, sampled, drafted and forced."),
    ("forced_tokens", "forced_tokens", "Tokens that a grammar left no choice about: no forward pass of their own."),
    ("prefill_tokens", "engine_prefill_tokens", "Prompt tokens the engine computed."),
    ("leaked_pages", "kv_leaked_pages", "KV pages found without an owner and taken back."),
)


class _EngineCollector(Collector):
    """The last engine snapshot as metric families."""

    def __init__(self) -> None:
        self.stats = SchedulerStats()
        self.ready = False

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily("callgate_engine_ready", "1 while the engine takes requests.", value=int(self.ready))
        for attribute, name, text in _GAUGES:
            yield GaugeMetricFamily(f"callgate_{name}", text, value=getattr(self.stats, attribute))
        for attribute, name, text in _COUNTERS:
            yield CounterMetricFamily(f"callgate_{name}", text, value=getattr(self.stats, attribute))
        total = self.stats.total_pages
        used = (total - self.stats.free_pages - self.stats.cached_pages) / total if total else 0.0
        yield GaugeMetricFamily("callgate_kv_usage", "Share of KV pages that running requests hold.", value=used)


class Metrics:
    """What the HTTP side counts. One instance per application."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._engine = _EngineCollector()
        self.registry.register(self._engine)
        self._requests = Counter(
            "callgate_http_requests", "HTTP requests.", ["route", "status"], registry=self.registry
        )
        self._seconds = Histogram(
            "callgate_http_request_seconds", "Time of a request.", ["route"], buckets=_LATENCY, registry=self.registry
        )
        self._in_flight = Gauge("callgate_http_requests_in_flight", "Requests being answered.", registry=self.registry)
        self._tokens = Counter("callgate_tokens", "Tokens of finished requests.", ["kind"], registry=self.registry)
        self.prompt_tokens = self._tokens.labels("prompt")
        self.cached_tokens = self._tokens.labels("cached_prompt")
        self.completion_tokens = self._tokens.labels("completion")
        self.time_to_first_token = Histogram(
            "callgate_time_to_first_token_seconds",
            "From request to first token.",
            buckets=_LATENCY,
            registry=self.registry,
        )
        self.inter_token_latency = Histogram(
            "callgate_inter_token_latency_seconds",
            "Between two deltas of a choice, per token.",
            buckets=_TOKEN_GAP,
            registry=self.registry,
        )
        self._finished = Counter(
            "callgate_generations_finished", "Choices by finish reason.", ["reason"], registry=self.registry
        )
        self._tool_calls = Counter(
            "callgate_tool_calls", "Tool calls found in model text.", ["how"], registry=self.registry
        )
        self.tool_calls_parsed = self._tool_calls.labels("parsed")
        self.tool_calls_rescued = self._tool_calls.labels("rescued")
        self.tool_calls_cut = self._tool_calls.labels("cut")

    @contextmanager
    def in_flight(self) -> Iterator[None]:
        self._in_flight.inc()
        try:
            yield
        finally:
            self._in_flight.dec()

    def request_done(self, route: str, status: int, seconds: float) -> None:
        """``route`` is a route template or "other"; ``status`` 499 or 0 is a client that left."""
        label = _STATUS[status // 100 - 2] if 200 <= status < 600 and status != 499 else "disconnect"
        self._requests.labels(route, label).inc()
        self._seconds.labels(route).observe(seconds)

    def tokens_came(self, count: int, last: float, started: float) -> float:
        """``count`` tokens of a choice came now; ``last`` is when the ones before came, 0 for none. Returns now."""
        now = time.monotonic()
        if last:
            self.inter_token_latency.observe((now - last) / count)
        else:
            self.time_to_first_token.observe(now - started)
        return now

    def finished(self, reason: str) -> None:
        """``reason`` is one of the API's finish reasons, "abort" or "error"."""
        self._finished.labels(reason).inc()

    async def render(self, engine: EngineClient) -> bytes:
        """The exposition text. An engine that does not answer within a second leaves the last snapshot."""
        self._engine.ready = engine.state == "ready"
        if self._engine.ready:
            try:
                self._engine.stats = await asyncio.wait_for(engine.stats(), 1.0)
            except (TimeoutError, EngineError):
                self._engine.ready = False
        return generate_latest(self.registry)
