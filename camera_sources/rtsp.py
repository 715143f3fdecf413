"""A network camera: RTSP (over TCP unless told otherwise), RTMP, HTTP. Knows URLs; `live.py` reads and recovers."""

from __future__ import annotations

from urllib.parse import urlsplit

from camera_sources.base import SourceError
from camera_sources.live import Deadlines, LiveSource
from camera_sources.url import redact, split_credentials, with_credentials

TRANSPORTS = ("tcp", "udp")
SCHEMES = ("rtsp", "rtsps", "rtmp", "rtmps", "http", "https")


class RtspSource(LiveSource):
    """A stream by its URL. A password may be percent-encoded or typed as it is; it travels by pipe only."""

    def __init__(self, url: str, *, camera_id: str, deadlines: Deadlines | None = None, transport: str = "tcp") -> None:
        """Raises `SourceError` for a URL or a transport that cannot work."""
        check_url(url)
        if transport not in TRANSPORTS:
            raise SourceError(f"{redact(url)}: unknown transport {transport!r}; use one of {', '.join(TRANSPORTS)}")
        super().__init__(with_credentials(url), camera_id=camera_id, deadlines=deadlines, transport=transport)


def check_url(url: str) -> None:
    """Raise `SourceError` unless `url` has a known scheme, a host and, if any, a port that is a number."""
    bare, _, _ = split_credentials(url)
    try:
        parts = urlsplit(bare)
        host, scheme, _port = parts.hostname, parts.scheme.lower(), parts.port
    except ValueError:
        raise SourceError(f"{redact(url)}: not a valid URL; check its host and port") from None
    if scheme not in SCHEMES:
        raise SourceError(f"{redact(url)}: unknown scheme '{scheme}'; use one of {', '.join(SCHEMES)}")
    if not host:
        raise SourceError(f"{redact(url)}: no host in this URL; write {scheme}://host/path")
