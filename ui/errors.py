"""Any error as one line fit to be shown: what happened, without traceback, payload or credentials."""

from __future__ import annotations

from camera_sources.url import redact

MAX_CHARS = 300


def say(error: BaseException) -> str:
    """One line for `error`. An OpenAI error body's own message wins over the client's wrapping of it."""
    body = getattr(error, "body", None)
    message = body.get("message") if isinstance(body, dict) else None
    line = " ".join(redact(str(message or error) or type(error).__name__).split())
    return line if len(line) <= MAX_CHARS else line[: MAX_CHARS - 1] + "…"
