"""Answers to raw prompts in the Completions API's words: one reply, or one stream of events with all of them."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from openai.types import Completion, CompletionChoice, CompletionUsage
from openai.types.completion_choice import Logprobs
from openai.types.completion_usage import PromptTokensDetails

from backend.server.completion_choice import ToldChoice
from backend.server.errors import describe
from backend.server.event_stream import AnswerLog
from backend.structured import Vocabulary
from backend.text import Answer
from backend.types.result import FinishReason


class Piece(NamedTuple):
    """Text of one choice, with the log-probabilities of its tokens; None ends it."""

    choice: int
    text: str | None
    logprobs: Logprobs | None = None


class CompletionReply:
    """The Answers of one request, a choice each. `close` ends them all and writes one log line each.

    `vocabulary` is asked where a request wants log-probabilities. With `prompt_alone` the answers are left out.
    """

    def __init__(self, model_name: str, vocabulary: Vocabulary, *, prompt_alone: bool = False) -> None:
        self._id = f"cmpl-{uuid.uuid4().hex}"
        self._model_name = model_name
        self._created = int(time.time())
        self._answers: list[Answer] = []
        self._logs: list[AnswerLog] = []
        self._told: list[ToldChoice] = []
        self._echoes: list[str | None] = []
        self._vocabulary = vocabulary
        self._prompt_alone = prompt_alone
        self._closed = False

    def add(self, answer: Answer, echo: str | None = None) -> None:
        """One more choice, its text to begin with `echo`, the prompt's."""
        wants_logprobs = answer.request.sampling.num_logprobs is not None
        self._answers.append(answer)
        self._logs.append(AnswerLog())
        self._told.append(ToldChoice(self._vocabulary if wants_logprobs else None))
        self._echoes.append(echo)

    async def admitted(self) -> None:
        """Wait until the engine has taken all; raises a refusal."""
        for answer in self._answers:
            await answer.admitted()

    async def collect(self) -> None:
        """Read all answers to their ends."""
        async for _ in self._pieces():
            pass

    def whole(self) -> bytes:
        """The body of a reply that is not streamed."""
        choices = [self._choice(i, told.text, self._reason(i), told.logprobs()) for i, told in enumerate(self._told)]
        return self._dump(choices=choices, usage=self._usage())

    async def events(self, *, include_usage: bool) -> AsyncIterator[bytes]:
        """The stream's events. An error after the first is an event too, and the last one."""
        usage = {"usage": None} if include_usage else {}
        try:
            async for index, text, logprobs in self._pieces():
                reason = self._reason(index) if text is None else None
                yield self._event(choices=[self._choice(index, text or "", reason, logprobs)], **usage)
            if include_usage:
                yield self._event(choices=[], usage=self._usage())
            yield b"data: [DONE]\n\n"
        except Exception as error:
            self.close(type(error).__name__)
            yield b"data: " + json.dumps(describe(error)[1]).encode() + b"\n\n"

    def close(self, why: str | None = None) -> None:
        """End the answers, cancelling those that run, and log them. Idempotent; `why` explains an early end."""
        if self._closed:
            return
        self._closed = True
        for answer, line in zip(self._answers, self._logs, strict=True):
            answer.close()
            line.write(answer, why)

    async def _pieces(self) -> AsyncIterator[Piece]:
        """Pieces of all choices as they come; raises what ends any of them early."""
        arrived: asyncio.Queue[Piece | Exception] = asyncio.Queue()
        readers = [asyncio.create_task(self._read(index, arrived)) for index in range(len(self._answers))]
        num_running = len(readers)
        try:
            while num_running:
                piece = await arrived.get()
                if isinstance(piece, Exception):
                    raise piece
                num_running -= piece.text is None
                yield piece
        finally:
            for reader in readers:
                reader.cancel()

    async def _read(self, index: int, arrived: asyncio.Queue[Piece | Exception]) -> None:
        try:
            answer, told = self._answers[index], self._told[index]
            async for text in answer.pieces():
                self._logs[index].first_piece()
                self._tell_echo(index, arrived)
                if not self._prompt_alone:
                    arrived.put_nowait(Piece(index, text, told.push(text, answer.take_logprobs())))
            self._tell_echo(index, arrived)  # the answer may have had no text
            arrived.put_nowait(Piece(index, None))
        except Exception as error:
            arrived.put_nowait(error)

    def _tell_echo(self, index: int, arrived: asyncio.Queue[Piece | Exception]) -> None:
        """Begin the choice with its prompt, where that is wanted and has not been told yet."""
        echo, self._echoes[index] = self._echoes[index], None
        if echo is not None:
            answer = self._answers[index]
            logprobs = self._told[index].echo(echo, answer.request.prompt.token_ids, answer.prompt_logprobs)
            arrived.put_nowait(Piece(index, echo, logprobs))

    def _reason(self, index: int) -> Any:
        if self._prompt_alone:
            return "length"
        return "length" if self._answers[index].finish_reason is FinishReason.LENGTH else "stop"

    def _choice(self, index: int, text: str, reason: Any, logprobs: Logprobs | None = None) -> CompletionChoice:
        # A piece in the middle of a stream has no reason yet, which the client's type does not foresee.
        return CompletionChoice.model_construct(index=index, text=text, finish_reason=reason, logprobs=logprobs)

    def _usage(self) -> CompletionUsage:
        num_prompt = sum(len(answer.request.prompt.token_ids) for answer in self._answers)
        num_answer = 0 if self._prompt_alone else sum(answer.num_tokens for answer in self._answers)
        num_cached = sum(answer.num_cached_tokens for answer in self._answers)
        return CompletionUsage(
            prompt_tokens=num_prompt,
            completion_tokens=num_answer,
            total_tokens=num_prompt + num_answer,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=num_cached),
        )

    def _event(self, **fields: Any) -> bytes:
        return b"data: " + self._dump(**fields) + b"\n\n"

    def _dump(self, **fields: Any) -> bytes:
        reply = Completion.model_construct(
            id=self._id, object="text_completion", created=self._created, model=self._model_name, **fields
        )
        return reply.model_dump_json(exclude_unset=True, warnings=False).encode()
