"""Scriptable parts that keep the pipeline's protocols: frames from a list, persons by rule, captions on demand."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from camera_sources.base import SourceState, SourceStatus
from camera_sources.frame import Frame
from pipeline.captioner import CaptionError, Progress
from pipeline.events import Box, Caption, CaptionJob, Detection, Reason, Selection, Track

PERSON = Box(100, 60, 180, 220, 0.9)


def frame(
    seq: int = 0, *, pts_s: float | None = None, camera_id: str = "cam", size: tuple[int, int] = (320, 240)
) -> Frame:
    """A grey picture; without `pts_s` at 10 frames a second."""
    return Frame(camera_id, seq, time.monotonic(), time.time(), seq / 10 if pts_s is None else pts_s, _grey(size))


@cache
def _grey(size: tuple[int, int]) -> NDArray[np.uint8]:
    image = np.full((size[1], size[0], 3), 80, dtype=np.uint8)
    image.flags.writeable = False
    return image


def track(track_id: int, box: Box = PERSON, num_hits: int = 2) -> Track:
    return Track(track_id, box, num_hits)


def job(event_id: str, subjects: Sequence[int], reason: Reason, shown: Sequence[int] | None = None) -> CaptionJob:
    """A job whose picture shows `shown` (its subjects, if not given)."""
    tracks = tuple(track(i) for i in (subjects if shown is None else shown))
    selection = Selection(event_id, frame(), tracks, tuple(subjects), reason, time.monotonic())
    return CaptionJob(selection, b"jpeg of " + event_id.encode(), "Describe the image.")


class ListSource:
    """A source that delivers `frames`: as fast as they are read, or one every `every_s` seconds."""

    def __init__(
        self, frames: Sequence[Frame], *, camera_id: str = "cam", is_live: bool = False, every_s: float = 0.0
    ) -> None:
        self.camera_id = camera_id
        self.is_live = is_live
        self.num_read = 0
        self._frames = list(frames)
        self._every_s = every_s
        self._state = SourceState.CONNECTING

    def start(self) -> None:
        self._state = SourceState.LIVE

    def read(self, timeout_s: float) -> Frame | None:
        if self._state is not SourceState.LIVE or self.num_read == len(self._frames):
            self._state = SourceState.ENDED
            return None
        time.sleep(min(self._every_s, timeout_s))
        self.num_read += 1
        return self._frames[self.num_read - 1]

    def status(self) -> SourceStatus:
        return SourceStatus(self._state, num_frames=self.num_read)

    def stop(self) -> None:
        self._state = SourceState.ENDED


class RuleDetector:
    """Sees the boxes that `rule` gives for a frame."""

    def __init__(self, rule: Callable[[Frame], Sequence[Box]]) -> None:
        self._rule = rule
        self.batches: list[tuple[str, ...]] = []

    def detect(self, frames: Sequence[Frame]) -> list[Detection]:
        self.batches.append(tuple(f.camera_id for f in frames))
        return [Detection(f, tuple(self._rule(f))) for f in frames]


class ScriptedCaptioner:
    """Answers each call by the next step of the script (the last one goes on): words, an error, or a wait for `go`."""

    def __init__(self, *script: str | CaptionError, wait: bool = False) -> None:
        self._script = list(script or ("Somebody stands.",))
        self.calls: list[CaptionJob] = []
        self.num_running = 0
        self.most_running = 0
        self.go = asyncio.Event()
        self.closed = False
        if not wait:
            self.go.set()

    async def caption(self, job: CaptionJob, progress: Progress) -> Caption:
        self.calls.append(job)
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        try:
            return await self._answer(job, progress)
        finally:
            self.num_running -= 1

    async def close(self) -> None:
        self.closed = True

    async def _answer(self, job: CaptionJob, progress: Progress) -> Caption:
        step = self._script.pop(0) if len(self._script) > 1 else self._script[0]
        t_sent = time.monotonic()
        await self.go.wait()
        if isinstance(step, CaptionError):
            raise step
        progress.sent(t_sent)
        t_first = time.monotonic()
        for word in step.split():
            progress.words(word + " ", time.monotonic())
            await asyncio.sleep(0)
        shown = job.selection.frame
        return Caption(shown.camera_id, shown.seq, shown.t_mono, step, "scripted", t_sent, t_first, time.monotonic())
