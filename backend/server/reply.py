"""An Answer in the OpenAI API's words: one reply, or a stream of events."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from typing import Any

from openai.types import CompletionUsage
from openai.types.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionMessage
from openai.types.chat.chat_completion import Choice
from openai.types.chat.chat_completion_chunk import Choice as ChunkChoice
from openai.types.chat.chat_completion_chunk import ChoiceDelta

from backend.server.errors import describe
from backend.server.event_stream import AnswerLog
from backend.text import Answer
from backend.types import FinishReason


class Reply:
    """One Answer, collected whole or chunk by chunk. `close` ends it and writes the one log line."""

    def __init__(self, model_name: str, answer: Answer) -> None:
        self.answer = answer
        self._model_name = model_name
        self._created = int(time.time())
        self._log = AnswerLog()
        self._text = ""
        self._closed = False

    async def collect(self) -> None:
        """Read the answer to its end."""
        async for piece in self._pieces():
            self._text += piece

    def whole(self) -> bytes:
        """The body of a reply that is not streamed."""
        message = ChatCompletionMessage(role="assistant", content=self._text, refusal=None)
        choice = Choice(index=0, message=message, finish_reason=self._finish_reason(), logprobs=None)
        reply = ChatCompletion(
            id=self.answer.request.request_id,
            object="chat.completion",
            created=self._created,
            model=self._model_name,
            choices=[choice],
            usage=self._usage(),
        )
        return reply.model_dump_json(exclude_unset=True).encode()

    async def events(self, *, include_usage: bool) -> AsyncIterator[bytes]:
        """The stream's events. An error after the first is an event too, and the last one."""
        try:
            yield self._event(ChoiceDelta(role="assistant", content=""), usage_field=include_usage)
            before, after = self._around_text(usage_field=include_usage)
            async for piece in self._pieces():
                yield before + json.dumps(piece, ensure_ascii=False).encode() + after
            yield self._event(ChoiceDelta(), finish_reason=self._finish_reason(), usage_field=include_usage)
            if include_usage:
                yield self._chunk(choices=[], usage=self._usage())
            yield b"data: [DONE]\n\n"
        except Exception as error:
            self.close(type(error).__name__)
            yield b"data: " + json.dumps(describe(error)[1]).encode() + b"\n\n"

    def close(self, why: str | None = None) -> None:
        """End the answer, cancelling it if it runs, and log it. Idempotent; `why` explains an early end."""
        if self._closed:
            return
        self._closed = True
        self.answer.close()
        self._log.write(self.answer, why)

    async def _pieces(self) -> AsyncIterator[str]:
        async for piece in self.answer.pieces():
            self._log.first_piece()
            yield piece

    def _finish_reason(self) -> Any:
        return "length" if self.answer.finish_reason is FinishReason.LENGTH else "stop"

    def _usage(self) -> CompletionUsage:
        num_prompt, num_answer = len(self.answer.request.prompt.token_ids), self.answer.num_tokens
        return CompletionUsage(
            prompt_tokens=num_prompt, completion_tokens=num_answer, total_tokens=num_prompt + num_answer
        )

    def _event(self, delta: ChoiceDelta, *, usage_field: bool, finish_reason: Any = None) -> bytes:
        choice = ChunkChoice(index=0, delta=delta, finish_reason=finish_reason, logprobs=None)
        return self._chunk(choices=[choice], **({"usage": None} if usage_field else {}))

    def _around_text(self, *, usage_field: bool) -> tuple[bytes, bytes]:
        """What stands before and after the text in each event that carries some: all but the text is the same.

        Building and checking the whole event anew takes many times as long, for every token of every answer.
        """
        mark = f"text of {self.answer.request.request_id}"
        event = self._event(ChoiceDelta(content=mark), usage_field=usage_field)
        before, _, after = event.partition(json.dumps(mark).encode())
        return before, after

    def _chunk(self, **fields: Any) -> bytes:
        chunk = ChatCompletionChunk(
            id=self.answer.request.request_id,
            object="chat.completion.chunk",
            created=self._created,
            model=self._model_name,
            **fields,
        )
        return b"data: " + chunk.model_dump_json(exclude_unset=True).encode() + b"\n\n"
