"""The report as a table for people: a row per phase, only the columns that hold something."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table


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


def print_table(
    title: str, first: str, columns: Sequence[Column], rows: Sequence[tuple[str, Mapping[str, Any]]]
) -> None:
    """Print `rows` (name, figures) on stderr; a figure that is None is a dash."""
    shown = [column for column in columns if any(row.get(column.figure) is not None for _, row in rows)]
    table = Table(title=title, title_justify="left", show_edge=False)
    table.add_column(first, no_wrap=True)
    for column in shown:
        table.add_column(column.heading, justify="right", no_wrap=True)
    for name, row in rows:
        table.add_row(name, *(_cell(row.get(column.figure), column.form) for column in shown))
    console = Console(stderr=True)
    if not console.is_terminal:
        console.width = 200  # a file has no edge to wrap at
    console.print(table)


def _cell(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)
