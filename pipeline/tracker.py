"""Follows the persons of one camera from frame to frame: ultralytics' ByteTrack, one per camera, ids of its own.

It reports only tracks matched to a detection of this very frame, with that detection's box: tracks that ByteTrack keeps
alive on prediction are not in view. What a track means for captions is the gate's business.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pipeline.config import GateConfig
from pipeline.events import Box, Detection, Track
from pipeline.yolo_import import import_ultralytics

if TYPE_CHECKING:
    from ultralytics.trackers.byte_tracker import STrack

FRAMES_FOREVER = 1 << 30  # ByteTrack forgets by frame count; here time decides, whatever the detector's rate


@dataclass(frozen=True, slots=True)
class _Boxes:
    """Boxes as ByteTrack reads them: `xywh` [N, 4] around centres, `conf` [N], `cls` [N]."""

    xywh: NDArray[np.float32]
    conf: NDArray[np.float32]
    cls: NDArray[np.float32]

    @classmethod
    def of(cls, boxes: tuple[Box, ...]) -> _Boxes:
        rows = np.array([[b.x1, b.y1, b.x2, b.y2, b.conf] for b in boxes], dtype=np.float32).reshape(-1, 5)
        centre, size = (rows[:, :2] + rows[:, 2:4]) / 2, rows[:, 2:4] - rows[:, :2]
        return cls(np.concatenate([centre, size], axis=1), rows[:, 4], np.zeros(len(rows), dtype=np.float32))

    def __len__(self) -> int:
        return len(self.conf)

    def __getitem__(self, index: NDArray[np.bool_]) -> _Boxes:
        return _Boxes(self.xywh[index], self.conf[index], self.cls[index])


class Tracker:
    """Gives the persons of one camera ids that last while they are seen, with gaps of up to `lost_s`. One thread only.

    A track starts on a detection of at least `min_confidence` and may be carried on by any the detector reports.
    """

    def __init__(self, config: GateConfig) -> None:
        import_ultralytics()
        from ultralytics.trackers.byte_tracker import BYTETracker
        from ultralytics.utils import IterableSimpleNamespace

        self._lost_s = config.lost_s
        self._seen: dict[int, tuple[float, int]] = {}  # track id -> when last matched, how often
        self._bytetrack = BYTETracker(
            IterableSimpleNamespace(
                track_high_thresh=config.min_confidence,
                track_low_thresh=0.0,
                new_track_thresh=config.min_confidence,
                track_buffer=FRAMES_FOREVER,
                match_thresh=0.8,
                fuse_score=True,
            )
        )

    def change(self, config: GateConfig) -> None:
        """Go by `config` from now on. Callable from any thread."""
        self._lost_s = config.lost_s
        self._bytetrack.args.track_high_thresh = self._bytetrack.args.new_track_thresh = config.min_confidence

    def update(self, detection: Detection, now_s: float) -> tuple[Track, ...]:
        """The tracks matched in this frame, tentative ones (`num_hits` 1) included; `now_s` is the gate's clock.

        ByteTrack moves whatever it could not match from its tracked to its lost tracks, so the tracked are the matched.
        """
        self._forget(now_s)
        self._bytetrack.update(_Boxes.of(detection.boxes))
        return tuple(self._track(strack, detection, now_s) for strack in self._bytetrack.tracked_stracks)

    def _track(self, strack: STrack, detection: Detection, now_s: float) -> Track:
        _, num_hits = self._seen.get(strack.track_id, (now_s, 0))
        self._seen[strack.track_id] = (now_s, num_hits + 1)
        return Track(strack.track_id, detection.boxes[int(strack.idx)], num_hits + 1)

    def _forget(self, now_s: float) -> None:
        """Drop what was not seen for `lost_s`, so that somebody else there later is somebody else."""
        self._seen = {i: seen for i, seen in self._seen.items() if now_s - seen[0] <= self._lost_s}
        for pool in ("tracked_stracks", "lost_stracks"):
            kept = [t for t in getattr(self._bytetrack, pool) if t.track_id in self._seen]
            setattr(self._bytetrack, pool, kept)
