"""Which token budget suits a machine: one load at every budget, Sarathi-Serve's rule for what a chat may notice.

The rule: the 99th percentile of inter-token latency stays within 5 (strict) or 25 (relaxed) bare decode steps. Among
the budgets that keep it the one with the shortest median wait for a document's first token is recommended. Knows
nothing of HTTP and output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ui.bench.bench import Bench
from ui.bench.engine import Engine
from ui.bench.lengths import MIXES
from ui.bench.phase import Measured
from ui.bench.report import BARE_STEP, Figures, figures_of, median_of
from ui.bench.scenario import Load, Phase
from ui.errors import UsageError

SLO_STEPS = {"strict": 5.0, "relaxed": 25.0}
AS_GOOD = 1.05
"""First-token times this close are alike, and the smaller budget is the better one."""
OVERLOADED = 0.25
"""With more of the documents than this unanswered, a budget does not keep up with the load."""


@dataclass(frozen=True, slots=True)
class Point:
    """What one budget gave, as medians of its runs."""

    budget: int
    figures: Figures
    partial: bool = False

    @property
    def keeps_up(self) -> bool:
        """Most documents got their first token within the phase."""
        return self.figures["num_unanswered"] <= OVERLOADED * (self.figures["num_documents"] or 1)


@dataclass(frozen=True, slots=True)
class Choice:
    """A budget for one rule, or None with the reason."""

    rule: str
    bound_ms: float
    budget: int | None
    why: str


def default_budgets(settings: dict[str, Any]) -> tuple[int, ...]:
    """Powers of two that the engine allows."""
    low, high = settings["max_num_seqs"], settings.get("hard_num_batched_tokens") or 8192
    return tuple(budget for budget in (2**n for n in range(3, 17)) if low <= budget <= high) or (low,)


def check_budgets(budgets: Sequence[int], settings: dict[str, Any]) -> None:
    """Raise `UsageError` for a budget that the engine would refuse in the middle of the sweep."""
    low, high = settings["max_num_seqs"], settings.get("hard_num_batched_tokens")
    if min(budgets) < low:
        raise UsageError(f"--budgets: {min(budgets)} is less than the engine's --max-num-seqs {low}")
    if high and max(budgets) > high:
        raise UsageError(
            f"--budgets: {max(budgets)} is more than the {high} tokens per step this engine has memory for"
        )


def quiet_phase(load: Load) -> Phase:
    """Chats alone, to measure a bare decode step."""
    return Phase("bare decode", load.chats[0], tokens=64)


def loaded_phase(load: Load, budget: int) -> Phase:
    """The load of every budget; only the name differs."""
    return Phase(
        f"budget {budget}",
        load.chats[0],
        rate=load.rate,
        duration_s=load.duration_s,
        document_lengths=MIXES[load.mix],
    )


async def sweep(bench: Bench, engine: Engine, load: Load, budgets: Sequence[int], num_runs: int) -> None:
    """Measure a bare decode step, then the load at every budget; the caller sets the budget back."""
    await bench.measure(quiet_phase(load), 1, "bare decode steps", load="quiet")
    for run in range(1, num_runs + 1):
        for budget in budgets:
            engine.set_budget(budget)
            label = f"run {run} of {num_runs}: budget {budget}" if num_runs > 1 else f"budget {budget}"
            await bench.measure(loaded_phase(load, budget), run, label, load="loaded")


def bare_step_ms(measured: Sequence[Measured]) -> float | None:
    """The median bare decode step of the quiet phase: the engine's own time, or the chats' gaps if it told none."""
    quiet = next((one for one in measured if one.phase.is_quiet), None)
    if quiet is None:
        return None
    figures = figures_of(quiet)
    return figures[BARE_STEP] or figures["itl_p50_ms"]


def points_of(measured: Sequence[Measured], budgets: Sequence[int]) -> list[Point]:
    """The curve: a point for every budget that was measured, whole runs before unfinished ones."""
    points = []
    for budget in budgets:
        runs = [one for one in measured if one.phase.name == f"budget {budget}"]
        whole = [one for one in runs if one.is_whole]
        used = whole or [one for one in runs if one.recordings]
        if used:
            points.append(Point(budget, median_of([figures_of(one) for one in used]), partial=not whole))
    return points


def choices_of(points: Sequence[Point], step_ms: float | None) -> list[Choice]:
    """A budget for each rule; an unfinished point is never recommended."""
    if step_ms is None:
        return []
    return [_choose(rule, steps * step_ms, points) for rule, steps in SLO_STEPS.items()]


def _choose(rule: str, bound_ms: float, points: Sequence[Point]) -> Choice:
    whole = [point for point in points if not point.partial and point.figures["itl_p99_ms"] is not None]
    within = [point for point in whole if point.figures["itl_p99_ms"] <= bound_ms]
    if not within:
        if not whole:
            return Choice(rule, bound_ms, None, "no budget was measured to its end")
        best = min(whole, key=lambda point: point.figures["itl_p99_ms"])
        return Choice(
            rule,
            bound_ms,
            None,
            f"none keeps it; budget {best.budget} comes closest at {best.figures['itl_p99_ms']:.0f} ms",
        )
    able = [point for point in within if point.keeps_up]
    if not able:
        return Choice(rule, bound_ms, None, "those that keep it do not keep up with the documents: lower --rate")
    waits = {point.budget: point.figures["document_ttft_p50_ms"] or 0.0 for point in able}
    fastest = min(waits.values())
    budget = min(budget for budget, wait in waits.items() if wait <= AS_GOOD * fastest)
    return Choice(rule, bound_ms, budget, f"shortest wait for a document, {waits[budget]:.0f} ms")
