"""What a page shows, scene by scene: the same site goes through every state that a person may meet it in."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

import numpy as np

from backend.startup import Phase, Progress
from camera_sources.base import SourceState, SourceStatus
from camera_sources.frame import Frame
from pipeline.events import EventStatus, Reason, Selection
from pipeline.feed import CameraRemoved, CaptionDelta, CaptionQueued, EventEnded, FrameSeen, StoreChanged
from pipeline.store import EventStore
from tests.e2e.scripted_cameras import ScriptedCameras
from tests.e2e.scripted_site import SIZE, an_event, fill, picture, track
from tests.unit.pipeline.scripted_server import Refusal, ScriptedServer, Words
from tests.unit.ui.scripted_engine import ScriptedEngine, a_step
from ui.web.board import MAX_CARDS, Board
from ui.web.engine_link import EngineLink

ANSWER = Words(("A ", "man ", "with ", "a ", "dog, ", "and ", "later ", "two ", "people ", "with ", "a ", "ladder."))
LIVE = SourceStatus(SourceState.LIVE)


@dataclass
class Stage:
    """Board, store, engines and cameras of one site.

    `play` keeps pictures and steps coming; `show` changes the scene, and returns when the page can be told.
    """

    board: Board
    store: EventStore
    link: EngineLink
    engine: ScriptedEngine
    talker: ScriptedServer
    running: AsyncExitStack
    cameras: ScriptedCameras

    async def show(self, scene: str) -> None:
        """Change to the scene of that name."""
        scenes: dict[str, Callable[[], Awaitable[None]]] = {
            "loading": self._loading,
            "live": self._live,
            "camera-down": self._camera_down,
            "backend-down": self._backend_down,
            "error": self._error,
            "other-engine": self._other_engine,
        }
        await scenes[scene]()
        await self.link.poll()

    async def play(self) -> None:
        """Pictures and steps, ten a second."""
        reels = [[picture(index, seq) for seq in range(40)] for index in range(8)]
        for seq in range(10**9):
            for index, (camera, status) in enumerate(list(self.cameras.statuses.items())):
                self.cameras.tell(camera)
                if status.state is SourceState.LIVE:
                    seen = time.monotonic() - 0.12
                    self.board.take(FrameSeen(camera, seq, *SIZE, reels[index][seq % 40], (track(seq % 40),), seen))
            busy = seq % 30 < 4
            step = a_step(seq, elapsed_ms=80.0 if busy else 22.0, prefill_tokens=60 if busy else 0, encoder_slices=busy)
            if self.cameras.statuses:
                self.engine.steps = [*self.engine.steps[-400:], step]
            await asyncio.sleep(0.1)

    async def _loading(self) -> None:
        self.cameras.statuses |= {name: SourceStatus(SourceState.CONNECTING) for name in ("yard", "door", "gate")}
        self.engine.loading = Progress(
            Phase.KERNELS,
            "Measuring how the text model runs best here; kernels are compiled once per machine (a minute) …",
            31.0,
            44.0,
        )

    async def _live(self) -> None:
        self.engine.loading = None
        self.cameras.statuses |= dict.fromkeys(("yard", "door", "gate"), LIVE)
        await asyncio.to_thread(fill, self.store, list(self.cameras.statuses), 30)
        self.board.restore(self.store.recent(MAX_CARDS))
        now, wall = time.monotonic(), time.time()
        for number, (camera, ago_s) in enumerate((("door", 9.0), ("gate", 5.0), ("yard", 2.0))):
            times = {
                "t_captured": now - ago_s,
                "t_sent": now - ago_s + 0.2,
                "t_first_token": now - ago_s + 0.8,
                "t_last_token": now - ago_s + 2.0,
            }
            event = an_event(1000 + number, camera, wall - ago_s, zone="by the gate" if camera == "gate" else None)
            await self._caption(event.event_id, camera, now - ago_s, wall - ago_s)
            if camera != "yard":
                kept = await asyncio.to_thread(
                    self.store.add, an_event(1000 + number, camera, wall - ago_s, **times), picture(1, 9)
                )
                self.board.take(EventEnded(kept))

    async def _caption(self, event_id: str, camera: str, t_mono: float, t_wall: float) -> None:
        frame = Frame(camera, 9, t_mono, t_wall, 1.0, np.zeros((9, 16, 3), np.uint8))
        selection = Selection(event_id, frame, (track(9),), (7,), Reason.NEW_TRACK, t_mono)
        self.board.take(CaptionQueued(selection, picture(1, 9)))
        for word in ("A ", "man ", "in ", "a ", "red "):
            self.board.take(CaptionDelta(event_id, word, time.monotonic()))

    async def _camera_down(self) -> None:
        self.cameras.statuses["door"] = SourceStatus(SourceState.DOWN, "connection refused by door:554")
        self.cameras.statuses["gate"] = SourceStatus(SourceState.STALE, "no picture for 6 s")
        self.cameras.statuses["shed"] = SourceStatus(SourceState.DOWN, "the user or the password is wrong")

    async def _backend_down(self) -> None:
        self.cameras.statuses.pop("shed")
        self.board.take(CameraRemoved("shed"))
        self.cameras.statuses |= dict.fromkeys(("door", "gate"), LIVE)
        await self.running.aclose()

    async def _error(self) -> None:
        await self.running.enter_async_context(self.engine)
        await self.running.enter_async_context(self.talker)
        self.talker.script = [Refusal(400, "this model reads no pictures")]
        self.board.take(StoreChanged("no space left on the disk", 3, 0))
        why = "the backend did not answer within 120 s"
        failed = an_event(2000, "gate", time.time(), status=EventStatus.FAILED, caption=None, error=why)
        self.board.take(EventEnded(failed))

    async def _other_engine(self) -> None:
        self.engine.is_ours, self.link.is_own = False, False
        self.talker.script = [ANSWER]
        self.board.take(StoreChanged("", 0, 0))
