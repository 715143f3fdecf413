"""`watchword tune`: finds the token budget that suits this machine, by measuring, on our own running engine."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from ui.bench.scenario import Load
from ui.commands.bench_options import (
    MixName,
    Rate,
    Seed,
    begin_report,
    check_mix,
    finish,
    numbers,
    require_writable,
    write_report,
)
from ui.commands.checks import OUR_BACKEND
from ui.commands.engine_flags import default
from ui.commands.options import ApiKey, BaseUrl, JsonOut, ModelName, PngOut
from ui.errors import UsageError

Budgets = Annotated[
    str | None,
    typer.Option(
        metavar="N,…",
        help=f"The budgets to try. {default('powers of two that the engine allows')}",
        show_default=False,
    ),
]


def tune(
    *,
    base_url: BaseUrl = OUR_BACKEND,
    model: ModelName = None,
    api_key: ApiKey = None,
    budgets: Budgets = None,
    chats: Annotated[int, typer.Option(metavar="N", min=1, help="Chats at the same time.")] = 2,
    rate: Rate = 0.25,
    mix: MixName = "rag",
    duration: Annotated[float, typer.Option(metavar="S", min=0.1, help="Seconds of load at each budget.")] = 60.0,
    runs: Annotated[int, typer.Option(metavar="N", min=1, help="Repeat the sweep; figures are the medians.")] = 1,
    seed: Seed = 0,
    json_out: JsonOut = None,
    png_out: PngOut = None,
) -> int:
    """Try token budgets on a running engine and recommend one.

    Chats stream while long documents arrive; every budget gets the same load. Shown are inter-token latency, time to
    first token and throughput, and the budgets that keep the 99th percentile of inter-token latency within 5 (strict)
    and 25 (relaxed) bare decode steps. The engine's budget is set back at the end, also after Ctrl-C.
    """
    from ui.bench.bench import Bench, Target
    from ui.bench.plot import draw_curve
    from ui.bench.progress import Meter
    from ui.bench.tuning import bare_step_ms, check_budgets, choices_of, default_budgets, points_of, sweep

    check_mix(mix)
    given = None if budgets is None else numbers("--budgets", budgets)
    require_writable(json_out, png_out)
    load = Load(chats=(chats,), rate=rate, mix=mix, duration_s=duration)
    meter = Meter()
    bench = Bench(Target(base_url, model, api_key), seed, meter)
    tried: list[int] = []

    async def work() -> None:
        async with bench.connected(camera=False):
            if bench.settings is None:
                raise UsageError(
                    f"{bench.server['base_url']} is another server: tune changes the token budget of Watchword's own "
                    "engine, start one with `watchword serve`"
                )
            tried.extend(given or default_budgets(bench.settings))
            check_budgets(tried, bench.settings)
            meter.expect(1 + len(tried) * runs)
            with bench.engine.budget_restored(bench.settings, meter.say):
                await sweep(bench, bench.engine, load, tried, runs)

    ending = finish(work(), bench, meter)
    step_ms, points = bare_step_ms(bench.measured), points_of(bench.measured, tried)
    choices = choices_of(points, step_ms)
    settings = {"chats": chats, "rate": rate, "mix": mix, "duration_s": duration, "runs": runs, "seed": seed}
    report = begin_report("tune", bench, ending, **settings) | {
        "bare_decode_step_ms": step_ms,
        "points": [{"max_num_batched_tokens": p.budget, "partial": p.partial} | p.figures for p in points],
        "choices": [asdict(choice) for choice in choices],
    }
    write_report(report, json_out)
    _show(report)
    if png_out is not None and points:
        draw_curve(points, choices, png_out, f"{bench.server['model']}: token budget")
    return ending.status(json_out)


def _show(report: dict[str, Any]) -> None:
    from ui.bench.table import TUNE_COLUMNS, print_table

    server = report["server"]
    rows = [
        (f"{point['max_num_batched_tokens']}{' (partial)' if point['partial'] else ''}", point)
        for point in report["points"]
    ]
    title = f"{server['model']} at {server['base_url']}; it had {server['engine']['max_num_batched_tokens']}"
    print_table(title, "budget", TUNE_COLUMNS, rows)
    step_ms = report["bare_decode_step_ms"]
    if step_ms is not None:
        typer.echo(f"a bare decode step takes {step_ms:.1f} ms", err=True)
    for choice in report["choices"]:
        budget = choice["budget"]
        flag = "no budget" if budget is None else f"--max-num-batched-tokens {budget}"
        typer.echo(f"{choice['rule']} (p99 within {choice['bound_ms']:.0f} ms): {flag}; {choice['why']}", err=True)
