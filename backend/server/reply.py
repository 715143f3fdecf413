"""Answers in the OpenAI API's words: one chat completion, or a stream of events."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from typing import Any

from openai.types import CompletionUsage
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.chat.chat_completion import Choice
from openai.types.chat.chat_completion_chunk import Choice as ChunkChoice
from openai.types.chat.chat_completion_chunk import ChoiceDelta
from openai.types.chat.chat_completion_chunk import ChoiceLogprobs as ChunkLogprobs
from openai.types.completion_usage import PromptTokensDetails

from backend.choices import Choices
from backend.server.chat_choice import ChatChoice, delta_of
from backend.server.errors import describe
from backend.server.event_stream import AnswerLog
from backend.structured import Vocabulary
from backend.tool_calls import ToolFormat


class Reply:
    """The choices of one request, collected whole or chunk by chunk. `close` ends them and writes a log line for each.

    `vocabulary` is asked where a request wants log-probabilities; `tools` is the form of the calls to look for.
    """

    def __init__(self, model_name: str, choices: Choices, vocabulary: Vocabulary, tools: ToolFormat | None) -> None:
        self._choices = choices
        self._vocabulary = vocabulary
        self._told = [ChatChoice(request, tools) for request in choices.requests]
        self._model_name = model_name
        self._created = int(time.time())
        self._log = AnswerLog()
        self._closed = False

    async def admitted(self) -> None:
        """Wait until the engine has taken the first choice; raises its refusal."""
        await self._choices.admitted()

    async def collect(self) -> None:
        """Read the answers to their ends."""
        async for piece in self._choices.pieces():
            self._log.first_piece()
            self._told[piece.choice].push(piece, self._vocabulary)
        for told in self._told:
            told.end()

    def whole(self) -> bytes:
        """The body of a reply that is not streamed."""
        reply = ChatCompletion(
            id=self._id(),
            object="chat.completion",
            created=self._created,
            model=self._model_name,
            choices=[
                Choice(
                    index=index,
                    message=told.message(),
                    finish_reason=told.finish_reason(answer.finish_reason),
                    logprobs=told.logprobs(),
                )
                for index, (told, answer) in enumerate(zip(self._told, self._choices.answers, strict=True))
            ],
            usage=self._usage(),
        )
        return reply.model_dump_json(exclude_unset=True).encode()

    async def events(self, *, include_usage: bool) -> AsyncIterator[bytes]:
        """The stream's events. An error after the first is an event too, and the last one."""
        extra = {"usage": None} if include_usage else {}
        try:
            for index in range(len(self._told)):
                yield self._event(index, ChoiceDelta(role="assistant", content=""), extra)
            around = [self._around_text(index, extra) for index in range(len(self._told))]
            async for piece in self._choices.pieces():
                self._log.first_piece()
                told, (before, after) = self._told[piece.choice], around[piece.choice]
                for said in told.push(piece, self._vocabulary):
                    if piece.logprobs:
                        yield self._event(piece.choice, delta_of(said), extra, logprobs=told.take_logprobs())
                    elif isinstance(said, str):
                        yield before + json.dumps(said, ensure_ascii=False).encode() + after
                    else:
                        yield self._event(piece.choice, said, extra)
            for index, (told, answer) in enumerate(zip(self._told, self._choices.answers, strict=True)):
                for said in told.end():
                    yield self._event(index, delta_of(said), extra)
                reason = told.finish_reason(answer.finish_reason)
                yield self._event(index, ChoiceDelta(), extra, finish_reason=reason)
            if include_usage:
                yield self._chunk(choices=[], usage=self._usage())
            yield b"data: [DONE]\n\n"
        except Exception as error:
            self.close(type(error).__name__)
            yield b"data: " + json.dumps(describe(error)[1]).encode() + b"\n\n"

    def close(self, why: str | None = None) -> None:
        """End the answers, cancelling what runs, and log them. Idempotent; `why` explains an early end."""
        if self._closed:
            return
        self._closed = True
        self._choices.close()
        for answer in self._choices.answers:
            self._log.write(answer, why)

    def _id(self) -> str:
        return self._choices.requests[0].request_id

    def _usage(self) -> CompletionUsage:
        num_prompt = len(self._choices.requests[0].prompt.token_ids)
        num_answers = sum(answer.num_tokens for answer in self._choices.answers)
        return CompletionUsage(
            prompt_tokens=num_prompt,
            completion_tokens=num_answers,
            total_tokens=num_prompt + num_answers,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=self._choices.answers[0].num_cached_tokens),
        )

    def _event(
        self,
        index: int,
        delta: ChoiceDelta,
        extra: dict[str, Any],
        *,
        finish_reason: Any = None,
        logprobs: ChunkLogprobs | None = None,
    ) -> bytes:
        choice = ChunkChoice(index=index, delta=delta, finish_reason=finish_reason, logprobs=logprobs)
        return self._chunk(choices=[choice], **extra)

    def _around_text(self, index: int, extra: dict[str, Any]) -> tuple[bytes, bytes]:
        """What stands before and after the text in each event that carries some: all but the text is the same.

        Building and checking the whole event anew takes many times as long, for every token of every answer.
        """
        mark = f"text of {self._id()}"
        before, _, after = self._event(index, ChoiceDelta(content=mark), extra).partition(json.dumps(mark).encode())
        return before, after

    def _chunk(self, **fields: Any) -> bytes:
        chunk = ChatCompletionChunk(
            id=self._id(), object="chat.completion.chunk", created=self._created, model=self._model_name, **fields
        )
        return b"data: " + chunk.model_dump_json(exclude_unset=True).encode() + b"\n\n"
