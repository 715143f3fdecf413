"""`POST /v1/chat/completions`: from a request body to an Answer.

Everything that can be refused is refused before the first header is sent. Whoever goes away takes their request with
them: every path out of here closes the reply, which cancels it in the engine unless it has ended.
"""

from __future__ import annotations

from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from backend.choices import Choices, requests_for
from backend.conversation import SamplingWish
from backend.errors import Rejected
from backend.server.chat_messages import conversation_of, has_calls
from backend.server.errors import CLIENT_GONE
from backend.server.intake import before_disconnect, check_model, class_of, read_body
from backend.server.protocol import ChatRequest, parse_chat_request
from backend.server.reply import Reply
from backend.server.sampling import wish_of as sampling_wish
from backend.server.sending import send
from backend.server.structured import format_constraint
from backend.server.tools import ToolUse, check_history, refuse_two_forms, tool_use
from backend.service import Service
from backend.tool_calls import ToolFormat


async def create_chat_completion(http: Request, service: Service) -> Response:
    """Answer one request, streamed or whole."""
    chat = parse_chat_request(await read_body(http, service.config.max_request_bytes))
    check_model(service, chat.model)
    form = service.builder.tool_format
    use = _tool_use(chat, form)
    building = service.builder.build(conversation_of(chat.messages, use.tools), wish_of(chat, use), class_of(http))
    request = await before_disconnect(http, building)
    if request is None:
        return Response(status_code=CLIENT_GONE)
    choices = Choices(service.engine, requests_for(request, chat.n or 1), service.tokenizer, form and form.spoken)
    reply = Reply(service.model_name, choices, service.builder.vocabulary, form if use.reads_calls else None)
    include_usage = bool(chat.stream_options and chat.stream_options.include_usage)
    return await send(http, reply, partial(reply.events, include_usage=include_usage) if chat.stream else None)


def wish_of(chat: ChatRequest, use: ToolUse) -> SamplingWish:
    """The request's sampling fields."""
    if None not in (chat.max_tokens, chat.max_completion_tokens) and chat.max_tokens != chat.max_completion_tokens:
        raise Rejected("max_tokens and max_completion_tokens differ: send one", param="max_tokens")
    if chat.top_logprobs and not chat.logprobs:
        raise Rejected("top_logprobs is only allowed with logprobs: true", param="top_logprobs", code="invalid_value")
    demanded = format_constraint(chat.response_format)
    refuse_two_forms(use, demanded or chat.structured_outputs)
    return sampling_wish(
        chat,
        max_tokens=chat.max_completion_tokens or chat.max_tokens,
        num_logprobs=(chat.top_logprobs or 0) if chat.logprobs else None,
        constraint=use.constraint or demanded,
    )


def _tool_use(chat: ChatRequest, form: ToolFormat | None) -> ToolUse:
    """What the request says of tools, those in its history included."""
    functions = [tool.function for tool in chat.tools or []]
    check_history(has_calls(chat.messages), form)
    return tool_use(functions, chat.tool_choice, parallel=chat.parallel_tool_calls is not False, form=form)
