"""The OpenAPI document: FastAPI's, with the bodies that the endpoints read by themselves."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from backend.server.completions_protocol import CompletionRequest, DetokenizeRequest, TokenizeRequest
from backend.server.fields import Body
from backend.server.protocol import ChatRequest
from backend.server.responses_protocol import ResponsesRequest

_BODIES: dict[str, type[Body]] = {
    "/v1/chat/completions": ChatRequest,
    "/v1/responses": ResponsesRequest,
    "/v1/completions": CompletionRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
}
_REF = "#/components/schemas/{model}"


_EXAMPLES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 16},
    "/v1/responses": {"input": "Hello!", "max_output_tokens": 16},
    "/v1/completions": {"prompt": "Once upon a time", "max_tokens": 16},
    "/tokenize": {"prompt": "Hello!"},
    "/detokenize": {"tokens": [0, 1]},
}
"""A request for each of these paths, but for the model's name."""


def openapi_document(app: FastAPI, model_name: str) -> dict[str, Any]:
    """The document of this application, bodies included: the one model served here is the one that they may name."""
    document = get_openapi(title=app.title, version="1", routes=app.routes)
    kinds = [(kind, "validation") for kind in _BODIES.values()]
    schemas, shared = models_json_schema(kinds, ref_template=_REF)  # type: ignore[arg-type]
    components = document.setdefault("components", {}).setdefault("schemas", {})
    components.update(shared.get("$defs", {}))
    for path, kind in _BODIES.items():
        components[kind.__name__]["properties"]["model"]["enum"] = [model_name]
        body = {"schema": schemas[(kind, "validation")], "example": {"model": model_name} | _EXAMPLES[path]}
        document["paths"][path]["post"]["requestBody"] = {"required": True, "content": {"application/json": body}}
    return document
