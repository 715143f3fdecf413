"""The output items of one response while they come, and the events that a stream tells of them.

Items follow one another: text is a message, each call an item of its own. Knows nothing of the response around them.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

from openai.types.chat import ChatCompletionTokenLogprob
from openai.types.responses import (
    ResponseContentPartAddedEvent,
    ResponseContentPartDoneEvent,
    ResponseFunctionCallArgumentsDeltaEvent,
    ResponseFunctionCallArgumentsDoneEvent,
    ResponseFunctionToolCall,
    ResponseOutputItemAddedEvent,
    ResponseOutputItemDoneEvent,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseTextDeltaEvent,
    ResponseTextDoneEvent,
)
from openai.types.responses.response_output_text import Logprob
from pydantic import BaseModel

from backend.tool_calls import ToolFormat
from backend.tool_reader import CallPiece, ToolReader

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class Event(NamedTuple):
    """One event of a stream but for its number: its class, its name and its fields."""

    kind: type[BaseModel]
    name: str
    fields: dict[str, Any]


class ResponseOutput:
    """All items of one answer. `push` what comes, then `end`; `tools` is the form of the calls to look for."""

    def __init__(self, tools: ToolFormat | None) -> None:
        self._reader = ToolReader(tools) if tools else None
        self._items: list[_Message | _Call] = []
        self._waiting_logprobs: list[ChatCompletionTokenLogprob] = []

    def push(self, text: str, logprobs: Sequence[ChatCompletionTokenLogprob] = ()) -> list[Event]:
        """What `text` adds. Log-probabilities wait for the text of their tokens; those of a call have no place."""
        self._waiting_logprobs += logprobs
        return self._tell([text] if self._reader is None else self._reader.push(text))

    def end(self, status: ItemStatus) -> list[Event]:
        """The answer has ended: what was held back, and the last item's end. An answer without words is a message."""
        events = self._tell(self._reader.end() if self._reader else [])
        if not self._items:
            events += self._begin(_Message(0))
        return events + self._items[-1].close(status)

    def items(self) -> list[ResponseOutputMessage | ResponseFunctionToolCall]:
        """The items as they stand."""
        return [item.told() for item in self._items]

    def _tell(self, said: Iterable[str | CallPiece]) -> list[Event]:
        events: list[Event] = []
        for piece in said:
            latest = self._items[-1] if self._items else None
            if isinstance(piece, str):
                if not isinstance(latest, _Message):
                    latest = _Message(len(self._items))
                    events += self._begin(latest)
                events.append(latest.more(piece, self._waiting_logprobs))
            else:
                if piece.call_id is not None:
                    latest = _Call(len(self._items), piece.call_id, piece.name or "")
                    events += self._begin(latest)
                assert isinstance(latest, _Call), "a call begins with its name"
                if piece.arguments:
                    events.append(latest.more(piece.arguments))
            self._waiting_logprobs = []
        return events

    def _begin(self, item: _Message | _Call) -> list[Event]:
        """Events for the end of the latest item and the beginning of another."""
        ended = self._items[-1].close("completed") if self._items else []
        self._items.append(item)
        return ended + item.open()


class _Message:
    """A message of one part of text."""

    def __init__(self, index: int) -> None:
        self._id = f"msg_{uuid.uuid4().hex}"
        self._index = index
        self._status: ItemStatus = "in_progress"
        self._text: list[str] = []
        self._logprobs: list[ChatCompletionTokenLogprob] = []

    @property
    def _where(self) -> dict[str, Any]:
        return {"item_id": self._id, "output_index": self._index, "content_index": 0}

    def open(self) -> list[Event]:
        empty = ResponseOutputMessage(id=self._id, type="message", role="assistant", status="in_progress", content=[])
        return [
            _item_added(self._index, empty),
            Event(ResponseContentPartAddedEvent, "response.content_part.added", {**self._where, "part": self._part()}),
        ]

    def more(self, text: str, logprobs: list[ChatCompletionTokenLogprob]) -> Event:
        self._text.append(text)
        self._logprobs += logprobs
        fields = {**self._where, "delta": text, "logprobs": _for_stream(logprobs)}
        return Event(ResponseTextDeltaEvent, "response.output_text.delta", fields)

    def close(self, status: ItemStatus) -> list[Event]:
        self._status = status
        said = {"text": "".join(self._text), "logprobs": _for_stream(self._logprobs)}
        return [
            Event(ResponseTextDoneEvent, "response.output_text.done", self._where | said),
            Event(ResponseContentPartDoneEvent, "response.content_part.done", {**self._where, "part": self._part()}),
            _item_done(self._index, self.told()),
        ]

    def told(self) -> ResponseOutputMessage:
        return ResponseOutputMessage(
            id=self._id, type="message", role="assistant", status=self._status, content=[self._part()]
        )

    def _part(self) -> ResponseOutputText:
        logprobs = [Logprob.model_validate(token.model_dump()) for token in self._logprobs]
        return ResponseOutputText(type="output_text", text="".join(self._text), annotations=[], logprobs=logprobs)


class _Call:
    """A call of one function."""

    def __init__(self, index: int, call_id: str, name: str) -> None:
        self._id = f"fc_{uuid.uuid4().hex}"
        self._index = index
        self._call_id = call_id
        self._name = name
        self._status: ItemStatus = "in_progress"
        self._arguments: list[str] = []

    @property
    def _where(self) -> dict[str, Any]:
        return {"item_id": self._id, "output_index": self._index}

    def open(self) -> list[Event]:
        return [_item_added(self._index, self.told())]

    def more(self, arguments: str) -> Event:
        self._arguments.append(arguments)
        return Event(
            ResponseFunctionCallArgumentsDeltaEvent,
            "response.function_call_arguments.delta",
            {**self._where, "delta": arguments},
        )

    def close(self, status: ItemStatus) -> list[Event]:
        self._status = status
        fields = {**self._where, "arguments": "".join(self._arguments)}
        return [
            Event(ResponseFunctionCallArgumentsDoneEvent, "response.function_call_arguments.done", fields),
            _item_done(self._index, self.told()),
        ]

    def told(self) -> ResponseFunctionToolCall:
        return ResponseFunctionToolCall(
            id=self._id,
            type="function_call",
            call_id=self._call_id,
            name=self._name,
            arguments="".join(self._arguments),
            status=self._status,
        )


def _item_added(index: int, item: BaseModel) -> Event:
    return Event(ResponseOutputItemAddedEvent, "response.output_item.added", {"output_index": index, "item": item})


def _item_done(index: int, item: BaseModel) -> Event:
    return Event(ResponseOutputItemDoneEvent, "response.output_item.done", {"output_index": index, "item": item})


def _for_stream(logprobs: Sequence[ChatCompletionTokenLogprob]) -> list[dict[str, Any]]:
    """Log-probabilities as events have them: without bytes."""
    return [
        {
            "token": token.token,
            "logprob": token.logprob,
            "top_logprobs": [{"token": top.token, "logprob": top.logprob} for top in token.top_logprobs],
        }
        for token in logprobs
    ]
