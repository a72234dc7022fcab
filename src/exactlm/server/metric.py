"""Prometheus metrics: what the server counts itself, and the engine's statistics read when someone looks.

Nothing here runs for each token. Knows nothing of formats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from exactlm.llm import LLM

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0)

_GAUGES = (
    ("exactlm_queue_length", "Answers that wait for a place in the batch", "num_waiting"),
    ("exactlm_running_sequences", "Answers that have a place in the batch", "num_running"),
    ("exactlm_batch_sequences", "Sequences of the last step", "last_batch_sequences"),
    ("exactlm_batch_tokens", "Tokens of the last step", "last_batch_tokens"),
    ("exactlm_kv_pages", "Pages of the KV cache", "num_pages"),
    ("exactlm_kv_pages_used", "Pages that running answers hold", "num_pages_used"),
    ("exactlm_kv_pages_cached", "Pages kept for prompts that begin alike", "num_pages_cached"),
)
_COUNTERS = (
    ("exactlm_steps", "Steps of the engine", "num_steps"),
    ("exactlm_prompt_tokens", "Prompt tokens, cached ones included", "num_prompt_tokens"),
    ("exactlm_cached_tokens", "Prompt tokens taken from the prefix cache", "num_cached_tokens"),
    ("exactlm_generated_tokens", "Tokens generated", "num_generated_tokens"),
    ("exactlm_preemptions", "Answers put back because pages ran out", "num_preemptions"),
    ("exactlm_drafted_tokens", "Tokens that speculation proposed", "num_drafted_tokens"),
    ("exactlm_accepted_tokens", "Proposed tokens that turned out right", "num_accepted_tokens"),
)


class _EngineCollector(Collector):
    """The engine's own statistics."""

    def __init__(self, llm: LLM, count_failed_steps: Callable[[], int]) -> None:
        self._llm, self._count_failed_steps = llm, count_failed_steps

    def collect(self) -> Iterable[Metric]:
        """All of them, as they stand."""
        stats = self._llm.stats()
        for name, text, field in _GAUGES:
            yield GaugeMetricFamily(name, text, getattr(stats, field))
        for name, text, field in _COUNTERS:
            yield CounterMetricFamily(name, text, getattr(stats, field))
        yield CounterMetricFamily("exactlm_failed_steps", "Steps that failed", self._count_failed_steps())


class Metrics:
    """The metrics of one server."""

    def __init__(self, llm: LLM, name: str, count_failed_steps: Callable[[], int]) -> None:
        self._registry = registry = CollectorRegistry()
        self.requests = Counter(
            "exactlm_requests", "Requests answered, by HTTP status (499: the client left)", ["endpoint", "status"],
            registry=registry,
        )  # fmt: skip
        self.open_requests = Gauge("exactlm_open_requests", "Requests under way", registry=registry)
        self.queue_seconds = Histogram(
            "exactlm_queue_seconds", "From arrival to the first step", registry=registry, buckets=_SECONDS
        )
        self.first_token_seconds = Histogram(
            "exactlm_time_to_first_token_seconds", "From arrival to the first token", registry=registry,
            buckets=_SECONDS,
        )  # fmt: skip
        self.token_seconds = Histogram(
            "exactlm_time_per_token_seconds", "Mean time of the tokens after the first, of each answer",
            registry=registry, buckets=_TOKEN_SECONDS,
        )  # fmt: skip
        self.request_seconds = Histogram(
            "exactlm_request_seconds", "From arrival to the last token", registry=registry, buckets=_SECONDS
        )
        info = Gauge("exactlm_model_info", "The model served", ["model", "fingerprint"], registry=registry)
        info.labels(name, llm.fingerprint).set(1)
        registry.register(_EngineCollector(llm, count_failed_steps))
        ProcessCollector(registry=registry)

    def observe(self, timings: dict[str, float | None], num_tokens: int, num_answers: int) -> None:
        """One finished request: seconds since its arrival, and tokens of all its answers."""
        start, first, done = timings["prefill"], timings["first_token"], timings["done"]
        if start is not None:
            self.queue_seconds.observe(start)
        if first is not None:
            self.first_token_seconds.observe(first)
        if done is not None:
            self.request_seconds.observe(done)
        steps = num_tokens / max(num_answers, 1) - 1
        if first is not None and done is not None and steps > 0:
            self.token_seconds.observe((done - first) / steps)

    def render(self) -> bytes:
        """The text that Prometheus reads."""
        return generate_latest(self._registry)
