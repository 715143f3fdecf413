"""A talk with the backend over the OpenAI API: turns go out, words stream in. Used by the page and by the terminal."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from openai.types.chat import ChatCompletionContentPartParam, ChatCompletionMessageParam


class Conversation:
    """The turns so far with one model. `model` None means the first one the backend lists.

    Not for concurrent use: one answer at a time.
    """

    def __init__(self, client: AsyncOpenAI, *, model: str | None, max_tokens: int) -> None:
        self._client = client
        self._model = model
        self._max_tokens = max_tokens
        self._turns: list[ChatCompletionMessageParam] = []
        self.finish_reason: str | None = None

    async def ask(self, text: str, *, image: bytes | None = None, notes: str | None = None) -> AsyncGenerator[str]:
        """Stream the answer to `text`, optionally about a JPEG or PNG `image` (placed before the text).

        `notes` go before the text this once; later turns do not carry them along.

        The turn becomes part of the conversation when the answer ended, or with what was said so far when the caller
        stops listening after the first word. Raises `openai.OpenAIError`; the conversation is then as before.
        """
        turn: ChatCompletionMessageParam = {"role": "user", "content": _content(text, image)}
        asked: ChatCompletionMessageParam = turn
        if notes:
            asked = {"role": "user", "content": _content(f"{notes}\n\n{text}", image)}
        said: list[str] = []
        self.finish_reason = None
        failed = True
        try:
            stream = await self._client.chat.completions.create(
                model=await self._model_name(),
                messages=[*self._turns, asked],
                max_tokens=self._max_tokens,
                stream=True,
            )
            async with stream:
                async for chunk in stream:
                    for choice in chunk.choices:
                        self.finish_reason = choice.finish_reason or self.finish_reason
                        if choice.delta.content:
                            said.append(choice.delta.content)
                            yield choice.delta.content
            failed = False
        except (GeneratorExit, asyncio.CancelledError):  # the listener left
            failed = not said
            raise
        finally:
            if not failed:
                self._turns += [turn, {"role": "assistant", "content": "".join(said)}]

    def clear(self) -> None:
        """Forget every turn."""
        self._turns.clear()

    async def _model_name(self) -> str:
        if self._model is None:
            models = await self._client.models.list()
            if not models.data:
                raise LookupError("the backend lists no model")
            self._model = models.data[0].id
        return self._model


def _content(text: str, image: bytes | None) -> str | list[ChatCompletionContentPartParam]:
    if image is None:
        return text
    kind = "png" if image.startswith(b"\x89PNG") else "jpeg"
    url = f"data:image/{kind};base64,{base64.b64encode(image).decode()}"
    return [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": text}]
