"""From recordings to figures: percentiles, rates, stall ratios, medians of runs. Plain dicts, ready for JSON.

Percentiles interpolate linearly between the two nearest values, as numpy's do. Milliseconds end in `_ms`, rates in
`_per_s`; a figure that nothing was recorded for is None.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ui.bench.engine import EngineStep
from ui.bench.phase import Measured
from ui.bench.recorder import Kind, Outcome, Recording

Figures = dict[str, Any]

BARE_STEP = "bare_decode_step_ms"


def percentile(values: Sequence[float], share: float) -> float | None:
    """The value below which `share` (0 to 1) of `values` lie; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def figures_of(measured: Measured) -> Figures:
    """All figures of one phase of one run; of an unfinished one up to its last token."""
    begin, end = window(measured)
    wall_s = max(end - begin, 1e-9)
    of = {kind: [rec for rec in measured.recordings if rec.kind is kind] for kind in Kind}
    failed = [rec for rec in measured.recordings if rec.outcome is Outcome.FAILED]
    return {
        "wall_s": round(wall_s, 3),
        **_chat_figures(of[Kind.CHAT], wall_s),
        **_caption_figures(of[Kind.CAMERA], begin, end),
        **_document_figures(of[Kind.DOCUMENT], end, wall_s),
        "prompt_tokens_per_s": round(sum(_prompts_read(measured.recordings)) / wall_s, 2),
        **_step_figures([step for step in measured.steps if begin <= step.t <= end]),
        "num_failed": len(failed),
        "first_error": failed[0].error if failed else None,
    }


def window(measured: Measured) -> tuple[float, float]:
    """Begin and end of what counts."""
    last = max((rec.t_tokens[-1] for rec in measured.recordings if rec.t_tokens), default=0.0)
    begin = measured.t_begin if measured.t_begin is not None else last
    return begin, max(begin, last) if measured.t_end is None else measured.t_end


def with_ratios(figures: Figures, quiet: Figures | None) -> Figures:
    """`figures` with what they are in units of the quiet phase of the same run."""
    base = (quiet or {}).get("itl_p50_ms")
    return figures | {
        "stall_p99": _ratio(figures["itl_p99_ms"], base),
        "stall_max": _ratio(figures["itl_max_ms"], base),
        "tokens_kept": _ratio(figures["tokens_per_s"], (quiet or {}).get("tokens_per_s")),
    }


def phase_reports(measured: Sequence[Measured]) -> list[dict[str, Any]]:
    """One entry per phase: the median of its whole runs (of what there is, if none is whole), and every run's own."""
    figures = {(m.phase.name, m.run): figures_of(m) for m in measured}
    by_phase: dict[str, list[Measured]] = {}
    for one in measured:
        by_phase.setdefault(one.phase.name, []).append(one)
    reports = []
    for name, runs in by_phase.items():
        own = []
        for one in runs:
            quiet = _quiet_beside(one, measured)
            ratios = with_ratios(figures[name, one.run], quiet and figures[quiet.phase.name, quiet.run])
            own.append({"run": one.run, "partial": not one.is_whole} | ratios)
        whole = [run for run in own if not run["partial"]]
        phase = runs[0].phase
        reports.append(
            {
                "phase": name,
                "chats": phase.chats,
                "cameras": phase.cameras,
                "rate": phase.rate,
                "tokens": phase.tokens,
                "duration_s": phase.duration_s,
                "num_runs": len(whole),
            }
            | median_of(whole or own)
            | {"runs": own}
        )
    return reports


def median_of(runs: Sequence[Figures]) -> Figures:
    """The median of every figure over the runs that have it."""
    medians: Figures = {}
    for name in (name for name in runs[0] if name not in ("run", "partial", "first_error")):
        values = [run[name] for run in runs if run[name] is not None]
        medians[name] = round(statistics.median(values), 4) if values else None
    return medians | {"first_error": next((run["first_error"] for run in runs if run["first_error"]), None)}


def _quiet_beside(one: Measured, measured: Sequence[Measured]) -> Measured | None:
    """The quiet phase of as many chats in the same run."""
    for other in measured:
        if other.run == one.run and other.phase.is_quiet and other.phase.chats == one.phase.chats:
            return other
    return None


