"""Somebody who has the page open all the while: notes what it announces, and when; comes back when it was away."""

from __future__ import annotations

import json
import struct
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection, connect

AGAIN_S = 0.2


@dataclass(slots=True)
class Told:
    """One event as the page showed it. Times are monotonic; `t_final` is when the page said that it had ended."""

    camera: str
    state: str
    text: str
    t_first: float
    t_final: float | None = None


class Witness:
    """Follows `/live/socket` of `page` on a thread of its own, as a context manager.

    What the page restored from an earlier run of the app is no news to it.
    """

    def __init__(self, page: str) -> None:
        self._url = page.replace("http://", "ws://") + "/live/socket"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._lock = threading.Lock()
        self._told: dict[str, Told] = {}
        self._pictures: defaultdict[str, list[float]] = defaultdict(list)
        self.trouble = ""
        self.states: dict[str, str] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(5)

    def told(self) -> dict[str, Told]:
        """Everything the page told of so far, by event."""
        with self._lock:
            return dict(self._told)

    def announced(self, since: float = float("-inf")) -> dict[str, Told]:
        """Those that the page said had ended, after `since`."""
        return {i: one for i, one in self.told().items() if one.t_final is not None and one.t_final >= since}

    def described(self, since: float, camera: str | None = None) -> list[float]:
        """When events that came up after `since` were described, in order."""
        return sorted(
            one.t_final
            for one in self.announced(since).values()
            if one.t_first >= since and one.state == "ok" and one.t_final and camera in (None, one.camera)
        )

    def pictures(self, camera: str, since: float, until: float) -> list[float]:
        """When the page showed a new picture of `camera`."""
        with self._lock:
            return [t for t in self._pictures[camera] if since <= t <= until]

    def _follow(self) -> None:
        while not self._stop.is_set():
            try:
                with connect(self._url, open_timeout=5, close_timeout=1, max_size=None) as socket:
                    self._listen(socket)
            except (OSError, TimeoutError, WebSocketException):
                self._stop.wait(AGAIN_S)

    def _listen(self, socket: ClientConnection) -> None:
        while not self._stop.is_set():
            try:
                message = socket.recv(timeout=0.5)
            except TimeoutError:
                continue
            now = time.monotonic()
            if isinstance(message, bytes):
                (length,) = struct.unpack(">H", message[:2])
                camera = json.loads(message[2 : 2 + length])["camera"]
                with self._lock:
                    self._pictures[camera].append(now)
                socket.send(camera)
            else:
                self._read(json.loads(message), now)

    def _read(self, news: dict[str, Any], now: float) -> None:
        if news["kind"] == "cameras":
            self.states = {camera["id"]: camera["state"] for camera in news["cameras"]}
        if news["kind"] != "cards":
            return
        self.trouble = news["trouble"]
        with self._lock:
            for card in news["cards"]:
                if not card["is_past"] or card["id"] in self._told:
                    self._note(card, now)

    def _note(self, card: dict[str, Any], now: float) -> None:
        one = self._told.setdefault(card["id"], Told(card["camera"], "", "", now))
        one.state, one.text = card["state"], card["text"]
        if card["is_final"] and one.t_final is None:
            one.t_final = now
