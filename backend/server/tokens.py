"""`/tokenize` and `/detokenize`, in vLLM's shapes: what a prompt is to the model, and what ids are to a reader."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from backend.server.chat_messages import conversation_of
from backend.server.completions_protocol import TokenizeRequest, parse_detokenize_request, parse_tokenize_request
from backend.server.errors import CLIENT_GONE
from backend.server.intake import before_disconnect, check_model, read_body
from backend.service import Service


async def tokenize(http: Request, service: Service) -> Response:
    """Token ids of a text or of messages, images counted as their placeholders."""
    asked = parse_tokenize_request(await read_body(http, service.config.max_request_bytes))
    if asked.model is not None:
        check_model(service, asked.model)
    reply = await before_disconnect(http, _tokenize(asked, service))
    return Response(status_code=CLIENT_GONE) if reply is None else JSONResponse(reply)


async def detokenize(http: Request, service: Service) -> Response:
    """The text of token ids."""
    asked = parse_detokenize_request(await read_body(http, service.config.max_request_bytes))
    if asked.model is not None:
        check_model(service, asked.model)
    text = await before_disconnect(http, service.builder.decode(asked.tokens, param="tokens"))
    return Response(status_code=CLIENT_GONE) if text is None else JSONResponse({"prompt": text})


async def _tokenize(asked: TokenizeRequest, service: Service) -> dict[str, Any]:
    builder = service.builder
    if asked.prompt is not None:
        special = asked.add_special_tokens is not False
        token_ids = await builder.encode(asked.prompt, param="prompt", add_special_tokens=special)
    else:
        token_ids = (await builder.prepare(conversation_of(asked.messages or []))).token_ids
    return {
        "count": len(token_ids),
        "max_model_len": service.engine.limits.max_model_len,
        "tokens": list(token_ids),
        "token_strs": await builder.spell(token_ids) if asked.return_token_strs else None,
    }
