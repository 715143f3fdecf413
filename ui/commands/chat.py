"""`watchword chat`: one question, the answer streamed to standard output."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from ui.commands.checks import OUR_BACKEND, check_backend
from ui.commands.engine_flags import default
from ui.commands.options import ApiKey, BaseUrl, ModelName
from ui.errors import UsageError


def chat(
    question: Annotated[str, typer.Argument(metavar="QUESTION", help="What to ask.", show_default=False)],
    image: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help=f"A JPEG, PNG, WebP, BMP or GIF picture to ask about. {default('none')}"),
    ] = None,
    base_url: BaseUrl = OUR_BACKEND,
    model: ModelName = None,
    max_tokens: Annotated[int, typer.Option(metavar="N", min=1, help="Longest answer, in tokens.")] = 256,
    api_key: ApiKey = None,
) -> int:
    """Ask the engine something, optionally about a picture."""
    if not question.strip():
        raise UsageError("the question is empty")
    picture = None if image is None else _read(image)
    check_backend(base_url, model=model, api_key=api_key)
    return asyncio.run(_answer(question, picture, base_url, model, max_tokens, api_key))


def _read(image: Path) -> bytes:
    try:
        return image.expanduser().read_bytes()
    except OSError as error:
        raise UsageError(f"{image}: {(error.strerror or str(error)).lower()}; --image takes a picture file") from None


async def _answer(
    question: str, picture: bytes | None, base_url: str, model: str | None, max_tokens: int, api_key: str | None
) -> int:
    from openai import AsyncOpenAI

    from ui.conversation import Conversation

    async with AsyncOpenAI(base_url=base_url, api_key=api_key or "none", max_retries=0) as client:
        conversation = Conversation(client, model=model, max_tokens=max_tokens)
        async for piece in conversation.ask(question, image=picture):
            typer.echo(piece, nl=False)
    typer.echo()
    if conversation.finish_reason == "length":
        typer.echo(f"… (cut at {max_tokens} tokens; --max-tokens raises it)", err=True)
    return 0
