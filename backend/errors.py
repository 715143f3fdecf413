"""The engine's errors, by what the caller can do about them. Messages are one line, fit to be shown to a user."""

from __future__ import annotations


class EngineError(Exception):
    """Base of everything the engine raises on purpose."""


class Rejected(EngineError):
    """The request can never be served as it is (HTTP 400). `param` names the field, `code` is machine-readable."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class Overloaded(EngineError):
    """The waiting queue is full (HTTP 429 with `Retry-After`)."""

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class EngineDead(EngineError):
    """The engine thread ended on an error; nothing more will be computed by this process (HTTP 503)."""


class Stopping(EngineDead):
    """The engine takes nothing new because it was asked to stop (HTTP 503)."""


class Cancelled(EngineError):
    """The request was cancelled, by its client or by a drain."""


class ConfigError(EngineError):
    """A setting is wrong: the message names it, its value's kind and what is allowed (exit code 2)."""


class ModelLoadError(EngineError):
    """The model cannot be loaded: unknown id, missing weights, unsupported family (exit code 2)."""


def one_line(error: Exception) -> str:
    """The first line of an error's message, or its type's name."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