def _chat_figures(chats: list[Recording], wall_s: float) -> Figures:
    gaps = [gap for rec in chats for gap in rec.gaps]
    ttfts = _known(rec.ttft for rec in chats)
    num_tokens, num_chunks = sum(rec.num_tokens for rec in chats), sum(len(rec.t_tokens) for rec in chats)
    return {
        "num_gaps": len(gaps),
        "itl_p50_ms": _ms(percentile(gaps, 0.5)),
        "itl_p90_ms": _ms(percentile(gaps, 0.9)),
        "itl_p99_ms": _ms(percentile(gaps, 0.99)),
        "itl_max_ms": _ms(max(gaps, default=None)),
        "ttft_p50_ms": _ms(percentile(ttfts, 0.5)),
        "ttft_p99_ms": _ms(percentile(ttfts, 0.99)),
        "tokens_per_s": round(num_tokens / wall_s, 3) if chats else None,
        "tokens_per_chunk": _ratio(num_tokens, num_chunks),
        "prompt_tokens": percentile(_known(rec.prompt_tokens for rec in chats), 0.5),
        "prefill_tokens_per_s": percentile(
            [rec.prompt_tokens / rec.ttft for rec in chats if rec.prompt_tokens and rec.ttft], 0.5
        ),
    }


def _caption_figures(captions: list[Recording], begin: float, end: float) -> Figures:
    """Captions that were complete within the window."""
    done = [rec for rec in captions if rec.outcome is Outcome.OK and rec.t_end and begin <= rec.t_end <= end]
    ttfts = _known(rec.ttft for rec in done)
    return {
        "num_captions": len(done) if captions else None,
        "captions_per_s": round(len(done) / max(end - begin, 1e-9), 4) if captions else None,
        "caption_ttft_p50_ms": _ms(percentile(ttfts, 0.5)),
        "caption_ttft_p99_ms": _ms(percentile(ttfts, 0.99)),
        "caption_e2e_p50_ms": _ms(percentile(_known(rec.e2e for rec in done), 0.5)),
        "caption_prompt_tokens": percentile(_known(rec.prompt_tokens for rec in done), 0.5),
    }


def _document_figures(documents: list[Recording], end: float, wall_s: float) -> Figures:
    """Of a document that still had no word at the end, the time it had waited counts: at least so long it was."""
    documents = [rec for rec in documents if rec.outcome is not Outcome.FAILED]
    waits = [rec.ttft if rec.ttft is not None else max(0.0, end - rec.t_sent) for rec in documents]
    return {
        "num_documents": len(documents) if documents else None,
        "num_unanswered": sum(rec.ttft is None for rec in documents) if documents else None,
        "document_ttft_p50_ms": _ms(percentile(waits, 0.5)),
        "document_ttft_p99_ms": _ms(percentile(waits, 0.99)),
        "document_tokens_per_s": round(sum(rec.num_tokens for rec in documents) / wall_s, 3) if documents else None,
        "document_prompt_tokens": percentile(_known(rec.prompt_tokens for rec in documents), 0.5),
    }


def _step_figures(steps: list[EngineStep]) -> Figures:
    """What our engine says of its own steps."""

    def elapsed(chosen: Callable[[EngineStep], bool]) -> list[float]:
        return [step.elapsed_ms for step in steps if chosen(step)]

    sliced = elapsed(lambda step: step.encoder_slices > 0)
    return {
        "num_steps": len(steps) if steps else None,
        "step_p50_ms": percentile(elapsed(lambda step: True), 0.5),
        "step_p99_ms": percentile(elapsed(lambda step: True), 0.99),
        BARE_STEP: percentile(elapsed(lambda step: step.is_bare_decode), 0.5),
        "slice_step_p50_ms": percentile(sliced, 0.5),
        "slice_step_max_ms": max(sliced, default=None),
        "num_slices": sum(step.encoder_slices for step in steps) if steps else None,
    }


def _prompts_read(recordings: Iterable[Recording]) -> list[int]:
    """Lengths of the prompts that were read to their end: they have a first token."""
    return [rec.prompt_tokens for rec in recordings if rec.prompt_tokens and rec.t_tokens]


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(1e3 * seconds, 3)


def _ratio(value: float | None, base: float | None) -> float | None:
    return round(value / base, 4) if value is not None and base else None
