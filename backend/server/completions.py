"""`POST /v1/completions`: prompts as they are, without a chat template, by the rules of `backend.server.chat`."""

from __future__ import annotations

import asyncio
from functools import partial

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from backend.choices import let_in_together, requests_for
from backend.server.completion_reply import CompletionReply
from backend.server.completions_protocol import CompletionRequest, parse_completion_request, prompts_of
from backend.server.errors import CLIENT_GONE
from backend.server.intake import before_disconnect, check_model, class_of, done, read_body
from backend.server.sampling import wish_of
from backend.server.sending import send
from backend.service import Service
from backend.text import Answer
from backend.types.request import Request, RequestClass

DEFAULT_MAX_TOKENS = 16
"""The OpenAI API's own, for this endpoint alone."""


async def create_completion(http: HttpRequest, service: Service) -> Response:
    """Answer one request, streamed or whole."""
    asked = parse_completion_request(await read_body(http, service.config.max_request_bytes))
    check_model(service, asked.model)
    built = await before_disconnect(http, _build(asked, service, class_of(http)))
    if built is None:
        return Response(status_code=CLIENT_GONE)
    reply = CompletionReply(service.model_name, service.builder.vocabulary, prompt_alone=asked.max_tokens == 0)
    try:
        requests = let_in_together([request for request, _ in built])
        for index, (request, (_, echo)) in enumerate(zip(requests, built, strict=True)):
            reply.add(Answer(service.engine, request, service.tokenizer), echo)
            # The others ask for no places of their own, so they must not come where the first is refused.
            if not index and len(built) > 1 and not await before_disconnect(http, done(reply.admitted())):
                reply.close("client gone")
                return Response(status_code=CLIENT_GONE)
    except BaseException as error:
        reply.close(type(error).__name__)
        raise
    include_usage = bool(asked.stream_options and asked.stream_options.include_usage)
    return await send(http, reply, partial(reply.events, include_usage=include_usage) if asked.stream else None)


async def _build(
    asked: CompletionRequest, service: Service, request_class: RequestClass
) -> list[tuple[Request, str | None]]:
    """A request for each choice, and what its text begins with."""
    wish = wish_of(
        asked,
        # Whoever wants the prompt alone pays for one token that nobody sees.
        max_tokens=DEFAULT_MAX_TOKENS if asked.max_tokens is None else max(1, asked.max_tokens),
        num_logprobs=asked.logprobs,
        num_prompt_logprobs=asked.logprobs if asked.echo else None,
    )

    async def build(param: str, prompt: str | list[int]) -> list[tuple[Request, str | None]]:
        builder, echo = service.builder, None
        first = await builder.build_raw(prompt, wish, request_class, id_prefix="cmpl-", param=param)
        if asked.echo:
            echo = prompt if isinstance(prompt, str) else await builder.decode(prompt, param=param)
        return [(request, echo) for request in requests_for(first, asked.n or 1)]

    built = await asyncio.gather(*(build(param, prompt) for param, prompt in prompts_of(asked)))
    return [choice for one in built for choice in one]
