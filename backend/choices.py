"""Several answers to one prompt, read as one: pieces come with the number of the choice they belong to.

Each choice is a request of its own. The first computes the prompt; the others are submitted when it has begun to
answer, so that they find the prompt in the prefix cache. Knows nothing of HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from tokenizers import Tokenizer

from backend.engine import Engine
from backend.structured import TokenGrammar
from backend.text import Answer
from backend.types.request import Request
from backend.types.result import TokenLogprobs

MAX_CHOICES = 16


def let_in_together(requests: Sequence[Request]) -> tuple[Request, ...]:
    """The first is let in only where the queue has places for all, so the others are not asked for theirs."""
    first, *others = requests
    return (replace(first, num_places=len(requests)), *(replace(other, num_places=0) for other in others))


def requests_for(request: Request, num_choices: int) -> tuple[Request, ...]:
    """`request` and as many more like it as make `num_choices`: with ids, seeds and grammars of their own."""
    return (request, *(_another(request, index) for index in range(1, num_choices)))


def _another(request: Request, index: int) -> Request:
    sampling = request.sampling
    if sampling.seed is not None:
        sampling = replace(sampling, seed=sampling.seed + index)
    if isinstance(sampling.grammar, TokenGrammar):
        sampling = replace(sampling, grammar=sampling.grammar.fork())
    return replace(request, request_id=f"{request.request_id}-{index}", sampling=sampling)


class Piece(NamedTuple):
    """Text of one choice, and the log-probabilities of its tokens where they were asked for."""

    choice: int
    text: str
    logprobs: tuple[TokenLogprobs, ...]


class Choices:
    """Answers to requests that differ in little. The first is submitted on construction; `close` cancels all.

    `answers` has an entry for each of `requests` that was submitted so far.
    """

    def __init__(
        self,
        engine: Engine,
        requests: Sequence[Request],
        tokenizer: Tokenizer,
        spoken: Mapping[int, str] | None = None,
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._spoken = spoken
        self.requests = let_in_together(requests)
        self._arrived: asyncio.Queue[Piece | Exception | None] = asyncio.Queue()
        self._readers: list[asyncio.Task[None]] = []
        self.answers = [Answer(engine, self.requests[0], tokenizer, spoken)]

    async def admitted(self) -> None:
        """Wait until the engine has taken the first request; raises its refusal."""
        await self.answers[0].admitted()

    async def pieces(self) -> AsyncIterator[Piece]:
        """Pieces as they come, in order within a choice; raises what ends any of them early."""
        if len(self.requests) == 1:
            answer = self.answers[0]
            async for text in answer.pieces():
                yield Piece(0, text, answer.take_logprobs())
            return
        self._read(0)
        num_ended = 0
        while num_ended < len(self.requests):
            item = await self._arrived.get()
            if isinstance(item, Exception):
                raise item
            if len(self.answers) == 1:
                self._submit_others()
            if item is None:
                num_ended += 1
            else:
                yield item

    def close(self) -> None:
        """Cancel what runs. Idempotent."""
        for reader in self._readers:
            reader.cancel()
        for answer in self.answers:
            answer.close()

    def _submit_others(self) -> None:
        for index, request in enumerate(self.requests[1:], start=1):
            self.answers.append(Answer(self._engine, request, self._tokenizer, self._spoken))
            self._read(index)

    def _read(self, index: int) -> None:
        self._readers.append(asyncio.create_task(self._forward(index)))

    async def _forward(self, index: int) -> None:
        answer = self.answers[index]
        try:
            async for text in answer.pieces():
                self._arrived.put_nowait(Piece(index, text, answer.take_logprobs()))
            self._arrived.put_nowait(None)
        except Exception as error:
            self._arrived.put_nowait(error)
