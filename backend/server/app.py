"""The HTTP application: routes, who may use them, and one error format for everything. Owns no state but a Service."""

from __future__ import annotations

from dataclasses import asdict
from http import HTTPStatus
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from openai.types import Model
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect

from backend.config import STEP_POLICIES
from backend.engine import EngineState
from backend.errors import EngineError, Rejected
from backend.server.access import ApiKey, Hosts, Origins
from backend.server.chat import create_chat_completion
from backend.server.completions import create_completion
from backend.server.errors import ApiError, error_response, gone_response
from backend.server.fields import Body, parse_body
from backend.server.intake import check_model, read_body
from backend.server.openapi import openapi_document
from backend.server.request_id import RequestIds
from backend.server.responses import create_response
from backend.server.tokens import detokenize, tokenize
from backend.service import Service
from backend.setting import listed

MAX_STEPS = 2048

_CHANGE_HELP = (
    'the body must hold at least one of "max_num_batched_tokens" (a whole number, or "auto"), '
    '"step_policy" (a name) and "target_itl_ms" (a number above 0), and nothing else'
)


def create_app(service: Service) -> FastAPI:
    """The application for one Service, which stays its caller's to start and to close."""
    app = FastAPI(title="Watchword", docs_url=None, redoc_url=None, openapi_url=None)
    for kind in (EngineError, ApiError, HTTPException, Exception):
        app.add_exception_handler(kind, error_response)
    app.add_exception_handler(RequestValidationError, _validation_response)
    app.add_exception_handler(ClientDisconnect, gone_response)
    if service.config.api_key:
        app.add_middleware(ApiKey, key=service.config.api_key)
    origins = listed(service.config.allowed_origins)
    if not service.config.api_key and not service.config.insecure and "*" not in origins:
        named = [urlsplit(origin).hostname or "" for origin in origins]
        app.add_middleware(Hosts, allowed=[service.config.host, *named])
    app.add_middleware(Origins, allowed=origins)
    if origins:
        # Outside the guards: a browser asks first, without a key.
        app.add_middleware(CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"])
    app.add_middleware(RequestIds)
    _add_openai_routes(app, service)
    _add_text_routes(app, service)
    _add_engine_routes(app, service)
    return app


def _add_openai_routes(app: FastAPI, service: Service) -> None:
    @app.get("/v1/models")
    async def list_models() -> JSONResponse:
        return JSONResponse({"object": "list", "data": [_model(service)]})

    @app.get("/v1/models/{name:path}")
    async def get_model(name: str) -> JSONResponse:
        check_model(service, name)
        return JSONResponse(_model(service))

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        return await create_chat_completion(request, service)

    @app.post("/v1/responses")
    async def responses(request: Request) -> Response:
        return await create_response(request, service)

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        return await create_completion(request, service)


def _add_text_routes(app: FastAPI, service: Service) -> None:
    @app.post("/tokenize")
    async def tokens_of(request: Request) -> Response:
        return await tokenize(request, service)

    @app.post("/detokenize")
    async def text_of(request: Request) -> Response:
        return await detokenize(request, service)

    @app.post("/load_model")
    async def load_model(request: Request) -> Response:
        """What transformers' chat command asks first: the one model here is loaded."""
        name = parse_body(ModelName, await read_body(request, service.config.max_request_bytes)).model
        check_model(service, name)
        return Response('data: {"status": "ready", "cached": true}\n\n', media_type="text/event-stream")

    @app.get("/openapi.json")
    async def openapi() -> JSONResponse:
        return JSONResponse(openapi_document(app, service.model_name))


def _add_engine_routes(app: FastAPI, service: Service) -> None:
    engine = service.engine

    @app.get("/health")
    async def health() -> JSONResponse:
        running = engine.state is EngineState.RUNNING
        status = HTTPStatus.OK if running else HTTPStatus.SERVICE_UNAVAILABLE
        return JSONResponse({"status": "ok" if running else engine.state.value}, status)

    @app.get("/ready")
    async def ready() -> JSONResponse:
        why = _unready(service)
        return JSONResponse({"status": why or "ready"}, HTTPStatus.SERVICE_UNAVAILABLE if why else HTTPStatus.OK)

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(engine.metrics.render(), media_type=CONTENT_TYPE_LATEST)

    @app.get("/engine/steps")
    def steps(  # on a thread: a reply of thousands of steps takes longer to write than streams may wait
        since: int | None = None, limit: Annotated[int, Query(ge=0, le=MAX_STEPS)] = MAX_STEPS
    ) -> JSONResponse:
        records = engine.metrics.steps.since(since, limit)
        return JSONResponse({"steps": [asdict(record) for record in records], **_head(service)})

    @app.get("/engine/config")
    async def config() -> JSONResponse:
        return JSONResponse(_head(service))

    @app.patch("/engine/config")
    async def change(request: Request) -> JSONResponse:
        wanted = _parse_change(await read_body(request, service.config.max_request_bytes))
        engine.change(
            token_budget=wanted.max_num_batched_tokens,
            step_policy=wanted.step_policy,
            target_s=None if wanted.target_itl_ms is None else wanted.target_itl_ms / 1e3,
        )
        return JSONResponse(_head(service))


def _unready(service: Service) -> str | None:
    """Why a request that comes now would be turned away, in a word; None if it would not."""
    engine = service.engine
    if engine.state is not EngineState.RUNNING:
        return engine.state.value
    return "queue full" if engine.stats().num_waiting >= engine.limits.max_num_waiting else None


class ModelName(Body):
    """The name of a model."""

    model: str


class EngineChange(BaseModel):
    """What may be changed while the engine runs: any of these, all at once."""

    model_config = ConfigDict(strict=True, extra="forbid")

    max_num_batched_tokens: int | Literal["auto"] | None = None
    step_policy: str | None = None
    target_itl_ms: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None


def _parse_change(body: bytes) -> EngineChange:
    try:
        change = EngineChange.model_validate_json(body)
    except ValidationError as error:
        param = str(error.errors()[0]["loc"][0]) if error.errors()[0]["loc"] else None
        raise Rejected(_CHANGE_HELP, param=param, code="invalid_value") from None
    if not change.model_dump(exclude_none=True):
        raise Rejected(_CHANGE_HELP, code="invalid_value")
    return change


def _head(service: Service) -> dict[str, Any]:
    """The settings that explain the steps; the slider's bounds are `max_num_seqs` and the hard bound.

    `is_budget_exact` is false while the token budget is only the most that a policy may go up to by time.
    `step_token_budget` is what the policy allowed the latest step; `target_itl_ms` is null unless the policy has one.
    """
    engine = service.engine
    target_s = engine.target_s
    return {
        "max_num_batched_tokens": engine.token_budget,
        "is_budget_exact": engine.is_budget_exact,
        "max_num_seqs": engine.limits.max_num_seqs,
        "hard_num_batched_tokens": engine.limits.hard_num_batched_tokens,
        "step_policy": engine.step_policy,
        "step_policies": list(STEP_POLICIES),
        "target_itl_ms": None if target_s is None else round(target_s * 1e3, 3),
        "step_token_budget": engine.stats().step_token_budget,
    }


def _model(service: Service) -> dict[str, Any]:
    model = Model(id=service.model_name, object="model", created=service.created, owned_by="watchword")
    return model.model_dump(exclude_unset=True) | {"max_model_len": service.engine.limits.max_model_len}


def _validation_response(request: Request, error: Exception) -> Response:
    """FastAPI's own complaint about a query parameter, in the API's error format and without the value."""
    assert isinstance(error, RequestValidationError)
    fault = error.errors()[0]
    param = str(fault["loc"][-1])
    return error_response(request, Rejected(f"{param}: {fault['msg']}", param=param, code="invalid_value"))
