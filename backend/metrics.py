"""What the engine measures of itself: Prometheus metrics under vLLM's names, and a ring of recent steps.

Written by the engine thread alone and read by any. Owns its registry, so that two engines in one process (tests) do
not meet. Knows nothing of HTTP.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from backend.types import FinishReason, RequestClass, SchedulerStats

_FAST_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5, 5, 10)
_SLOW_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256)
_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One finished step, as the engine strip shows it. `t_mono` is its start, seconds of this process's clock.

    `draft_tokens` are guesses, counted among `decode_tokens`; `accepted_tokens` those that came true.
    """

    step_id: int
    t_mono: float
    elapsed_ms: float
    decode_tokens: int
    prefill_tokens: int
    encoder_slices: int
    num_running: int
    num_waiting: int
    kv_usage: float
    draft_tokens: int = 0
    accepted_tokens: int = 0


class StepRing:
    """The last `size` steps. Thread-safe."""

    def __init__(self, size: int = 4096) -> None:
        self._records: deque[StepRecord] = deque(maxlen=size)
        self._lock = threading.Lock()

    def append(self, record: StepRecord) -> None:
        """Add one step; the oldest falls out."""
        with self._lock:
            self._records.append(record)

    def since(self, step_id: int | None, limit: int) -> tuple[StepRecord, ...]:
        """Up to `limit` steps, oldest first: those right after `step_id`, or the latest when it is None."""
        with self._lock:
            records = list(self._records)
        if step_id is None:
            return tuple(records[-limit:]) if limit else ()
        return tuple([r for r in records if r.step_id > step_id][:limit])


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


class _ByClass(dict[RequestClass, Histogram]):
    """A histogram's children, looked up once: finding one by its label takes longer than counting in it."""

    def __init__(self, whole: Histogram) -> None:
        super().__init__()
        self._whole = whole

    def __missing__(self, request_class: RequestClass) -> Histogram:
        child = self[request_class] = self._whole.labels(request_class.value)
        return child


