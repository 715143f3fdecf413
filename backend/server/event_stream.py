"""What every reply has beside its words: a stream that ends its request on every way out, and one line in the log.

Logs ids, sizes and times, never content. Knows no endpoint.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable

from starlette.responses import StreamingResponse
from starlette.types import Send

from backend.server.request_id import request_id
from backend.text import Answer

log = logging.getLogger("watchword.server")


class EventStream(StreamingResponse):
    """Server-sent events of one reply; `close` is called on every way out, a client's leaving included."""

    def __init__(self, events: AsyncIterator[bytes], close: Callable[[], None]) -> None:
        super().__init__(
            events,
            media_type="text/event-stream",
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
        )
        self._close = close

    async def stream_response(self, send: Send) -> None:
        """Send until the end or the client's leave, then close."""
        try:
            await super().stream_response(send)
        finally:
            self._close()


class AnswerLog:
    """The times of one answer, and its line in the log. Made when the request is submitted."""

    def __init__(self) -> None:
        self._http_id = request_id.get()
        self._t_begin = time.monotonic()
        self._t_first: float | None = None

    def first_piece(self) -> None:
        """Text has come; only the first call counts."""
        self._t_first = self._t_first or time.monotonic()

    def write(self, answer: Answer, why: str | None) -> None:
        """One line about an answer that has ended; `why` explains an early end."""
        request = answer.request
        log.info(
            "%s %s %s prompt_tokens=%d completion_tokens=%d images=%d ttft_s=%s total_s=%.3f end=%s",
            self._http_id,
            request.request_id,
            request.request_class.value,
            len(request.prompt.token_ids),
            answer.num_tokens,
            len(request.prompt.images),
            "-" if self._t_first is None else f"{self._t_first - self._t_begin:.3f}",
            time.monotonic() - self._t_begin,
            why or (answer.finish_reason or "client gone"),
        )
