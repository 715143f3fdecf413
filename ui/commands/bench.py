"""`watchword bench`: puts a load of chats, cameras and documents onto any OpenAI-compatible server and measures it."""

from __future__ import annotations

from typing import Annotated

import typer

from ui.bench.scenario import Load, Scenario, phases_of
from ui.commands.bench_options import (
    Against,
    CaptionTokens,
    MixName,
    PhaseDuration,
    Photo,
    Rate,
    Seed,
    Size,
    Tokens,
    begin_report,
    check_mix,
    finish,
    numbers,
    require_writable,
    write_report,
)
from ui.commands.checks import OUR_BACKEND
from ui.commands.options import ApiKey, BaseUrl, JsonOut, ModelName, PngOut

Which = Annotated[
    Scenario,
    typer.Argument(
        metavar="SCENARIO",
        help="chat-under-camera: chats alone, then beside cameras whose frames come back to back. "
        "chat: chats alone. camera: cameras alone. rag: chats alone, then beside long documents. "
        "prefill: prompts of 256 tokens.",
    ),
]


def bench(
    scenario: Which = Scenario.CHAT_UNDER_CAMERA,
    *,
    base_url: BaseUrl = OUR_BACKEND,
    model: ModelName = None,
    api_key: ApiKey = None,
    chats: Annotated[
        str, typer.Option(metavar="N,…", help="Chats at the same time; several: one after another.")
    ] = "2",
    cameras: Annotated[
        str, typer.Option(metavar="N,…", help="Cameras at the same time; 1,2,4,8 shows how it grows, a row each.")
    ] = "1",
    size: Size = "512x512",
    image: Photo = None,
    caption_tokens: CaptionTokens = 24,
    tokens: Tokens = None,
    duration: PhaseDuration = None,
    rate: Rate = 0.25,
    mix: MixName = "rag",
    runs: Annotated[int, typer.Option(metavar="N", min=1, help="Repeat all phases; figures are the medians.")] = 3,
    seed: Seed = 0,
    against: Against = None,
    json_out: JsonOut = None,
    png_out: PngOut = None,
) -> int:
    """Measure a server: inter-token latency, time to first token, captions and throughput, alone and under load.

    Tables and progress go to stderr, the report as JSON to standard output or --json. Ctrl-C keeps what was measured.
    """
    from ui.bench.bench import Bench, Target
    from ui.bench.frames import check_image, default_image, parse_size
    from ui.bench.plot import draw_timeline
    from ui.bench.progress import Meter
    from ui.bench.report import phase_reports
    from ui.bench.table import read_report, show

    check_mix(mix)
    load = Load(numbers("--chats", chats), numbers("--cameras", cameras), rate, mix, tokens, duration)
    require_writable(json_out, png_out)
    phases = phases_of(scenario, load)
    photo = check_image(image or default_image()) if any(phase.cameras for phase in phases) else None
    target = Target(base_url, model, api_key, photo, parse_size(size), caption_tokens)
    earlier = None if against is None else read_report(against)
    meter = Meter()
    meter.expect(len(phases) * runs)
    the_bench = Bench(target, seed, meter)

    async def work() -> None:
        async with the_bench.connected(camera=any(phase.cameras for phase in phases)):
            await the_bench.run(phases, runs)

    ending = finish(work(), the_bench, meter)
    settings = {"size": size, "caption_tokens": caption_tokens, "mix": mix, "runs": runs, "seed": seed}
    report = begin_report(scenario.value, the_bench, ending, **settings)
    report["phases"] = phase_reports(the_bench.measured)
    write_report(report, json_out)
    show(report, earlier)
    if png_out is not None:
        draw_timeline(the_bench.measured, png_out, f"{scenario.value}: {the_bench.server['model']}")
    return ending.status(json_out)
