"""An Answer in the Responses API's words: one response, or its whole sequence of events."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseContentPartAddedEvent,
    ResponseContentPartDoneEvent,
    ResponseCreatedEvent,
    ResponseErrorEvent,
    ResponseFailedEvent,
    ResponseIncompleteEvent,
    ResponseInProgressEvent,
    ResponseOutputItemAddedEvent,
    ResponseOutputItemDoneEvent,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseTextConfig,
    ResponseTextDeltaEvent,
    ResponseTextDoneEvent,
    ResponseUsage,
)
from openai.types.responses.response import IncompleteDetails
from openai.types.responses.response_error import ResponseError
from openai.types.responses.response_usage import InputTokensDetails, OutputTokensDetails
from pydantic import BaseModel

from backend.server.errors import describe
from backend.server.event_stream import AnswerLog
from backend.server.responses_protocol import ResponsesRequest
from backend.text import Answer
from backend.types import FinishReason

_UNDECLARED: dict[str, Any] = {"store": False}
"""What the API's replies say and the client's type does not declare."""


class ResponseReply:
    """One Answer as a response with one message, collected whole or event by event. `close` ends it and logs it."""

    def __init__(self, asked: ResponsesRequest, model_name: str, answer: Answer) -> None:
        self.answer = answer
        self._asked = asked
        self._model_name = model_name
        self._created = int(time.time())
        self._item_id = answer.request.request_id.replace("resp_", "msg_", 1)
        self._log = AnswerLog()
        self._text = ""
        self._num_events = 0
        self._closed = False

    async def admitted(self) -> None:
        """Wait until the engine has taken the request; raises its refusal."""
        await self.answer.admitted()

    async def collect(self) -> None:
        """Read the answer to its end."""
        async for _ in self._pieces():
            pass

    def whole(self) -> bytes:
        """The body of a reply that is not streamed."""
        return self._response(self._end_status()).model_dump_json(exclude_unset=True, by_alias=True).encode()

    async def events(self) -> AsyncIterator[bytes]:
        """The stream's events, numbered. After an error come an error event and the failed response, and no more."""
        where: dict[str, Any] = {"item_id": self._item_id, "output_index": 0, "content_index": 0}
        try:
            begun = self._response("in_progress")
            yield self._event(ResponseCreatedEvent, "response.created", response=begun)
            yield self._event(ResponseInProgressEvent, "response.in_progress", response=begun)
            item = ResponseOutputMessage(
                id=self._item_id, type="message", role="assistant", status="in_progress", content=[]
            )
            yield self._event(ResponseOutputItemAddedEvent, "response.output_item.added", output_index=0, item=item)
            yield self._event(
                ResponseContentPartAddedEvent, "response.content_part.added", **where, part=self._part("")
            )
            async for piece in self._pieces():
                yield self._event(
                    ResponseTextDeltaEvent, "response.output_text.delta", **where, delta=piece, logprobs=[]
                )
            yield self._event(ResponseTextDoneEvent, "response.output_text.done", **where, text=self._text, logprobs=[])
            part = self._part(self._text)
            yield self._event(ResponseContentPartDoneEvent, "response.content_part.done", **where, part=part)
            status = self._end_status()
            item = self._message(status)
            yield self._event(ResponseOutputItemDoneEvent, "response.output_item.done", output_index=0, item=item)
            kind = ResponseCompletedEvent if status == "completed" else ResponseIncompleteEvent
            yield self._event(kind, f"response.{status}", response=self._response(status))
        except Exception as error:
            self.close(type(error).__name__)
            for event in self._failure(error):
                yield event

    def close(self, why: str | None = None) -> None:
        """End the answer, cancelling it if it runs, and log it. Idempotent; `why` explains an early end."""
        if not self._closed:
            self._closed = True
            self.answer.close()
            self._log.write(self.answer, why)

    async def _pieces(self) -> AsyncIterator[str]:
        async for piece in self.answer.pieces():
            self._log.first_piece()
            self._text += piece
            yield piece

    def _failure(self, error: Exception) -> tuple[bytes, bytes]:
        said = describe(error)[1]["error"]
        words, code = said["message"], said["code"]
        response = self._response("failed")
        response.error = ResponseError(code="server_error", message=words)
        return (
            self._event(ResponseErrorEvent, "error", code=code, message=words, param=said["param"]),
            self._event(ResponseFailedEvent, "response.failed", response=response),
        )

    def _event(self, kind: type[BaseModel], name: str, **fields: Any) -> bytes:
        event = kind(type=name, sequence_number=self._num_events, **fields)
        self._num_events += 1
        return (
            f"event: {name}\ndata: ".encode()
            + event.model_dump_json(exclude_unset=True, by_alias=True).encode()
            + b"\n\n"
        )

    def _end_status(self) -> Any:
        return "incomplete" if self.answer.finish_reason is FinishReason.LENGTH else "completed"

    def _part(self, text: str) -> ResponseOutputText:
        return ResponseOutputText(type="output_text", text=text, annotations=[], logprobs=[])

    def _message(self, status: Any) -> ResponseOutputMessage:
        return ResponseOutputMessage(
            id=self._item_id, type="message", role="assistant", status=status, content=[self._part(self._text)]
        )

    def _response(self, status: Any) -> Response:
        """The response as it stands; what was asked for is said again, defaults filled in."""
        asked, sampling = self._asked, self.answer.request.sampling
        has_ended = status in ("completed", "incomplete")
        return Response(
            id=self.answer.request.request_id,
            object="response",
            created_at=self._created,
            completed_at=int(time.time()) if status == "completed" else None,
            status=status,
            background=False,
            error=None,
            incomplete_details=IncompleteDetails(reason="max_output_tokens") if status == "incomplete" else None,
            instructions=asked.instructions,
            max_output_tokens=asked.max_output_tokens,
            metadata=asked.metadata or {},
            model=self._model_name,
            output=[self._message(status)] if has_ended else [],
            parallel_tool_calls=True,
            previous_response_id=None,
            **_UNDECLARED,
            temperature=sampling.temperature,
            text=self._form(),
            tool_choice="auto",
            tools=[],
            top_p=sampling.top_p,
            truncation="disabled",
            usage=self._usage() if has_ended else None,
        )

    def _form(self) -> ResponseTextConfig:
        form = self._asked.text.format if self._asked.text else None
        said = form.model_dump(by_alias=True, exclude_unset=True) if form else {"type": "text"}
        return ResponseTextConfig.model_validate({"format": said})

    def _usage(self) -> ResponseUsage:
        num_prompt, num_answer = len(self.answer.request.prompt.token_ids), self.answer.num_tokens
        return ResponseUsage(
            input_tokens=num_prompt,
            input_tokens_details=InputTokensDetails(cache_write_tokens=0, cached_tokens=self.answer.num_cached_tokens),
            output_tokens=num_answer,
            output_tokens_details=OutputTokensDetails(reasoning_tokens=0),
            total_tokens=num_prompt + num_answer,
        )