class EngineMetrics:
    """The engine's Prometheus metrics (prefix `watchword_`) and its ring of steps."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.steps = StepRing()
        self._last = SchedulerStats(0, 0, 0, 0, 0, 0, 0, 0, 0)
        self._make_gauges()
        self._make_counters()
        self._make_histograms()

    def _make_gauges(self) -> None:
        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"watchword_{name}", text, registry=self.registry)

        self._running = gauge("num_requests_running", "Requests in a step.")
        self._waiting = gauge("num_requests_waiting", "Requests not admitted yet.")
        self._kv_usage = gauge("kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.")
        self._encoder_usage = gauge("encoder_cache_usage_perc", "Share of the encoder cache in use, 0 to 1.")
        self._token_budget = gauge("max_num_batched_tokens", "Token budget of one step.")

    def _make_counters(self) -> None:
        def counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
            return Counter(f"watchword_{name}", text, labels, registry=self.registry)

        self._prefix_queries = counter("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.")
        self._prefix_hits = counter("prefix_cache_hits", "Prompt tokens found in the prefix cache.")
        self._preemptions = counter("num_preemptions", "Running requests put back to be recomputed.")
        self._prompt_tokens = counter("prompt_tokens", "Prompt tokens of requests that began to be answered.")
        self._generation_tokens = counter("generation_tokens", "Tokens generated.")
        self._draft_tokens = counter("spec_decode_num_draft_tokens", "Tokens guessed.")
        self._accepted_tokens = counter("spec_decode_num_accepted_tokens", "Guessed tokens that came true.")
        self._encoder_slices = counter("encoder_slices", "Pieces of vision encoding computed.")
        step_tokens = counter("step_tokens", "Tokens computed, by what they belong to.", ("kind",))
        self._decode_tokens, self._prefill_tokens = step_tokens.labels("decode"), step_tokens.labels("prefill")
        self._success = counter("request_success", "Requests ended, by reason.", ("finished_reason",))

    def _make_histograms(self) -> None:
        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> _ByClass:
            return _ByClass(
                Histogram(f"watchword_{name}", text, ("request_class",), registry=self.registry, buckets=buckets)
            )

        self._ttft = histogram("time_to_first_token_seconds", "Arrival to first token.", _SLOW_S)
        self._itl = histogram("inter_token_latency_seconds", "Token to token.", _FAST_S)
        self._tpot = histogram("request_time_per_output_token_seconds", "Mean time per token after the first.", _FAST_S)
        self._e2e = histogram("e2e_request_latency_seconds", "Arrival to end.", _SLOW_S)
        self._queue = histogram("request_queue_time_seconds", "Arrival to first step.", _SLOW_S)
        self._prefill = histogram("request_prefill_time_seconds", "First step to first token.", _SLOW_S)
        self._decode = histogram("request_decode_time_seconds", "First token to last.", _SLOW_S)
        self._inference = histogram("request_inference_time_seconds", "First step to last token.", _SLOW_S)
        self._iteration_tokens = Histogram(
            "watchword_iteration_tokens_total", "Tokens of one step.", registry=self.registry, buckets=_TOKENS
        )

    def observe_stats(self, stats: SchedulerStats) -> None:
        """Take over a reading of the scheduler."""
        self._running.set(stats.num_running)
        self._waiting.set(stats.num_waiting)
        self._kv_usage.set(kv_usage(stats))
        self._encoder_usage.set(stats.encoder_embeds_used / max(1, stats.encoder_embeds_total))
        self._prefix_queries.inc(stats.prefix_queries_total - self._last.prefix_queries_total)
        self._prefix_hits.inc(stats.prefix_hits_total - self._last.prefix_hits_total)
        self._preemptions.inc(stats.num_preemptions_total - self._last.num_preemptions_total)
        self._last = stats

    def observe_token_budget(self, num_tokens: int) -> None:
        """The budget that holds from now on."""
        self._token_budget.set(num_tokens)

    def observe_step(self, record: StepRecord) -> None:
        """One finished step."""
        self.steps.append(record)
        self._iteration_tokens.observe(record.decode_tokens + record.prefill_tokens)
        self._decode_tokens.inc(record.decode_tokens)
        self._prefill_tokens.inc(record.prefill_tokens)
        self._encoder_slices.inc(record.encoder_slices)
        self._draft_tokens.inc(record.draft_tokens)
        self._accepted_tokens.inc(record.accepted_tokens)

    def observe_token(self, times: RequestTimes, now: float) -> None:
        """One token of one request; stamps `times`."""
        label = times.request_class
        if times.t_first_token is None:
            times.t_first_token = now
            self._ttft[label].observe(now - times.t_arrived)
            self._prompt_tokens.inc(times.num_prompt_tokens)
        elif times.t_last_token is not None and times.t_last_token != now:
            # Tokens of one step come together, and were waited for once.
            self._itl[label].observe(now - times.t_last_token)
        times.t_last_token = now
        times.num_output_tokens += 1
        self._generation_tokens.inc()

    def observe_end(self, times: RequestTimes, reason: FinishReason, now: float) -> None:
        """One request's end, whatever the reason; latencies count only answers that came to their own end."""
        self._success.labels(reason.value).inc()
        if reason not in (FinishReason.STOP, FinishReason.LENGTH):
            return
        label = times.request_class
        self._e2e[label].observe(now - times.t_arrived)
        if times.t_scheduled is not None:
            self._queue[label].observe(times.t_scheduled - times.t_arrived)
            self._inference[label].observe(now - times.t_scheduled)
            if times.t_first_token is not None:
                self._prefill[label].observe(times.t_first_token - times.t_scheduled)
                self._decode[label].observe(now - times.t_first_token)
        if times.num_output_tokens > 1 and times.t_first_token is not None and times.t_last_token is not None:
            self._tpot[label].observe((times.t_last_token - times.t_first_token) / (times.num_output_tokens - 1))

    def render(self) -> bytes:
        """The Prometheus text format."""
        return generate_latest(self.registry)


def kv_usage(stats: SchedulerStats) -> float:
    """Share of KV blocks in use, 0 to 1."""
    return stats.num_blocks_used / max(1, stats.num_blocks_total)
