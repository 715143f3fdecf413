"""One choice of a chat completion while it is told: its words and its log-probabilities."""

from __future__ import annotations

from typing import Any

from openai.types.chat import ChatCompletionMessage, ChatCompletionTokenLogprob
from openai.types.chat.chat_completion import ChoiceLogprobs
from openai.types.chat.chat_completion_chunk import ChoiceDelta
from openai.types.chat.chat_completion_chunk import ChoiceLogprobs as ChunkLogprobs

from backend.choices import Piece
from backend.server.token_logprobs import told_logprobs
from backend.structured import Vocabulary
from backend.types import FinishReason, Request


class ChatChoice:
    """Collects the pieces of one choice, and says what each adds to a stream."""

    def __init__(self, request: Request) -> None:
        self._latest_logprobs: list[ChatCompletionTokenLogprob] = []
        self._text: list[str] = []
        self._wants_logprobs = request.sampling.num_logprobs is not None
        self._logprobs: list[ChatCompletionTokenLogprob] = []

    def push(self, piece: Piece, vocabulary: Vocabulary) -> list[str | ChoiceDelta]:
        """Take a piece; what a stream says of it, text as it is. Empty text comes with log-probabilities alone."""
        if piece.logprobs:
            self._latest_logprobs = told_logprobs(piece.logprobs, vocabulary)
            self._logprobs += self._latest_logprobs
        self._text.append(piece.text)
        return [piece.text]

    def take_logprobs(self) -> ChunkLogprobs | None:
        """The log-probabilities of the latest piece, once."""
        latest, self._latest_logprobs = self._latest_logprobs, []
        return ChunkLogprobs(content=latest, refusal=None) if latest else None

    def end(self) -> list[str | ChoiceDelta]:
        """The answer has ended; what a stream has still to say."""
        return []

    def message(self) -> ChatCompletionMessage:
        """The whole message."""
        return ChatCompletionMessage(role="assistant", content="".join(self._text), refusal=None)

    def logprobs(self) -> ChoiceLogprobs | None:
        """All log-probabilities, if they were asked for."""
        return ChoiceLogprobs(content=self._logprobs, refusal=None) if self._wants_logprobs else None

    def finish_reason(self, reason: FinishReason | None) -> Any:
        """Why it ended, in the API's words."""
        return "length" if reason is FinishReason.LENGTH else "stop"


def delta_of(said: str | ChoiceDelta) -> ChoiceDelta:
    """Text as the delta that carries it."""
    return ChoiceDelta(content=said) if isinstance(said, str) else said
