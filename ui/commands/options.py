"""Options that several commands have, each declared once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ui.commands.engine_flags import default

DATA_DIR = "~/.local/share/watchword"

OtherEngine = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help=f"Another OpenAI-compatible backend, ending in /v1; starts no engine. {default('our own')}",
        show_default=False,
    ),
]
BaseUrl = Annotated[str, typer.Option(metavar="URL", help="The server to ask, ending in /v1.")]
ModelName = Annotated[
    str | None,
    typer.Option(metavar="NAME", help=f"The model to ask. {default('the first the server lists')}", show_default=False),
]
ApiKey = Annotated[
    str | None,
    typer.Option(
        metavar="KEY",
        envvar="WATCHWORD_API_KEY",
        show_envvar=False,
        help=f"The server's key, if it asks for one. Also read from WATCHWORD_API_KEY. {default('none')}",
        show_default=False,
    ),
]
Detector = Annotated[
    str | None,
    typer.Option(
        metavar="WEIGHTS",
        help=f"Ultralytics weights, such as yolo26n.pt. {default('the packaged yolov8n')}",
        show_default=False,
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        metavar="PATH",
        help=f"Where events and their pictures are kept. {default(DATA_DIR)}",
        show_default=False,
    ),
]
JsonOut = Annotated[
    Path | None,
    typer.Option(
        "--json",
        metavar="OUT",
        help=f"File for the report. {default('standard output, if that is no terminal')}",
        show_default=False,
    ),
]
PngOut = Annotated[
    Path | None,
    typer.Option("--png", metavar="OUT", help=f"File for a picture of it. {default('none')}", show_default=False),
]
