"""Any OpenAI-compatible server as the bench sees it: what it serves, and one streamed answer at a time.

Speaks through the official client, without retries: a repeated request would hide what is to be measured. Knows nothing
of loads and statistics.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import openai
from openai import AsyncOpenAI, AsyncStream
from openai.types.chat import ChatCompletionChunk

from camera_sources.url import redact
from ui.bench.recorder import Outcome, Recording
from ui.errors import UsageError, say

CONNECT_S = 10.0
SILENCE_S = 600.0
"""A tiled frame may hold a server for a minute; nobody waits longer than this for its next word."""

Say = Callable[[str], None]


class AskError(Exception):
    """A request that was not answered: one line, without credentials and payloads."""


class Endpoint:
    """One model of one server. Use as `async with`, and `connect` before anything else.

    `say` gets a line about whatever changes how the server is asked.
    """

    def __init__(self, base_url: str, *, model: str | None, api_key: str | None, say: Say) -> None:
        self.name = redact(base_url)
        self.max_model_len: int | None = None
        self.ignores_eos = True
        self._given_model, self._found_model = model, ""
        self._say = say
        self._has_key = bool(api_key)
        self._client = AsyncOpenAI(
            base_url=base_url,
            api_key=api_key or "none",  # never the environment's: that key belongs to another server
            max_retries=0,
            timeout=openai.Timeout(SILENCE_S, connect=CONNECT_S),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.close()

    @property
    def model(self) -> str:
        """The model that is asked: the one given, or the first the server lists."""
        return self._given_model or self._found_model

    async def connect(self) -> None:
        """Find out what is served; raises `UsageError` when this is no OpenAI API, or none that lets us in."""
        parts = urlsplit(self.name)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise UsageError(f"--base-url {self.name} is no HTTP address; it looks like http://127.0.0.1:8000/v1")
        try:
            reply = await self._client.models.with_raw_response.list(timeout=CONNECT_S)
            listed = _models(reply.text)
        except openai.AuthenticationError:
            given = "does not take the API key" if self._has_key else "asks for an API key"
            raise UsageError(f"{self.name} {given}: name it with --api-key or WATCHWORD_API_KEY") from None
        except openai.APITimeoutError:
            raise UsageError(f"{self.name} did not answer within {CONNECT_S:.0f} s; check --base-url") from None
        except openai.APIConnectionError as error:
            reason = say(error.__cause__ or error)
            raise UsageError(
                f"cannot reach {self.name} ({reason}): start an engine with `watchword serve`, or name another "
                "server with --base-url"
            ) from None
        except openai.InternalServerError as error:
            raise UsageError(f"{self.name} cannot be measured now: status {error.status_code}, {say(error)}") from None
        except openai.APIStatusError as error:
            raise UsageError(
                f"{self.name} answered {error.status_code} when asked for its models: is this an OpenAI API? "
                "Its address usually ends in /v1"
            ) from None
        if listed is None:
            raise UsageError(f"{self.name} does not speak the OpenAI API; its address usually ends in /v1")
        if not listed and not self._given_model:
            raise UsageError(f"{self.name} lists no model: name one with --model")
        self._found_model = next(iter(listed), "")
        self.max_model_len = listed.get(self.model)

    async def ask(
        self,
        messages: Sequence[Mapping[str, Any]],
        max_tokens: int,
        recording: Recording,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> Recording:
        """Stream one answer into `recording`, which is ended on every way out, and return it.

        Raises `AskError` for whatever the server did wrong or refused. Cancelling ends the request.
        """
        try:
            async with await self._open(messages, max_tokens, headers) as stream:
                await _read(stream, recording)
        except asyncio.CancelledError:
            recording.end(Outcome.CUT, time.monotonic())
            raise
        except (openai.OpenAIError, ValueError, AskError) as error:
            line = _why(error)
            recording.end(Outcome.FAILED, time.monotonic(), line)
            raise AskError(line) from error
        recording.end(Outcome.OK, time.monotonic())
        return recording

    async def _open(
        self, messages: Sequence[Mapping[str, Any]], max_tokens: int, headers: Mapping[str, str] | None
    ) -> AsyncStream[ChatCompletionChunk]:
        body: dict[str, Any] = {
            "model": self.model,
            "messages": messages,
            "max_tokens": max_tokens,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "extra_headers": headers,
        }
        create = self._client.chat.completions.create
        if not self.ignores_eos:
            return await create(**body)
        try:
            return await create(**body, extra_body={"ignore_eos": True})
        except (openai.BadRequestError, openai.UnprocessableEntityError):
            stream = await create(**body)  # raises if ignore_eos was not what was wrong
            self.ignores_eos = False
            self._say("the server refuses ignore_eos, so answers end where its model ends them")
            return stream


async def _read(stream: AsyncStream[ChatCompletionChunk], recording: Recording) -> None:
    if "html" in stream.response.headers.get("content-type", ""):
        raise AskError("a web page came instead of an answer")
    finished = False
    async for chunk in stream:
        now = time.monotonic()
        if chunk.usage:
            recording.prompt_tokens, recording.completion_tokens = (
                chunk.usage.prompt_tokens,
                chunk.usage.completion_tokens,
            )
        for choice in chunk.choices:
            recording.take(choice.delta.content, now)
            finished = finished or choice.finish_reason is not None
    if not finished:
        raise AskError("the answer broke off")
    if not recording.num_tokens:
        raise AskError("the answer had no words")


def _models(body: str) -> dict[str, int | None] | None:
    """Names served here with their context lengths, where told; None if this is no list of models."""
    try:
        listed = json.loads(body)["data"]
        return {str(model["id"]): model.get("max_model_len") for model in listed}
    except (ValueError, LookupError, TypeError, AttributeError):
        return None


def _why(error: Exception) -> str:
    if isinstance(error, openai.APIConnectionError):
        return f"no connection ({say(error.__cause__ or error)})"
    if isinstance(error, openai.APIStatusError):
        return f"status {error.status_code}, {say(error)}"
    return say(error)
