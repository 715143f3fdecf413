"""What a response says beside its output: what was asked for, defaults filled in, how it stands, what it used."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from openai.types.responses import (
    FunctionTool,
    Response,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseTextConfig,
    ResponseUsage,
)
from openai.types.responses.response import IncompleteDetails
from openai.types.responses.response_usage import InputTokensDetails, OutputTokensDetails
from openai.types.responses.tool_choice_function import ToolChoiceFunction

from backend.server.responses_protocol import FlatTool, ResponsesRequest
from backend.text import Answer

_UNDECLARED: dict[str, Any] = {"store": False}
"""What the API's replies say and the client's type does not declare."""


class ResponseFrame:
    """Makes Response objects for one request, all with the same id and beginning."""

    def __init__(self, asked: ResponsesRequest, model_name: str, answer: Answer) -> None:
        self._asked = asked
        self._model_name = model_name
        self._answer = answer
        self._created = int(time.time())

    def around(self, output: Sequence[ResponseOutputMessage | ResponseFunctionToolCall], status: Any) -> Response:
        """The response as it stands; its output is told once it has ended."""
        asked, sampling = self._asked, self._answer.request.sampling
        has_ended = status in ("completed", "incomplete")
        return Response(
            id=self._answer.request.request_id,
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
            output=[*output] if has_ended else [],
            parallel_tool_calls=asked.parallel_tool_calls is not False,
            previous_response_id=None,
            **_UNDECLARED,
            temperature=sampling.temperature,
            text=self._form(),
            tool_choice=self._tool_choice(),
            tools=[_told(tool) for tool in asked.tools or ()],
            top_logprobs=asked.top_logprobs or 0,
            top_p=sampling.top_p,
            truncation="disabled",
            usage=self._usage() if has_ended else None,
        )

    def _tool_choice(self) -> Any:
        choice = self._asked.tool_choice
        if choice is None or isinstance(choice, str):
            return choice or "auto"
        return ToolChoiceFunction(type="function", name=choice.name)

    def _form(self) -> ResponseTextConfig:
        form = self._asked.text.format if self._asked.text else None
        said = form.model_dump(by_alias=True, exclude_unset=True) if form else {"type": "text"}
        return ResponseTextConfig.model_validate({"format": said})

    def _usage(self) -> ResponseUsage:
        num_prompt, num_answer = len(self._answer.request.prompt.token_ids), self._answer.num_tokens
        return ResponseUsage(
            input_tokens=num_prompt,
            input_tokens_details=InputTokensDetails(cache_write_tokens=0, cached_tokens=self._answer.num_cached_tokens),
            output_tokens=num_answer,
            output_tokens_details=OutputTokensDetails(reasoning_tokens=0),
            total_tokens=num_prompt + num_answer,
        )


def _told(tool: FlatTool) -> FunctionTool:
    """A tool by the fields that were read: those that ask nothing of us may hold anything, and are not told back."""
    return FunctionTool.model_validate(tool.model_dump(include=set(FlatTool.model_fields), exclude_unset=True))
