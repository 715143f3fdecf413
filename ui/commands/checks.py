"""What a command finds wrong before it starts anything: the engine's flags, the model, another backend."""

from __future__ import annotations

import base64
import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

from backend.config import EngineConfig
from backend.server.port import check_exposure
from camera_sources.url import redact, split_credentials
from pipeline.base_url import BaseUrlError, check_base_url
from ui.errors import UsageError

OUR_BACKEND = "http://127.0.0.1:8000/v1"
NOT_THE_ENGINES = frozenset({"model", "api_key", "cache_dir"})
"""Flags that make sense with another backend, too."""
ANSWER_S = 5.0
_KEY_REFUSED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


def check_engine(engine: Mapping[str, Any], base_url: str | None) -> EngineConfig:
    """The engine's settings; raises `UsageError` or `ConfigError` for what cannot work, before anything is loaded."""
    if base_url is not None and (extra := sorted(engine.keys() - NOT_THE_ENGINES)):
        raise UsageError(
            f"--{extra[0].replace('_', '-')} is a setting of our own engine, and --base-url asks for another: drop one"
        )
    config = EngineConfig(**engine)
    if base_url is None:
        check_model(config.model)
        check_exposure(config.host, api_key=config.api_key, insecure=config.insecure)
    else:
        check_address(base_url)
    return config


def check_model(model: str) -> None:
    """Raise `UsageError` for a directory that is missing or holds no model; a hub id is left to the engine."""
    path = Path(model).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise UsageError(f"model {model}: there is no config.json in this directory; name that of a HF model")
    elif path.exists():
        if path.suffix != ".gguf":
            raise UsageError(f"model {model} is a file; name the directory of a HF model, or a .gguf file")
    elif path.is_absolute() or model.startswith((".", "~")) or model.count("/") > 1:
        raise UsageError(f"model {model}: no such directory")


def check_address(base_url: str) -> None:
    """Raise `UsageError` unless `base_url` is an HTTP address."""
    try:
        check_base_url(base_url)
    except BaseUrlError as error:
        raise UsageError(f"--base-url: {error}") from None


def check_backend(base_url: str, *, model: str | None, api_key: str | None) -> None:
    """Ask the server for its models; raises `UsageError` when nothing answers, or no OpenAI API that lets us in.

    With a `model` to ask for, a server may refuse to list its own.
    """
    check_address(base_url)
    name = redact(base_url)
    try:
        with urllib.request.urlopen(_models_request(base_url, api_key), timeout=ANSWER_S) as reply:
            speaks_openai = isinstance(json.load(reply)["data"], list)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in _KEY_REFUSED:
            given = "does not take the API key" if api_key else "asks for an API key"
            raise UsageError(f"{name} {given}: name it with --api-key or WATCHWORD_API_KEY") from None
        if model is None or error.code >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise UsageError(
                f"{name} answered {error.code} when asked for its models: is this an OpenAI API? "
                "Its address usually ends in /v1"
            ) from None
        return
    except (ValueError, LookupError, TypeError, http.client.HTTPException):
        speaks_openai = False
    except OSError as error:
        raise UsageError(
            f"no answer from an engine at {name} ({_reason(error)}): start one with `watchword serve`, or check "
            "--base-url"
        ) from None
    if not speaks_openai:
        raise UsageError(f"{name} does not speak the OpenAI API; its address usually ends in /v1")


def _models_request(base_url: str, api_key: str | None) -> urllib.request.Request:
    url, user, password = split_credentials(base_url)
    key = f"Bearer {api_key or 'none'}"
    if user is not None:  # as the client does that asks for captions
        key = "Basic " + base64.b64encode(f"{user}:{password or ''}".encode()).decode()
    return urllib.request.Request(f"{url.rstrip('/')}/models", headers={"Authorization": key})


def _reason(error: OSError) -> str:
    """Why there was no answer, in the system's own words."""
    cause = getattr(error, "reason", error)
    if isinstance(cause, TimeoutError):
        return f"silent for {ANSWER_S:g} s"
    return (getattr(cause, "strerror", None) or str(cause)).lower()
