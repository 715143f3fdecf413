"""`watchword chat`: one question, the answer streamed to standard output."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from ui.commands.engine_flags import default
from ui.errors import UsageError

OUR_BACKEND = "http://127.0.0.1:8000/v1"


def chat(
    question: Annotated[str, typer.Argument(metavar="QUESTION", help="What to ask.", show_default=False)],
    image: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help=f"A JPEG, PNG, WebP, BMP or GIF picture to ask about. {default('none')}"),
    ] = None,
    base_url: Annotated[str, typer.Option(metavar="URL", help="The backend, ending in /v1.")] = OUR_BACKEND,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help=f"The model to ask. {default('the first the backend lists')}")
    ] = None,
    max_tokens: Annotated[int, typer.Option(metavar="N", min=1, help="Longest answer, in tokens.")] = 256,
    api_key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            envvar="WATCHWORD_API_KEY",
            show_envvar=False,
            help=f"The backend's key, if it asks for one. Also read from WATCHWORD_API_KEY. {default('none')}",
            show_default=False,
        ),
    ] = None,
) -> int:
    """Ask the engine something, optionally about a picture."""
    if not question.strip():
        raise UsageError("the question is empty")
    picture = None if image is None else _read(image)
    _require_listener(base_url)
    return asyncio.run(_answer(question, picture, base_url, model, max_tokens, api_key))


def _read(image: Path) -> bytes:
    try:
        return image.expanduser().read_bytes()
    except OSError as error:
        raise UsageError(f"{image}: {(error.strerror or str(error)).lower()}; --image takes a picture file") from None


def _require_listener(base_url: str) -> None:
    parts = urlsplit(base_url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"--base-url {base_url} is no HTTP address; it looks like {OUR_BACKEND}")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname, port), timeout=5.0).close()
    except OSError:
        raise UsageError(
            f"nothing listens on {parts.hostname}:{port}: start an engine with `watchword serve` "
            "(or the whole product with `watchword run`), or name another backend with --base-url"
        ) from None


async def _answer(
    question: str, picture: bytes | None, base_url: str, model: str | None, max_tokens: int, api_key: str | None
) -> int:
    from openai import AsyncOpenAI

    from ui.conversation import Conversation

    async with AsyncOpenAI(base_url=base_url, api_key=api_key or "none", max_retries=0) as client:
        async for piece in Conversation(client, model=model, max_tokens=max_tokens).ask(question, image=picture):
            typer.echo(piece, nl=False)
    typer.echo()
    return 0
