"""A source's URL and its credentials: put together for the camera, taken out for everybody else."""

from __future__ import annotations

from urllib.parse import quote, urlsplit, urlunsplit

from camera_sources.url import redact, split_credentials


def join_credentials(url: str, username: str, password: str | None) -> str:
    """`url`, which has no credentials, with these in it, percent-encoded."""
    parts = urlsplit(url)
    userinfo = quote(username, safe="") + ("" if password is None else f":{quote(password, safe='')}")
    return urlunsplit(parts._replace(netloc=f"{userinfo}@{parts.netloc}"))


def shown(source: str) -> str:
    """A source as the API tells it: without user and password, and other secrets masked."""
    return redact(split_credentials(source)[0])


def host_of(source: str) -> str | None:
    """Whom a password given for this source would go to; None for a file, a folder or a webcam."""
    if "://" not in source or source.startswith("file:"):
        return None
    parts = urlsplit(split_credentials(source)[0])
    try:
        return f"{parts.scheme}://{parts.hostname}:{parts.port}"
    except ValueError:
        return None
