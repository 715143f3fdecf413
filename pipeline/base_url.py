"""Whether the address of an OpenAI-compatible backend is one, said before any client tries it. Asks no network."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from camera_sources.url import redact, split_credentials
from pipeline.plain_text import plain

EXAMPLE = "http://127.0.0.1:8000/v1"
_HOST = re.compile(r"[^\s/?#@\\<>\"{}|^`]+")


class BaseUrlError(ValueError):
    """An address that no client can use. One line, credentials redacted."""


def check_base_url(url: str) -> str:
    """`url`, if it is an HTTP address with a host and, if any, a port from 1 to 65535; else raises `BaseUrlError`."""
    problem = _problem(url)
    if problem:
        raise BaseUrlError(f"{plain(redact(url)) or 'the base URL'} {problem}; an address looks like {EXAMPLE}")
    return url


def _problem(url: str) -> str:
    """What is wrong, as the end of a sentence that begins with the URL; empty if nothing is."""
    if not url:
        return "is empty"
    if plain(url) != url or " " in url:
        return "holds blanks or control characters"
    try:
        parts = urlsplit(split_credentials(url)[0])
    except ValueError:
        return "has a malformed host"
    if parts.scheme not in ("http", "https"):
        return "does not begin with http:// or https://"
    if not parts.hostname or not _HOST.fullmatch(parts.hostname):
        return "names no host" if not parts.hostname else "has a malformed host"
    try:
        port = parts.port
    except ValueError:
        port = 0
    return "has a port that is not a number from 1 to 65535" if port == 0 else ""
