"""`watchword selftest`: the engine against transformers, on the user's own weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from backend.config import EngineConfig
from backend.hardware import settle_threads
from ui.commands.bench_options import machine, require_writable, write_report
from ui.commands.checks import check_model
from ui.commands.engine_flags import default, with_engine_flags
from ui.commands.options import JsonOut

if TYPE_CHECKING:
    from backend.selftest.report import Report

DEMO = "demo"
USED = ("device", "quantization", "cache_dir")
"""Settings of the engine that matter here."""
WIDTH = 140
"""A file has no edge to wrap lines at."""
STYLES = {"DIFFERENT": "bold red", "BROKEN": "bold red", "tie": "yellow", "idle": "yellow", "reported": "cyan"}


@with_engine_flags(without=[field.name for field in dataclasses.fields(EngineConfig) if field.name not in USED])
def selftest(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help=f"HF id or directory of the model. {default('demo, the embedded one')}",
            show_default=False,
        ),
    ] = DEMO,
    *,
    dtype: Annotated[
        str,
        typer.Option(metavar="TEXT", help="Number format of the weights: float32, bfloat16, float16 or auto."),
    ] = "float32",
    max_tokens: Annotated[int, typer.Option(metavar="N", min=8, max=4096, help="Tokens of each answer.")] = 32,
    margin: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            min=0.0,
            help="Tokens whose logits differ by less may change places. "
            + default("0.001 in float32, 0.1 in float16, 0.75 in bfloat16"),
            show_default=False,
        ),
    ] = None,
    json_out: JsonOut = None,
    engine: dict[str, Any],
) -> int:
    """Prove on your own weights that the engine changes no token.

    Transformers' own generate answers some prompts, then the engine does, greedily: prompts whole and in chunks that
    end inside pictures, alone and together, cached, preempted, guessed, under every policy. Where tokens differ by less
    than the margin it is a tie. Exit status 1 if any differ by more, 2 if something could not be tested.

    The table and progress go to stderr, the report as JSON to standard output or --json.
    """
    config = EngineConfig(model=model, dtype=dtype, **engine)
    check_model(model)
    require_writable(json_out)
    settle_threads()
    from backend.hardware import probe
    from backend.selftest.selftest import Selftest
    from ui.bench.progress import Meter

    meter = Meter()
    test = Selftest(
        name=model,
        path=_find(config),
        device=probe(config.device).device,
        dtype=dtype,
        quantization=config.quantization,
        num_tokens=max_tokens,
        margin=margin,
    )
    with meter.shown():
        report = test.run(meter)
    write_report(report.to_json() | {"machine": machine()}, json_out)
    _show(report)
    return report.exit_status


def _find(config: EngineConfig) -> str:
    """Where the model lies."""
    if config.model != DEMO:
        from backend.gguf_file import as_directory

        path = Path(config.model).expanduser()
        return as_directory(
            str(path) if path.exists() else config.model, config.cache_dir, partial(typer.echo, err=True)
        )
    from backend.demo.assemble import ensure_demo_model
    from backend.demo.assets import download_progress

    with download_progress() as progress:
        return str(ensure_demo_model(config.cache_dir.expanduser(), progress))


def _show(report: Report) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(show_edge=False, title=f"{report.model} ({report.family}, {report.dtype}, {report.device})")
    for heading in ("check", "result", "tokens equal", "margin", "what happened"):
        table.add_column(heading, no_wrap=heading != "what happened")
    for check in report.checks:
        style = STYLES.get(check.status.value, "green")
        widest = "" if check.widest is None else f"{check.widest:.2g}"
        tokens = f"{check.num_equal}/{check.num_tokens}"
        table.add_row(check.name, f"[{style}]{check.status.value}[/]", tokens, widest, check.what)
    console = Console(stderr=True)
    if not console.is_terminal:
        console = Console(stderr=True, width=WIDTH)
    console.print(table)
    for line in _lines(report):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _lines(report: Report) -> Iterator[str]:
    for check in report.checks:
        if check.status.value in ("DIFFERENT", "tie"):
            for found in check.differences:
                yield (
                    f"{check.name}: {found.prompt}, token {found.index + 1} is {found.got} and should be "
                    f"{found.expected}, ahead by {found.margin:.2g}"
                )
    yield from report.notes
    ending = {0: "no token differs beyond the margin", 1: "the engine's answers DIFFER", 2: "not all could be tested"}
    yield f"{ending[report.exit_status]} ({report.margin:g}); {report.took_s:.0f} s"
