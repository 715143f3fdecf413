"""`watchword bench`: puts a load of chats, cameras and documents onto any OpenAI-compatible server and measures it."""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ui.bench.scenario import Load, Phase, Scenario, phases_of
from ui.commands.bench_options import (
    ApiKey,
    BaseUrl,
    JsonOut,
    MixName,
    Model,
    PngOut,
    Rate,
    Seed,
    machine,
    numbers,
    require_writable,
    write_report,
)
from ui.commands.chat import OUR_BACKEND
from ui.commands.engine_flags import default
from ui.commands.terminal import until_signal
from ui.errors import UsageError

if TYPE_CHECKING:
    from ui.bench.bench import Bench
    from ui.bench.progress import Meter

INTERRUPTED = 130
FORMAT = 1
"""Version of the report's shape."""


def bench(
    scenario: Annotated[
        Scenario,
        typer.Argument(
            metavar="SCENARIO",
            help="chat-under-camera: chats alone, then beside cameras whose frames come back to back. chat: chats alone. "
            "camera: cameras alone. rag: chats alone, then beside long documents. prefill: prompts of 256 tokens.",
        ),
    ] = Scenario.CHAT_UNDER_CAMERA,
    *,
    base_url: BaseUrl = OUR_BACKEND,
    model: Model = None,
    api_key: ApiKey = None,
    chats: Annotated[
        str, typer.Option(metavar="N,…", help="Chats at the same time; several: one after another.")
    ] = "2",
    cameras: Annotated[
        str, typer.Option(metavar="N,…", help="Cameras at the same time; 1,2,4,8 shows how it grows, a row each.")
    ] = "1",
    size: Annotated[str, typer.Option(metavar="WxH", help="Size of a camera's frame in pixels.")] = "512x512",
    image: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=f"The photograph that frames are cropped from. {default('a street with a bus, from ultralytics')}",
            show_default=False,
        ),
    ] = None,
    caption_tokens: Annotated[int, typer.Option(metavar="N", min=1, help="Longest caption, in tokens.")] = 24,
    tokens: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="A phase ends when every chat has so many tokens. "
            + default("512, if --duration is not given; 16 answers of a token in prefill"),
            show_default=False,
        ),
    ] = None,
    duration: Annotated[
        float | None,
        typer.Option(
            metavar="S",
            min=0.1,
            help=f"A phase ends after so many seconds. {default('30 in camera, 60 in rag, else by --tokens')}",
            show_default=False,
        ),
    ] = None,
    rate: Rate = 0.25,
    mix: MixName = "rag",
    runs: Annotated[int, typer.Option(metavar="N", min=1, help="Repeat all phases; figures are the medians.")] = 3,
    seed: Seed = 0,
    against: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=f"A report of another bench (--json), to print the ratios to it. {default('none')}",
            show_default=False,
        ),
    ] = None,
    json_out: JsonOut = None,
    png_out: PngOut = None,
) -> int:
    """Measure a server: inter-token latency, time to first token, captions and throughput, alone and under load.

    Tables and progress go to stderr, the report as JSON to standard output or --json. Ctrl-C keeps what was measured.
    """
    from ui.bench.frames import default_image, parse_size
    from ui.bench.lengths import MIXES

    if mix not in MIXES:
        raise UsageError(f"--mix {mix}: it is one of {', '.join(MIXES)}")
    load = Load(numbers("--chats", chats), numbers("--cameras", cameras), rate, mix, tokens, duration)
    require_writable(json_out, png_out)
    plan = Plan(
        scenario=scenario,
        phases=phases_of(scenario, load),
        runs=runs,
        seed=seed,
        base_url=base_url,
        model=model,
        api_key=api_key,
        image=image or default_image(),
        size=parse_size(size),
        caption_tokens=caption_tokens,
    )
    raise NotImplementedError
