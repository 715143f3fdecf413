"""`POST /v1/completions`: prompts as they are, without a chat template, by the rules of `backend.server.chat`."""

from __future__ import annotations

import asyncio
from functools import partial

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from backend.choices import requests_for
from backend.server.completion_reply import CompletionReply
from backend.server.completions_protocol import CompletionRequest, parse_completion_request, prompts_of
from backend.server.errors import CLIENT_GONE
from backend.server.intake import before_disconnect, check_model, class_of, read_body
from backend.server.sampling import wish_of
from backend.server.sending import send
from backend.service import Service
from backend.text import Answer
from backend.types import Request, RequestClass

DEFAULT_MAX_TOKENS = 16
"""The OpenAI API's own, for this endpoint alone."""


async def create_completion(http: HttpRequest, service: Service) -> Response:
    """Answer one request, streamed or whole."""
    asked = parse_completion_request(await read_body(http, service.config.max_request_bytes))
    check_model(service, asked.model)
    requests = await before_disconnect(http, _build(asked, service, class_of(http)))
    if requests is None:
        return Response(status_code=CLIENT_GONE)
    reply = CompletionReply(service.model_name)
    try:
        for request in requests:
            reply.add(Answer(service.engine, request, service.tokenizer))
    except BaseException as error:
        reply.close(type(error).__name__)
        raise
    include_usage = bool(asked.stream_options and asked.stream_options.include_usage)
    return await send(http, reply, partial(reply.events, include_usage=include_usage) if asked.stream else None)


async def _build(asked: CompletionRequest, service: Service, request_class: RequestClass) -> list[Request]:
    build = service.builder.build_raw
    wish = wish_of(asked, max_tokens=asked.max_tokens or DEFAULT_MAX_TOKENS)
    building = (
        build(prompt, wish, request_class, id_prefix="cmpl-", param=param) for param, prompt in prompts_of(asked)
    )
    first = await asyncio.gather(*building)
    return [request for one in first for request in requests_for(one, asked.n or 1)]
