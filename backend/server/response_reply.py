"""An Answer in the Responses API's words: one response, or its whole sequence of events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from openai.types.responses import (
    ResponseCompletedEvent,
    ResponseCreatedEvent,
    ResponseErrorEvent,
    ResponseFailedEvent,
    ResponseIncompleteEvent,
    ResponseInProgressEvent,
)
from openai.types.responses.response_error import ResponseError

from backend.server.errors import describe
from backend.server.event_stream import AnswerLog
from backend.server.response_frame import ResponseFrame
from backend.server.response_output import Event, ResponseOutput
from backend.server.responses_protocol import ResponsesRequest
from backend.server.token_logprobs import told_logprobs
from backend.structured import Vocabulary
from backend.text import Answer
from backend.tool_calls import ToolFormat
from backend.types.result import FinishReason


class ResponseReply:
    """One Answer as a response, collected whole or event by event. `close` ends it and logs it.

    `vocabulary` is asked where a request wants log-probabilities; `tools` is the form of the calls to look for.
    """

    def __init__(
        self,
        asked: ResponsesRequest,
        model_name: str,
        answer: Answer,
        vocabulary: Vocabulary,
        tools: ToolFormat | None,
    ) -> None:
        self.answer = answer
        self._frame = ResponseFrame(asked, model_name, answer)
        self._output = ResponseOutput(tools)
        self._vocabulary = vocabulary
        self._log = AnswerLog()
        self._num_events = 0
        self._closed = False

    async def admitted(self) -> None:
        """Wait until the engine has taken the request; raises its refusal."""
        await self.answer.admitted()

    async def collect(self) -> None:
        """Read the answer to its end."""
        async for _ in self._output_events():
            pass

    def whole(self) -> bytes:
        """The body of a reply that is not streamed."""
        response = self._frame.around(self._output.items(), self._end_status())
        return response.model_dump_json(exclude_unset=True, by_alias=True).encode()

    async def events(self) -> AsyncIterator[bytes]:
        """The stream's events, numbered. After an error come an error event and the failed response, and no more."""
        try:
            begun = self._frame.around((), "in_progress")
            yield self._numbered(Event(ResponseCreatedEvent, "response.created", {"response": begun}))
            yield self._numbered(Event(ResponseInProgressEvent, "response.in_progress", {"response": begun}))
            async for event in self._output_events():
                yield self._numbered(event)
            status = self._end_status()
            kind = ResponseCompletedEvent if status == "completed" else ResponseIncompleteEvent
            response = self._frame.around(self._output.items(), status)
            yield self._numbered(Event(kind, f"response.{status}", {"response": response}))
        except Exception as error:
            self.close(type(error).__name__)
            for event in self._failure(error):
                yield self._numbered(event)

    def close(self, why: str | None = None) -> None:
        """End the answer, cancelling it if it runs, and log it. Idempotent; `why` explains an early end."""
        if not self._closed:
            self._closed = True
            self.answer.close()
            self._log.write(self.answer, why)

    async def _output_events(self) -> AsyncIterator[Event]:
        async for piece in self.answer.pieces():
            self._log.first_piece()
            logprobs = told_logprobs(self.answer.take_logprobs(), self._vocabulary)
            for event in self._output.push(piece, logprobs):
                yield event
        for event in self._output.end(self._end_status()):
            yield event

    def _failure(self, error: Exception) -> tuple[Event, Event]:
        said = describe(error)[1]["error"]
        words, code = said["message"], said["code"]
        response = self._frame.around((), "failed")
        response.error = ResponseError(code="server_error", message=words)
        return (
            Event(ResponseErrorEvent, "error", {"code": code, "message": words, "param": said["param"]}),
            Event(ResponseFailedEvent, "response.failed", {"response": response}),
        )

    def _numbered(self, event: Event) -> bytes:
        told = event.kind(type=event.name, sequence_number=self._num_events, **event.fields)  # type: ignore[call-arg]
        self._num_events += 1
        body = told.model_dump_json(exclude_unset=True, by_alias=True)
        return f"event: {event.name}\ndata: {body}\n\n".encode()

    def _end_status(self) -> Any:
        return "incomplete" if self.answer.finish_reason is FinishReason.LENGTH else "completed"
