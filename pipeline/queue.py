"""The selections of one camera that wait for the backend, and who may push whom out. Pure: no clock, no tasks.

- A newer selection supersedes a waiting follow-up (`INTERVAL`, `CHANGE`) whose subjects it also shows.
- The first caption of a track (`NEW_TRACK`) is never superseded, and never cancelled because its track ended.
- A waiting follow-up is cancelled when all its subjects have ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pipeline.events import CaptionJob, Reason


@dataclass(slots=True)
class _Waiting:
    job: CaptionJob
    subjects_left: set[int]

    @property
    def is_follow_up(self) -> bool:
        return self.job.selection.reason is not Reason.NEW_TRACK


class CaptionQueue:
    """Jobs in the order they were selected. What a method returns has left the queue; its caller ends it."""

    def __init__(self) -> None:
        self._waiting: list[_Waiting] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, job: CaptionJob) -> list[CaptionJob]:
        """Queue `job`; returns what it superseded."""
        shown = {track.track_id for track in job.selection.tracks}
        seq = job.selection.frame.seq  # of people who went untold it may be an older picture, which replaces nothing
        superseded = self._remove(
            lambda waiting: (
                waiting.is_follow_up and waiting.subjects_left <= shown and waiting.job.selection.frame.seq <= seq
            )
        )
        self._waiting.append(_Waiting(job, set(job.selection.subject_ids)))
        return superseded

    def end_tracks(self, track_ids: Iterable[int]) -> list[CaptionJob]:
        """These tracks ended; returns the follow-ups that nobody is left for."""
        ended = set(track_ids)
        for waiting in self._waiting:
            waiting.subjects_left -= ended
        return self._remove(lambda waiting: waiting.is_follow_up and not waiting.subjects_left)

    def try_take(self) -> CaptionJob | None:
        """The oldest job, or None."""
        return self._waiting.pop(0).job if self._waiting else None

    def drain(self) -> list[CaptionJob]:
        """Everything that waits."""
        return self._remove(lambda _: True)

    def _remove(self, goes: Callable[[_Waiting], bool]) -> list[CaptionJob]:
        gone = [waiting.job for waiting in self._waiting if goes(waiting)]
        self._waiting = [waiting for waiting in self._waiting if not goes(waiting)]
        return gone
