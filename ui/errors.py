"""Errors as a person meets them: which ones are theirs to solve, and any of them as one line.

A line says what happened, without traceback, payload or credentials.
"""

from __future__ import annotations

import re

from camera_sources.url import redact

MAX_CHARS = 300

_CHECKS = [
    (re.compile(words), ours)
    for words, ours in (
        (r"Input should be a valid integer(, .*)?", "it takes a whole number"),
        (r"Input should be a valid number(, .*)?", "it takes a number"),
        (r"Input should be less than or equal to (\S+)", r"it is at most \1"),
        (r"Input should be greater than or equal to (\S+)", r"it is at least \1"),
    )
]
"""What the checks of numbers say of a flag, and what we say."""


class UsageError(Exception):
    """What was asked for cannot work: one line that names the thing and what to do."""


def is_users(error: Exception) -> bool:
    """Whether `error` has its cause outside the program: a setting, a file, a camera, a server, a port."""
    from backend.errors import EngineError
    from camera_sources.base import SourceError

    if isinstance(error, (UsageError, EngineError, SourceError)):
        return True
    # These live beside heavy libraries; an error of theirs can only exist where they are loaded already.
    named = {"StoreError", "JsonlError", "ExportError", "SettingsError", "DetectorError", "OpenAIError"}
    return any(kind.__name__ in named for kind in type(error).__mro__)


def is_broken(error: Exception) -> bool:
    """Whether a part of the running program broke and said so in one line (its traceback was logged)."""
    return type(error).__name__ == "PipelineError"


def say(error: BaseException) -> str:
    """One line for `error`. An OpenAI error body's own message wins over the client's wrapping of it."""
    if type(error).__name__ == "APIConnectionError":  # whose own words are "Connection error."
        if broke_off(error):
            return "the backend stopped while answering"  # the HTTP library's own words are of chunks and peers
        return "no answer from the engine"
    body = getattr(error, "body", None)
    message = body.get("message") if isinstance(body, dict) else None
    line = " ".join(redact(str(message or error) or type(error).__name__).split())
    return line if len(line) <= MAX_CHARS else line[: MAX_CHARS - 1] + "…"


def of_arguments(message: str) -> str:
    """What the command line's own check says of a mistake, in a person's words."""
    message = message.rstrip(".").replace("Value error, ", "").replace(". Did you mean ", "; did you mean ").rstrip("?")
    for theirs, ours in _CHECKS:
        message = theirs.sub(ours, message)
    return message[:1].lower() + message[1:] if message[:3] in ("No ", "Mis", "Inv") else message


def broke_off(error: BaseException) -> bool:
    """Whether a connection to the backend was lost while it was answering."""
    return type(error.__cause__).__name__ in ("RemoteProtocolError", "ReadError")
