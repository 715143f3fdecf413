"""Asks an OpenAI-compatible server for the words of one job: one try, streamed, with its times.

Knows the protocol and nothing of queues, retries or events. `CaptionError` says whether another try makes sense.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from typing import Protocol

import openai
from openai import AsyncOpenAI, AsyncStream
from openai.types.chat import ChatCompletionChunk

from camera_sources.url import redact
from pipeline.answer import Answer, JsonAnswer, TextAnswer
from pipeline.base_url import check_base_url
from pipeline.config import PipelineConfig
from pipeline.details import PROBE_SCHEMA, is_probe_passed, response_format
from pipeline.events import Caption, CaptionJob
from pipeline.plain_text import plain
from pipeline.prompt import message

BACKGROUND = {"X-Request-Class": "background"}
RETRYABLE_STATUS = frozenset({408, 409, 429})
LONGEST_DETAIL = 200
CONNECT_S = 10.0
PROBE_TOKENS = 16
SCHEMA_REFUSED = frozenset({400, 422, 501})

log = logging.getLogger(__name__)


class CaptionError(Exception):
    """No caption this time. One line, free of credentials and pictures; `retry_after_s` is the server's own wish."""

    def __init__(self, message: str, *, retryable: bool, retry_after_s: float | None = None) -> None:
        super().__init__(one_line(message))
        self.retryable = retryable
        self.retry_after_s = retry_after_s


class Progress(Protocol):
    """Told how a try goes, on the event loop, with monotonic times."""

    def sent(self, t_sent: float) -> None:
        """The request reached the server at `t_sent`. Called at most once per try, before any words."""
        ...

    def words(self, text: str, t_token: float) -> None:
        """More words arrived."""
        ...


class Captioner(Protocol):
    """What turns a job into a caption."""

    async def caption(self, job: CaptionJob, progress: Progress) -> Caption:
        """One try. Raises `CaptionError`; cancelling it ends the request."""
        ...

    async def close(self) -> None:
        """Free what it holds."""
        ...


