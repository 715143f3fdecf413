"""Pictures of measurements: the gaps between tokens over time, and the curve of a tuning. Draws into PNG files only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from ui.bench.phase import Measured
from ui.bench.recorder import Kind
from ui.bench.report import percentile, window
from ui.bench.tuning import Choice, Point
from ui.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CHAT, CAMERA, DOCUMENT, SLICE = "#1f6feb", "#d1570a", "#8250df", "#2da44e"
WIDTH_IN, PANEL_IN = 11.0, 2.6


def draw_timeline(measured: Sequence[Measured], path: Path, title: str) -> None:
    """A panel per phase of one run: every gap of every chat where its later token arrived, requests of cameras and
    documents as bars from sent to first token, steps with encoder slices as ticks. Of several runs the one whose worst
    phase is in the middle."""
    shown = _middle_run(measured)
    figure = Figure(figsize=(WIDTH_IN, PANEL_IN * len(shown) + 0.6), layout="constrained")
    FigureCanvasAgg(figure)  # draws without a screen
    panels: list[Axes] = list(figure.subplots(len(shown), 1, squeeze=False)[:, 0])
    bounds = _bounds(shown)
    for axes, one in zip(panels, shown, strict=True):
        _panel(axes, one, bounds)
    panels[-1].set_xlabel("seconds into the phase")
    figure.suptitle(title)
    told = {label: line for axes in panels for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(told.values(), told.keys(), loc="outside lower center", ncols=4, fontsize=8)
    _save(figure, path)


def draw_curve(points: Sequence[Point], choices: Sequence[Choice], path: Path, title: str) -> None:
    """Latency of chats against the token budget, with the rules' bounds and choices; below it, what prompts gain."""
    figure = Figure(figsize=(9.0, 6.5), layout="constrained")
    FigureCanvasAgg(figure)
    upper, lower = figure.subplots(2, 1, sharex=True)
    # What was cut off says little of its budget, beside budgets that had their whole time.
    points = [point for point in points if not point.partial] or points
    budgets = [point.budget for point in points]

    def draw(axes: Axes, name: str, label: str, color: str, style: str = "o-") -> None:
        known = [(point.budget, point.figures[name]) for point in points if point.figures[name] is not None]
        if known:
            axes.plot(*zip(*known, strict=True), style, color=color, label=label)

    draw(upper, "itl_p99_ms", "inter-token p99", CAMERA)
    draw(upper, "itl_p50_ms", "inter-token p50", CHAT)
    for choice in choices:
        upper.axhline(choice.bound_ms, color="#6e7781", linestyle="--", linewidth=1)
        chosen = "none" if choice.budget is None else str(choice.budget)
        upper.annotate(f"{choice.rule}: {chosen}", (budgets[0], choice.bound_ms), va="bottom", fontsize=8)
        if choice.budget is not None:
            upper.axvline(choice.budget, color=SLICE, linestyle=":", linewidth=1.5)
    upper.set_ylabel("ms")
    draw(lower, "document_ttft_p50_ms", "first token of a document, p50, ms", DOCUMENT)
    draw(lower, "ttft_p50_ms", "first token of a chat, p50, ms", CHAT)
    draw(lower, "prompt_tokens_per_s", "prompt tokens per second", SLICE, "s--")
    lower.set_xlabel("max_num_batched_tokens")
    for axes in (upper, lower):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        _number_plainly(axes)
        axes.set_xticks(budgets, [str(budget) for budget in budgets])
        axes.grid(visible=True, alpha=0.3)
        axes.legend(fontsize=8)
    figure.suptitle(title)
    _save(figure, path)


def _number_plainly(axes: Axes) -> None:
    """100 and 200 instead of powers of ten; what is between those is labelled where less than a decade is seen."""
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(LogFormatter())


def _save(figure: Figure, path: Path) -> None:
    try:
        figure.savefig(path.expanduser(), format="png", dpi=130)
    except OSError as error:
        raise UsageError(f"{path}: {(error.strerror or str(error)).lower()}; the report has the figures") from None


def _panel(axes: Axes, one: Measured, bounds: tuple[float, float]) -> None:
    begin, end = window(one)
    axes.set_yscale("log")
    _number_plainly(axes)
    axes.set_ylim(*bounds)
    axes.set_xlim(0.0, max(end - begin, 1e-3))
    axes.set_title(one.phase.name, loc="left", fontsize=10)
    axes.set_ylabel("gap, ms")
    axes.grid(visible=True, which="major", alpha=0.3)
    chats = [rec for rec in one.recordings if rec.kind is Kind.CHAT]
    points = [(t - begin, 1e3 * gap) for rec in chats for t, gap in zip(rec.t_tokens[1:], rec.gaps, strict=True)]
    if points:
        axes.plot(*zip(*points, strict=True), ".", color=CHAT, markersize=3, label="gap between two tokens of a chat")
    _requests(axes, one, Kind.CAMERA, CAMERA, "camera request, sent to first token", 0.96)
    _requests(axes, one, Kind.DOCUMENT, DOCUMENT, "document, sent to first token", 0.96)
    slices = [step.t - begin for step in one.steps if step.encoder_slices and begin <= step.t <= end]
    if slices:
        low = axes.get_xaxis_transform()
        axes.vlines(slices, 0.0, 0.05, transform=low, color=SLICE, linewidth=0.6, label="step with encoder slices")


def _requests(axes: Axes, one: Measured, kind: Kind, color: str, label: str, top: float) -> None:
    """Bars in lanes from the top of the panel down, a lane per camera; documents share a few."""
    begin, end = window(one)
    for number, rec in enumerate(rec for rec in one.recordings if rec.kind is kind and rec.t_sent <= end):
        first = rec.t_tokens[0] if rec.t_tokens else rec.t_end or end
        height = top - 0.035 * (rec.stream % 8)
        axes.plot(
            (max(0.0, rec.t_sent - begin), max(0.0, first - begin)),
            (height, height),
            transform=axes.get_xaxis_transform(),
            color=color,
            linewidth=3,
            solid_capstyle="butt",
            marker="|",
            markersize=6,
            label=None if number else label,
        )


def _middle_run(measured: Sequence[Measured]) -> list[Measured]:
    """The phases of the run whose worst p99 is the median of all runs'."""
    runs: dict[int, list[Measured]] = {}
    for one in measured:
        runs.setdefault(one.run, []).append(one)
    most = max(len(phases) for phases in runs.values())
    whole = [phases for phases in runs.values() if len(phases) == most]
    ordered = sorted(whole, key=lambda phases: max(_p99(one) for one in phases))
    return ordered[(len(ordered) - 1) // 2]


def _p99(one: Measured) -> float:
    return percentile([gap for rec in one.recordings if rec.kind is Kind.CHAT for gap in rec.gaps], 0.99) or 0.0


def _bounds(shown: Sequence[Measured]) -> tuple[float, float]:
    """Lowest and highest gap to be seen, in ms, the same in all panels; room for the bars above."""
    gaps = [gap for one in shown for rec in one.recordings if rec.kind is Kind.CHAT for gap in rec.gaps if gap > 0]
    if not gaps:
        return 1.0, 1000.0
    # Two tokens may arrive together; such gaps are cut off below instead of stretching the picture.
    return max(0.1, 700 * (percentile(gaps, 0.02) or 0.0)), 4000 * max(gaps)
