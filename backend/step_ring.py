"""The ring of recent steps, one record each: what the engine strip shows. Knows nothing of Prometheus or HTTP."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

from backend.types.result import StepResult
from backend.types.scheduler import SchedulerStats
from backend.types.step import Step


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


def record_of(step: Step, result: StepResult, stats: SchedulerStats, t_begin: float, t_end: float) -> StepRecord:
    """The record of a step that ran from `t_begin` to `t_end`, and left the scheduler as `stats` says."""
    decode_tokens = prefill_tokens = draft_tokens = 0
    # One pass for all sums, where the Step's own properties would each take one.
    for chunk in step.chunks:
        if chunk.is_decode:
            decode_tokens += 1 + chunk.num_drafts
            draft_tokens += chunk.num_drafts
        else:
            prefill_tokens += chunk.num_tokens
    return StepRecord(
        step_id=step.step_id,
        t_mono=t_begin,
        elapsed_ms=round((t_end - t_begin) * 1e3, 3),
        decode_tokens=decode_tokens,
        prefill_tokens=prefill_tokens,
        encoder_slices=step.num_encoder_slices if step.encodes else 0,
        num_running=stats.num_running,
        num_waiting=stats.num_waiting,
        kv_usage=kv_usage(stats),
        draft_tokens=draft_tokens,
        accepted_tokens=result.num_accepted_tokens if draft_tokens else 0,
    )


def kv_usage(stats: SchedulerStats) -> float:
    """Share of KV blocks in use, 0 to 1."""
    return stats.num_blocks_used / max(1, stats.num_blocks_total)
