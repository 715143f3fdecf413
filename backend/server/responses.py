"""`POST /v1/responses`: from a request body to an Answer, by the rules of `backend.server.chat`."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from backend.conversation import SamplingWish
from backend.errors import Rejected
from backend.server.errors import CLIENT_GONE
from backend.server.intake import before_disconnect, check_model, class_of, read_body
from backend.server.response_reply import ResponseReply
from backend.server.responses_input import conversation_of, has_calls
from backend.server.responses_protocol import ResponsesRequest, parse_responses_request
from backend.server.sampling import wish_of
from backend.server.sending import send
from backend.server.tools import ToolUse, check_history, refuse_two_forms, tool_use
from backend.service import Service
from backend.text import Answer
from backend.tool_calls import ToolFormat

ID_PREFIX = "resp_"


async def create_response(http: Request, service: Service) -> Response:
    """Answer one request, streamed or whole."""
    asked = parse_responses_request(await read_body(http, service.config.max_request_bytes))
    check_model(service, asked.model)
    form = service.builder.tool_format
    use = _tool_use(asked, form)
    conversation = conversation_of(asked.input, asked.instructions, use.tools)
    building = service.builder.build(conversation, _wish_of(asked, use), class_of(http), id_prefix=ID_PREFIX)
    request = await before_disconnect(http, building)
    if request is None:
        return Response(status_code=CLIENT_GONE)
    answer = Answer(service.engine, request, service.tokenizer, form and form.spoken)
    reads = form if use.reads_calls else None
    reply = ResponseReply(asked, service.model_name, answer, service.builder.vocabulary, reads)
    return await send(http, reply, reply.events if asked.stream else None)


def _wish_of(asked: ResponsesRequest, use: ToolUse) -> SamplingWish:
    form = asked.text.format if asked.text else None
    demanded = form.constraint() if form else None
    refuse_two_forms(use, demanded or asked.structured_outputs)
    if asked.top_logprobs and not asked.wants_logprobs:
        raise Rejected(
            'top_logprobs is only allowed with include: ["message.output_text.logprobs"]',
            param="top_logprobs",
            code="invalid_value",
        )
    return wish_of(
        asked,
        max_tokens=asked.max_output_tokens,
        num_logprobs=(asked.top_logprobs or 0) if asked.wants_logprobs else None,
        constraint=use.constraint or demanded,
    )


def _tool_use(asked: ResponsesRequest, form: ToolFormat | None) -> ToolUse:
    """What the request says of tools, those in its history included."""
    check_history(has_calls(asked.input), form)
    return tool_use(
        asked.tools or [],
        asked.choice(),
        parallel=asked.parallel_tool_calls is not False,
        form=form,
        where="",
    )