class OpenAICaptioner:
    """A `Captioner` over chat completions. Without a model name it takes the first that the server lists.

    Words come out without control characters. Raises `BaseUrlError`, a ValueError, for an address that is none.
    """

    def __init__(self, config: PipelineConfig) -> None:
        self._name = redact(config.base_url)
        self._given_model = config.model
        self._found_model: str | None = None
        self._offers_schema: bool | None = None  # not known yet
        self._max_tokens = config.max_caption_tokens
        self._silence_s = config.retry.deadline_s
        self._client = AsyncOpenAI(
            base_url=check_base_url(config.base_url),
            api_key=config.api_key or "none",  # never the environment's: that key belongs to another server
            max_retries=0,
            timeout=openai.Timeout(self._silence_s, connect=min(CONNECT_S, self._silence_s)),
        )

    async def caption(self, job: CaptionJob, progress: Progress) -> Caption:
        """See `Captioner.caption`."""
        try:
            model = await self._model()
            answer = JsonAnswer() if job.wants_details and await self._offers_json(model) else TextAnswer()
            stream, t_sent = await self._send(job, model, answer, progress)
            async with stream:
                return await self._read(stream, job, model, answer, t_sent, progress)
        except openai.APIStatusError as error:
            if error.status_code == 404:
                self._found_model = None  # another model may be served by now
            raise self._refused(error) from error
        except openai.APITimeoutError as error:
            raise CaptionError(f"{self._name} did not answer in time", retryable=True) from error
        except openai.APIConnectionError as error:
            raise CaptionError(self._disconnected(error.__cause__), retryable=True) from error
        except openai.APIError as error:  # an error event inside a stream
            raise CaptionError(f"{self._name}: {error.message}", retryable=not _blames_client(error)) from error
        except (openai.OpenAIError, ValueError) as error:  # what is not the protocol at all: HTML, broken JSON
            raise CaptionError(f"{self._name} does not speak the OpenAI API: {error}", retryable=False) from error
        except ExceptionGroup as error:  # what the HTTP library's connection attempts raise and nobody translates
            causes = ", ".join(str(cause) for cause in error.exceptions)
            raise CaptionError(f"{self._name} cannot be asked: {causes}", retryable=True) from error

    async def close(self) -> None:
        """See `Captioner.close`."""
        await self._client.close()

    async def _model(self) -> str:
        if self._given_model:
            return self._given_model
        if self._found_model is None:
            page = await self._client.models.list()
            if not page.data:
                raise CaptionError(f"{self._name} serves no model; name one", retryable=True)
            self._found_model = page.data[0].id
        return self._found_model

    async def _offers_json(self, model: str) -> bool:
        """Whether the server can be held to a JSON schema; asked once, before the first caption that would need it."""
        if self._offers_schema is None:
            self._offers_schema = await self._probe(model)
            if not self._offers_schema:
                log.warning("%s offers no structured output (JSON schema): captions are plain text", self._name)
        return self._offers_schema

    async def _probe(self, model: str) -> bool:
        try:
            reply = await self._client.chat.completions.create(
                model=model,
                messages=[{"role": "user", "content": 'Answer with {"ok": true}.'}],
                max_tokens=PROBE_TOKENS,
                temperature=0.0,
                response_format=response_format("probe", PROBE_SCHEMA),
                extra_headers=BACKGROUND,
            )
        except openai.APIStatusError as error:
            if error.status_code in SCHEMA_REFUSED:
                return False
            raise
        return bool(reply.choices) and is_probe_passed(reply.choices[0].message.content)

    async def _send(
        self, job: CaptionJob, model: str, answer: Answer, progress: Progress
    ) -> tuple[AsyncStream[ChatCompletionChunk], float]:
        """The answering stream and when it was asked for. A refusal was sent, too."""
        t_sent = time.monotonic()
        try:
            stream = await self._client.chat.completions.create(
                model=model,
                messages=[message(job, answer.asked)],
                max_tokens=self._max_tokens * answer.num_times_longer,
                temperature=0.0,
                response_format=answer.response_format,
                stream=True,
                extra_headers=BACKGROUND,
            )
        except openai.APIStatusError:
            progress.sent(t_sent)
            raise
        progress.sent(t_sent)
        if "html" in stream.response.headers.get("content-type", ""):
            await stream.close()
            raise CaptionError(f"{self._name} is a web page, not an OpenAI API; check --base-url", retryable=False)
        return stream, t_sent

    async def _read(
        self,
        stream: AsyncStream[ChatCompletionChunk],
        job: CaptionJob,
        model: str,
        answer: Answer,
        t_sent: float,
        progress: Progress,
    ) -> Caption:
        t_first, t_last, finished = math.nan, math.nan, False
        async for chunk in stream:
            if not chunk.choices:
                continue
            choice = chunk.choices[0]
            finished = finished or choice.finish_reason is not None
            if piece := choice.delta.content:
                words = answer.take(piece)
                if words or answer.shows_later:
                    t_last = time.monotonic()
                    t_first = t_last if math.isnan(t_first) else t_first
                if words:
                    progress.words(words, t_last)
        if not finished:
            raise CaptionError(f"{self._name} broke off the stream", retryable=True)
        text, details = answer.result()
        if not text:
            raise CaptionError(f"{self._name} ({model}) answered without words", retryable=False)
        frame = job.selection.frame
        return Caption(frame.camera_id, frame.seq, frame.t_mono, text, plain(model), t_sent, t_first, t_last, details)

    def _disconnected(self, cause: BaseException | None) -> str:
        """What a failed connection means; of the HTTP library's words only those about a certificate tell anything.

        Told by its name: which HTTP library the client uses is the client's business.
        """
        if type(cause).__name__ != "ConnectError":
            return f"the engine at {self._name} broke off the connection"
        return f"no answer from the engine at {self._name}" + (f" ({cause})" if "SSL" in str(cause) else "")

    def _refused(self, error: openai.APIStatusError) -> CaptionError:
        status = error.status_code
        return CaptionError(
            f"{self._name} answered {status}: {_detail(error)}",
            retryable=status in RETRYABLE_STATUS or status >= 500,
            retry_after_s=_retry_after_s(error.response.headers),
        )


def one_line(text: str) -> str:
    """`text` on one line, at most `LONGEST_DETAIL` long, without credentials or an echoed picture."""
    flat = " ".join(plain(redact(text.split(";base64,")[0])).split())
    return flat if len(flat) <= LONGEST_DETAIL else flat[: LONGEST_DETAIL - 1] + "…"


def _detail(error: openai.APIStatusError) -> str:
    body = error.body
    if isinstance(body, Mapping) and isinstance(body.get("message"), str):
        return body["message"]
    return error.response.reason_phrase or error.message


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """The seconds of a `Retry-After` header; None if absent or given as a date."""
    try:
        seconds = float(headers.get("retry-after", ""))
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None


def _blames_client(error: openai.APIError) -> bool:
    """Whether an in-stream error carries a 4xx code that another try would meet again."""
    code = str(error.code or "")
    return code.isdigit() and 400 <= int(code) < 500 and int(code) not in RETRYABLE_STATUS
