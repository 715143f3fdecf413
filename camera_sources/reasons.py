"""Why a live camera is down, in words a person can act on, from how its capture process ended and what ffmpeg said."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from camera_sources.capture_protocol import Ending


@dataclass(frozen=True, slots=True)
class Reason:
    """One line for people. `is_refusal`: trying again soon cannot help and may lock the account."""

    text: str
    is_refusal: bool = False


# What ffmpeg prints (any version, RTSP and HTTP alike), the most telling first.
_TELLING: tuple[tuple[re.Pattern[str], Reason], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), reason)
    for pattern, reason in (
        (r"\b401\b|unauthorized", Reason("authentication failed (401); check user and password", is_refusal=True)),
        (r"\b403\b|forbidden", Reason("access forbidden (403); check the user's rights", is_refusal=True)),
        (r"\b404\b|not found", Reason("no such stream on this camera (404); check the path of the URL")),
        (r"\b503\b|service unavailable", Reason("the camera is busy or not ready (503)")),
        (
            r"\b461\b|unsupported transport",
            Reason("the camera refuses this transport (461); try the other of tcp and udp"),
        ),
        (r"\b5\d\d\b.*(?:error|server)", Reason("the camera reports an error of its own (5xx)")),
        (r"connection refused", Reason("connection refused; is the camera on, and the port right?")),
        (r"no route to host|network is unreachable", Reason("host unreachable; check the address and the network")),
        (
            r"failed to resolve|name or service|no address associated|temporary failure in name",
            Reason("host name unknown; check the address"),
        ),
        (r"timed out|timeout", Reason("no answer; check the address and the network")),
        (r"could not find codec parameters|decoder.*not found", Reason("its video cannot be decoded")),
        (r"connection reset|broken pipe", Reason("the camera closed the connection")),
        (r"invalid data found", Reason("what answers there is not a video stream")),
    )
)


def explain_ending(ending: Ending, detail: str, log: Iterable[str], open_timeout_s: float, waited_s: float) -> Reason:
    """Why a capture process that ended by itself did so. `log` is its stderr, `waited_s` how long it had run."""
    if ending is Ending.NO_OPENCV:
        return Reason(detail)
    if ending is Ending.BROKE_OFF:
        return Reason("the stream broke off")
    lines = list(log)
    for pattern, reason in _TELLING:
        if any(pattern.search(line) for line in lines):
            return reason
    if waited_s >= open_timeout_s:
        return Reason(f"no answer within {open_timeout_s:g} s; check the address and the network")
    return Reason("cannot be opened as a video stream")
