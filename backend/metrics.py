"""What the engine measures of itself: Prometheus metrics under vLLM's names, and a ring of recent steps.

Written by the engine thread alone and read by any: plain numbers, which become metrics only when somebody asks, because
what is counted is counted at every token. Owns its registry, so that two engines in one process (tests) do not meet.
Knows nothing of HTTP.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from backend.histogram import Histogram
from backend.step_ring import StepRecord, StepRing, kv_usage
from backend.types.request import RequestClass
from backend.types.result import FinishReason
from backend.types.scheduler import SchedulerStats

_FAST_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5, 5, 10)
_SLOW_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256)
_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


@dataclass(slots=True)
class RequestTimes:
    """When things happened to one request, seconds of the monotonic clock; None until they have."""

    request_class: RequestClass
    num_prompt_tokens: int
    t_arrived: float
    t_scheduled: float | None = None
    t_first_token: float | None = None
    t_last_token: float | None = None
    num_output_tokens: int = 0


_HISTOGRAMS = {
    "time_to_first_token_seconds": ("Arrival to first token.", _SLOW_S),
    "inter_token_latency_seconds": ("Token to token.", _FAST_S),
    "request_time_per_output_token_seconds": ("Mean time per token after the first.", _FAST_S),
    "e2e_request_latency_seconds": ("Arrival to end.", _SLOW_S),
    "request_queue_time_seconds": ("Arrival to first step.", _SLOW_S),
    "request_prefill_time_seconds": ("First step to first token.", _SLOW_S),
    "request_decode_time_seconds": ("First token to last.", _SLOW_S),
    "request_inference_time_seconds": ("First step to last token.", _SLOW_S),
}
"""Histograms by request class: what each is of, and its bounds."""


class _Latencies:
    """The histograms of one request class."""

    def __init__(self) -> None:
        self.by_name = {name: Histogram(bounds) for name, (_, bounds) in _HISTOGRAMS.items()}
        self.ttft = self.by_name["time_to_first_token_seconds"]
        self.itl = self.by_name["inter_token_latency_seconds"]
        self.tpot = self.by_name["request_time_per_output_token_seconds"]
        self.e2e = self.by_name["e2e_request_latency_seconds"]
        self.queue = self.by_name["request_queue_time_seconds"]
        self.prefill = self.by_name["request_prefill_time_seconds"]
        self.decode = self.by_name["request_decode_time_seconds"]
        self.inference = self.by_name["request_inference_time_seconds"]


class EngineMetrics:
    """The engine's Prometheus metrics (prefix `watchword_`) and its ring of steps."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.steps = StepRing()
        self._stats = SchedulerStats(0, 0, 0, 0, 0, 0, 0, 0, 0)
        self._token_budget = 0
        self._num_prompt_tokens = self._num_generation_tokens = 0
        self._num_draft_tokens = self._num_accepted_tokens = 0
        self._num_decode_tokens = self._num_prefill_tokens = self._num_encoder_slices = 0
        self._num_ended: Counter[FinishReason] = Counter()
        self._latencies: defaultdict[RequestClass, _Latencies] = defaultdict(_Latencies)
        self._iteration_tokens = Histogram(_TOKENS)
        self.registry.register(self)

    def observe_stats(self, stats: SchedulerStats) -> None:
        """Take over a reading of the scheduler."""
        self._stats = stats

    def observe_token_budget(self, num_tokens: int) -> None:
        """The budget that holds from now on."""
        self._token_budget = num_tokens

    def observe_step(self, record: StepRecord) -> None:
        """One finished step."""
        self.steps.append(record)
        self._iteration_tokens.observe(record.decode_tokens + record.prefill_tokens)
        self._num_decode_tokens += record.decode_tokens
        self._num_prefill_tokens += record.prefill_tokens
        self._num_encoder_slices += record.encoder_slices
        self._num_draft_tokens += record.draft_tokens
        self._num_accepted_tokens += record.accepted_tokens

    def observe_token(self, times: RequestTimes, now: float) -> None:
        """One token of one request; stamps `times`."""
        last = times.t_last_token
        if last is None:
            times.t_first_token = now
            self._latencies[times.request_class].ttft.observe(now - times.t_arrived)
            self._num_prompt_tokens += times.num_prompt_tokens
        elif last != now:
            # Tokens of one step come together, and were waited for once.
            self._latencies[times.request_class].itl.observe(now - last)
        times.t_last_token = now
        times.num_output_tokens += 1
        self._num_generation_tokens += 1

    def observe_end(self, times: RequestTimes, reason: FinishReason, now: float) -> None:
        """One request's end, whatever the reason; latencies count only answers that came to their own end."""
        self._num_ended[reason] += 1
        if reason not in (FinishReason.STOP, FinishReason.LENGTH):
            return
        latencies = self._latencies[times.request_class]
        latencies.e2e.observe(now - times.t_arrived)
        if times.t_scheduled is not None:
            latencies.queue.observe(times.t_scheduled - times.t_arrived)
            latencies.inference.observe(now - times.t_scheduled)
            if times.t_first_token is not None:
                latencies.prefill.observe(times.t_first_token - times.t_scheduled)
                latencies.decode.observe(now - times.t_first_token)
        if times.num_output_tokens > 1 and times.t_first_token is not None and times.t_last_token is not None:
            latencies.tpot.observe((times.t_last_token - times.t_first_token) / (times.num_output_tokens - 1))

    def collect(self) -> Iterator[Metric]:
        """The metrics as they stand: `prometheus_client` asks for them."""
        yield from self._gauges()
        yield from self._counters()
        yield from self._histograms()

    def _gauges(self) -> Iterator[Metric]:
        stats = self._stats
        encoder_usage = stats.encoder_embeds_used / max(1, stats.encoder_embeds_total)
        for name, text, value in (
            ("num_requests_running", "Requests in a step.", stats.num_running),
            ("num_requests_waiting", "Requests not admitted yet.", stats.num_waiting),
            ("kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.", kv_usage(stats)),
            ("encoder_cache_usage_perc", "Share of the encoder cache in use, 0 to 1.", encoder_usage),
            ("max_num_batched_tokens", "Token budget of one step.", self._token_budget),
        ):
            yield GaugeMetricFamily(f"watchword_{name}", text, value)

    def _counters(self) -> Iterator[Metric]:
        stats = self._stats
        for name, text, value in (
            ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", stats.prefix_queries_total),
            ("prefix_cache_hits", "Prompt tokens found in the prefix cache.", stats.prefix_hits_total),
            ("num_preemptions", "Running requests put back to be recomputed.", stats.num_preemptions_total),
            ("prompt_tokens", "Prompt tokens of requests that began to be answered.", self._num_prompt_tokens),
            ("generation_tokens", "Tokens generated.", self._num_generation_tokens),
            ("spec_decode_num_draft_tokens", "Tokens guessed.", self._num_draft_tokens),
            ("spec_decode_num_accepted_tokens", "Guessed tokens that came true.", self._num_accepted_tokens),
            ("encoder_slices", "Pieces of vision encoding computed.", self._num_encoder_slices),
        ):
            yield CounterMetricFamily(f"watchword_{name}", text, value)
        kinds = CounterMetricFamily(
            "watchword_step_tokens", "Tokens computed, by what they belong to.", labels=("kind",)
        )
        kinds.add_metric(("decode",), self._num_decode_tokens)
        kinds.add_metric(("prefill",), self._num_prefill_tokens)
        yield kinds
        ended = CounterMetricFamily(
            "watchword_request_success", "Requests ended, by reason.", labels=("finished_reason",)
        )
        for reason, number in list(self._num_ended.items()):
            ended.add_metric((reason.value,), number)
        yield ended

    def _histograms(self) -> Iterator[Metric]:
        classes = list(self._latencies.items())
        for name, (text, _) in _HISTOGRAMS.items():
            family = HistogramMetricFamily(f"watchword_{name}", text, labels=("request_class",))
            for request_class, latencies in classes:
                buckets, total = latencies.by_name[name].read()
                family.add_metric((request_class.value,), buckets, total)
            yield family
        buckets, total = self._iteration_tokens.read()
        yield HistogramMetricFamily("watchword_iteration_tokens_total", "Tokens of one step.", buckets, total)

    def render(self) -> bytes:
        """The Prometheus text format."""
        return generate_latest(self.registry)
