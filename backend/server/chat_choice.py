"""One choice of a chat completion while it is told: its words and its log-probabilities."""

from __future__ import annotations

from typing import Any

from openai.types.chat import ChatCompletionMessage, ChatCompletionTokenLogprob
from openai.types.chat.chat_completion import ChoiceLogprobs
from openai.types.chat.chat_completion_chunk import ChoiceDelta, ChoiceDeltaToolCall
from openai.types.chat.chat_completion_chunk import ChoiceDeltaToolCallFunction as Delta
from openai.types.chat.chat_completion_chunk import ChoiceLogprobs as ChunkLogprobs
from openai.types.chat.chat_completion_message_function_tool_call import (
    ChatCompletionMessageFunctionToolCall as FunctionToolCall,
)
from openai.types.chat.chat_completion_message_function_tool_call import Function

from backend.choices import Piece
from backend.server.token_logprobs import told_logprobs
from backend.structured import Vocabulary
from backend.tool_calls import ToolFormat
from backend.tool_reader import CallPiece, ToolReader
from backend.types.request import Request
from backend.types.result import FinishReason


class ChatChoice:
    """Collects the pieces of one choice, and says what each adds to a stream."""

    def __init__(self, request: Request, tools: ToolFormat | None = None) -> None:
        self._reader = ToolReader(tools) if tools else None
        self._calls: list[FunctionToolCall] = []
        self._latest_logprobs: list[ChatCompletionTokenLogprob] = []
        self._text: list[str] = []
        self._wants_logprobs = request.sampling.num_logprobs is not None
        self._logprobs: list[ChatCompletionTokenLogprob] = []

    def push(self, piece: Piece, vocabulary: Vocabulary) -> list[str | ChoiceDelta]:
        """Take a piece; what a stream says of it, text as it is. Empty text comes with log-probabilities alone."""
        if piece.logprobs:
            self._latest_logprobs = told_logprobs(piece.logprobs, vocabulary)
            self._logprobs += self._latest_logprobs
        if self._reader is None:
            self._text.append(piece.text)
            return [piece.text]
        told = self._tell(self._reader.push(piece.text))
        return told or ([""] if piece.logprobs else [])

    def take_logprobs(self) -> ChunkLogprobs | None:
        """The log-probabilities of the latest piece, once."""
        latest, self._latest_logprobs = self._latest_logprobs, []
        return ChunkLogprobs(content=latest, refusal=None) if latest else None

    def end(self) -> list[str | ChoiceDelta]:
        """The answer has ended; what a stream has still to say."""
        return self._tell(self._reader.end()) if self._reader else []

    def message(self) -> ChatCompletionMessage:
        """The whole message."""
        text = "".join(self._text)
        if not self._calls:
            return ChatCompletionMessage(role="assistant", content=text, refusal=None)
        return ChatCompletionMessage(role="assistant", content=text or None, refusal=None, tool_calls=[*self._calls])

    def logprobs(self) -> ChoiceLogprobs | None:
        """All log-probabilities, if they were asked for."""
        return ChoiceLogprobs(content=self._logprobs, refusal=None) if self._wants_logprobs else None

    def finish_reason(self, reason: FinishReason | None) -> Any:
        """Why it ended, in the API's words."""
        if reason is FinishReason.LENGTH:
            return "length"
        return "tool_calls" if self._calls else "stop"

    def _tell(self, pieces: list[str | CallPiece]) -> list[str | ChoiceDelta]:
        """Keep pieces of text and of calls; the deltas that carry them."""
        told: list[str | ChoiceDelta] = []
        for piece in pieces:
            if isinstance(piece, str):
                self._text.append(piece)
                told.append(piece)
                continue
            call = ChoiceDeltaToolCall(index=piece.index, function=Delta(arguments=piece.arguments))
            if piece.call_id is not None:
                call.id, call.type = piece.call_id, "function"
                call.function = Delta(name=piece.name, arguments=piece.arguments)
                function = Function(name=piece.name or "", arguments=piece.arguments)
                self._calls.append(FunctionToolCall(id=piece.call_id, type="function", function=function))
            else:
                self._calls[piece.index].function.arguments += piece.arguments
            told.append(ChoiceDelta(tool_calls=[call]))
        return told


def delta_of(said: str | ChoiceDelta) -> ChoiceDelta:
    """Text as the delta that carries it."""
    return ChoiceDelta(content=said) if isinstance(said, str) else said
