"""The report as a table for people: a row per phase, only the columns that hold something."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from ui.errors import UsageError


@dataclass(frozen=True, slots=True)
class Column:
    """A figure with its heading and how it is written."""

    figure: str
    heading: str
    form: str = "{:,.0f}"


BENCH_COLUMNS = (
    Column("itl_p50_ms", "ITL p50\nms", "{:,.1f}"),
    Column("itl_p90_ms", "p90\nms", "{:,.1f}"),
    Column("itl_p99_ms", "p99\nms", "{:,.1f}"),
    Column("itl_max_ms", "max\nms", "{:,.1f}"),
    Column("stall_p99", "p99 /\nquiet p50", "{:,.2f}"),
    Column("stall_max", "max /\nquiet p50", "{:,.2f}"),
    Column("ttft_p50_ms", "TTFT\nms"),
    Column("tokens_per_s", "tok/s", "{:,.1f}"),
    Column("tokens_kept", "tok/s /\nquiet", "{:,.2f}"),
    Column("captions_per_s", "captions\n/s", "{:,.2f}"),
    Column("caption_ttft_p50_ms", "caption\nTTFT ms"),
    Column("caption_e2e_p50_ms", "caption\nE2E ms"),
    Column("document_ttft_p50_ms", "document\nTTFT ms"),
    Column("document_ttft_p99_ms", "p99\nms"),
    Column("bare_decode_step_ms", "decode\nstep ms", "{:,.1f}"),
    Column("slice_step_p50_ms", "slice\nstep ms", "{:,.1f}"),
)
PREFILL_COLUMNS = (
    Column("prompt_tokens", "prompt\ntokens"),
    Column("ttft_p50_ms", "TTFT\nms", "{:,.1f}"),
    Column("ttft_p99_ms", "p99\nms", "{:,.1f}"),
    Column("prefill_tokens_per_s", "prefill\ntok/s"),
)
TUNE_COLUMNS = (
    Column("itl_p50_ms", "ITL p50\nms", "{:,.1f}"),
    Column("itl_p99_ms", "p99\nms", "{:,.1f}"),
    Column("itl_max_ms", "max\nms", "{:,.1f}"),
    Column("ttft_p50_ms", "chat\nTTFT ms"),
    Column("document_ttft_p50_ms", "document\nTTFT ms"),
    Column("document_ttft_p99_ms", "p99\nms"),
    Column("num_documents", "docu-\nments"),
    Column("num_unanswered", "un-\nanswered"),
    Column("tokens_per_s", "chats\ntok/s", "{:,.1f}"),
    Column("prompt_tokens_per_s", "prompts\ntok/s"),
    Column("step_p50_ms", "step p50\nms", "{:,.1f}"),
    Column("step_p99_ms", "p99\nms", "{:,.1f}"),
)
RATIO_COLUMNS = (
    Column("itl_p50_ms", "ITL p50\n×", "{:,.3f}"),
    Column("itl_p99_ms", "p99\n×", "{:,.3f}"),
    Column("itl_max_ms", "max\n×", "{:,.3f}"),
    Column("tokens_per_s", "tok/s\n×", "{:,.2f}"),
    Column("captions_per_s", "captions/s\n×", "{:,.2f}"),
    Column("caption_ttft_p50_ms", "caption\nTTFT ×", "{:,.2f}"),
    Column("document_ttft_p50_ms", "document\nTTFT ×", "{:,.2f}"),
    Column("prefill_tokens_per_s", "prefill\n×", "{:,.2f}"),
    Column("stall_p99", "p99 / its\nquiet p50", "{:,.2f}"),
    Column("stall_max", "max / its\nquiet p50", "{:,.2f}"),
)
WIDTH = 200
"""No figure is shortened to fit: a narrow terminal wraps lines, a file has no edge."""
COALESCED = 1.05
"""More tokens per chunk than this are worth a word."""


def print_table(
    title: str, first: str, columns: Sequence[Column], rows: Sequence[tuple[str, Mapping[str, Any]]]
) -> None:
    """Print `rows` (name, figures) on stderr; a figure that is None is a dash."""
    shown = [column for column in columns if any(row.get(column.figure) is not None for _, row in rows)]
    table = Table(show_edge=False)
    table.add_column(first, no_wrap=True)
    for column in shown:
        table.add_column(column.heading, justify="right", no_wrap=True)
    for name, row in rows:
        table.add_row(name, *(_cell(row.get(column.figure), column.form) for column in shown))
    console = Console(stderr=True)
    console.width = max(console.width, WIDTH)
    console.print(title, markup=False, highlight=False, soft_wrap=True)
    console.print(table)


def show(report: Mapping[str, Any], earlier: Mapping[str, Any] | None) -> None:
    """Print a bench's report, and beside an `earlier` one the ratios to it."""
    phases = [(phase["phase"], phase) for phase in report["phases"]]
    num_runs = max(phase["num_runs"] for _, phase in phases)
    runs = f"medians of {num_runs} runs" if num_runs > 1 else "one run"
    title = f"{report['scenario']}: {report['server']['model']} at {report['server']['base_url']}, {runs}"
    is_prefill = report["scenario"] == "prefill"
    print_table(title, "phase", PREFILL_COLUMNS if is_prefill else BENCH_COLUMNS, phases)
    for name, phase in phases:
        if phase["num_failed"]:
            typer.echo(f"{name}: failed requests: {phase['num_failed']:g}; the first: {phase['first_error']}", err=True)
        if (phase["tokens_per_chunk"] or 1.0) > COALESCED:
            typer.echo(
                f"{name}: the server sends {phase['tokens_per_chunk']:.2f} tokens per chunk; gaps are those of chunks",
                err=True,
            )
    if earlier is not None:
        title = f"divided by {earlier['server']['model']} at {earlier['server']['base_url']}"
        print_table(title, "phase", RATIO_COLUMNS, ratios(report, earlier))


def ratios(report: Mapping[str, Any], earlier: Mapping[str, Any]) -> list[tuple[str, dict[str, float | None]]]:
    """Every phase's figures divided by those of the earlier phase with the same name.

    `stall_p99` and `stall_max` are divided by the inter-token p50 of the earlier report's quiet phase instead, which is
    what a load that cannot be switched off (a running product) is to be compared with.
    """
    by_name = {phase["phase"]: phase for phase in earlier["phases"]}
    quiet = next((phase for phase in earlier["phases"] if not phase["cameras"] and not phase["rate"]), {})
    rows = []
    for phase in report["phases"]:
        other = by_name.get(phase["phase"], {})
        row = {column.figure: divided(phase[column.figure], other.get(column.figure)) for column in RATIO_COLUMNS[:-2]}
        row["stall_p99"] = divided(phase["itl_p99_ms"], quiet.get("itl_p50_ms"))
        row["stall_max"] = divided(phase["itl_max_ms"], quiet.get("itl_p50_ms"))
        rows.append((phase["phase"], row))
    return rows


def divided(value: float | None, base: float | None) -> float | None:
    """`value` in units of `base`; None where that makes no sense."""
    return value / base if value is not None and base else None


def read_report(path: Path) -> dict[str, Any]:
    """A report that an earlier bench wrote; raises `UsageError` for anything else."""
    try:
        report = json.loads(path.expanduser().read_text(encoding="utf-8"))
        if report["phases"] and report["server"]["model"]:
            return report
    except OSError as error:
        raise UsageError(f"--against {path}: {(error.strerror or str(error)).lower()}") from None
    except (ValueError, KeyError, TypeError):
        pass
    raise UsageError(f"--against {path}: this is no report of `watchword bench --json`")


def _cell(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)
