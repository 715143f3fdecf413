"""What `bench` and `tune` ask for alike: their common options, lists of numbers, files that can be written."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ui.commands.engine_flags import default
from ui.commands.terminal import until_signal
from ui.errors import UsageError

if TYPE_CHECKING:
    from ui.bench.bench import Bench
    from ui.bench.progress import Meter

INCOMPLETE = 2
"""A measurement that was cut off is not the one asked for, whoever cut it off; what it came to is kept."""

FORMAT = 1
"""Version of the reports' shape."""

Rate = Annotated[
    float,
    typer.Option(metavar="X", min=0.001, help="Long documents per second; they arrive whether or not others wait."),
]
MixName = Annotated[
    str, typer.Option(metavar="MIX", help="Lengths of the documents: rag, openchat, arxiv or chat, short to long.")
]
Seed = Annotated[int, typer.Option(metavar="N", help="The same seed gives the same load.")]
Size = Annotated[str, typer.Option(metavar="WxH", help="Size of a camera's frame in pixels.")]
Photo = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help=f"The photograph that frames are cropped from. {default('a street with a bus, from ultralytics')}",
        show_default=False,
    ),
]
CaptionTokens = Annotated[int, typer.Option(metavar="N", min=1, help="Longest caption, in tokens.")]
Tokens = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="A phase ends when every chat has so many tokens. "
        + default("512 if --duration is not given; 64 in prefill"),
        show_default=False,
    ),
]
PhaseDuration = Annotated[
    float | None,
    typer.Option(
        metavar="S",
        min=0.1,
        help=f"A phase ends after so many seconds. {default('30 in camera, 60 in rag, else by --tokens')}",
        show_default=False,
    ),
]
Against = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help=f"A report of another bench (--json), to print the ratios to it. {default('none')}",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True)
class Ending:
    """How a measurement ended: at its end, by a signal, or because the server was `lost`."""

    interrupted: bool
    lost: str | None
    took_s: float

    @property
    def is_early(self) -> bool:
        """Something is missing."""
        return self.interrupted or self.lost is not None

    def status(self, kept_in: Path | None) -> int:
        """The exit status; says what an early end leaves behind, or raises `UsageError` with it."""
        kept = f"what was measured until then is in {'the report' if kept_in is None else kept_in}, marked partial"
        if self.lost is not None:
            raise UsageError(f"{self.lost}; {kept}")
        if self.interrupted:
            typer.echo(f"watchword: interrupted; {kept}", err=True)
            return INCOMPLETE
        return 0


def finish(work: Coroutine[None, None, None], bench: Bench, meter: Meter) -> Ending:
    """Run `work` to its end or a signal, with the meter on the screen.

    Raises `UsageError` when a signal came before anything was measured.
    """
    from ui.bench.load import EndpointLost

    async def counted() -> int:
        await work
        return 0

    t_begin, lost, interrupted = time.monotonic(), None, False
    try:
        with meter.shown():
            interrupted = asyncio.run(until_signal(counted())) is None
    except (EndpointLost, UsageError) as error:
        if not bench.measured:
            raise
        lost = str(error)
    if interrupted and not bench.measured:
        raise UsageError("interrupted before anything was measured")
    return Ending(interrupted, lost, time.monotonic() - t_begin)


def numbers(flag: str, text: str, *, at_least: int = 1) -> tuple[int, ...]:
    """`1,2,4` as numbers; raises `UsageError`."""
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < at_least or len(set(found)) < len(found):
        raise UsageError(f"{flag} {text}: it takes a number from {at_least} on, or several unlike ones, such as 1,2,4")
    return found


def check_mix(mix: str) -> None:
    """Raise `UsageError` for a mix that nobody knows."""
    from ui.bench.lengths import MIXES

    if mix not in MIXES:
        raise UsageError(f"--mix {mix}: it is one of {', '.join(MIXES)}")


def require_writable(*outputs: Path | None) -> None:
    """Raise `UsageError` for an output that could not be written once everything is measured."""
    for path in outputs:
        if path is None:
            continue
        folder = path.expanduser().resolve().parent
        if not folder.is_dir():
            raise UsageError(f"{path}: there is no folder {folder}")
        if path.expanduser().is_dir():
            raise UsageError(f"{path} is a folder; name a file")
        target = path.expanduser() if path.expanduser().exists() else folder
        if not os.access(target, os.W_OK):
            raise UsageError(f"{path}: it cannot be written (permission denied)")


def begin_report(scenario: str, bench: Bench, ending: Ending, **settings: Any) -> dict[str, Any]:
    """What every report begins with: what was measured, where, when, with which settings."""
    return {
        "format": FORMAT,
        "scenario": scenario,
        "partial": ending.is_early,
        "started_unix": round(time.time() - ending.took_s, 3),
        "server": bench.server,
        "machine": machine(),
        "settings": settings,
    }


def write_report(report: dict[str, Any], path: Path | None) -> None:
    """The report as JSON into `path`, or as one line on standard output unless that is a terminal."""
    if path is None:
        if not sys.stdout.isatty():
            typer.echo(json.dumps(report))
        return
    try:
        path.expanduser().write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        typer.echo(json.dumps(report))  # nothing that was measured is lost
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"{path}: {reason}; the report went to standard output instead") from None


def machine() -> dict[str, Any]:
    """This machine's processor and how many of it there are."""
    name = ""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    return {
        "cpu": name,
        "num_cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
    }
