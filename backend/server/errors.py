"""The OpenAI API's error bodies, and which of the engine's errors becomes which. Messages hold no request contents."""

from __future__ import annotations

import logging
import math
from http import HTTPStatus
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from backend.errors import Cancelled, ConfigError, EngineDead, EngineError, Overloaded, Rejected, Stopping

log = logging.getLogger("watchword.server")

CLIENT_GONE = 499
"""Status of a response that goes nowhere: its client has left."""

_BAD_REQUEST = "invalid_request_error"
_SERVER_ERROR = "server_error"


class ApiError(Exception):
    """A refusal that belongs to HTTP alone (no engine error says it)."""

    def __init__(
        self,
        status: HTTPStatus,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.param, self.headers = status, code, param, headers or {}


def error_body(message: str, kind: str, *, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """The one shape of every error."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def describe(error: Exception) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Status, body and headers for an error. What nobody foresaw is a 500 that says no more than its kind."""
    text = str(error)
    match error:
        case ApiError():
            body = error_body(text, _BAD_REQUEST, param=error.param, code=error.code)
            return error.status, body, error.headers
        case Rejected():
            return HTTPStatus.BAD_REQUEST, error_body(text, _BAD_REQUEST, param=error.param, code=error.code), {}
        case ConfigError():
            return HTTPStatus.BAD_REQUEST, error_body(text, _BAD_REQUEST, code="invalid_value"), {}
        case Overloaded():
            headers = {"Retry-After": str(math.ceil(error.retry_after_s))}
            return HTTPStatus.TOO_MANY_REQUESTS, error_body(text, "rate_limit_error", code="overloaded"), headers
        case Stopping():
            body = error_body(text, _SERVER_ERROR, code="shutting_down")
            return HTTPStatus.SERVICE_UNAVAILABLE, body, {"Retry-After": "1"}
        case EngineDead():
            return HTTPStatus.SERVICE_UNAVAILABLE, error_body(text, _SERVER_ERROR, code="engine_dead"), {}
        case Cancelled():
            return HTTPStatus.SERVICE_UNAVAILABLE, error_body(text, _SERVER_ERROR, code="cancelled"), {}
        case EngineError():
            body = error_body(text, _SERVER_ERROR, code="generation_failed")
            return HTTPStatus.INTERNAL_SERVER_ERROR, body, {}
        case HTTPException():
            kind = _BAD_REQUEST if error.status_code < HTTPStatus.INTERNAL_SERVER_ERROR else _SERVER_ERROR
            return error.status_code, error_body(error.detail, kind), dict(error.headers or {})
    log.error("a request failed", exc_info=error)
    body = error_body(f"the server failed ({type(error).__name__})", _SERVER_ERROR, code="internal_error")
    return HTTPStatus.INTERNAL_SERVER_ERROR, body, {}


def gone_response(_: Request, error: Exception) -> Response:
    """What becomes of a request whose client left while sending it: nothing, and no word in the log."""
    return Response(status_code=CLIENT_GONE)


def error_response(_: Request, error: Exception) -> Response:
    """Exception handler for the whole app."""
    status, body, headers = describe(error)
    return JSONResponse(body, status, headers)
