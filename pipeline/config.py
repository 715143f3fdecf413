"""The pipeline's settings, frozen, with the defaults a person gets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class GateConfig:
    """When a frame is worth a caption; seconds of the gate's clock (PTS for files, monotonic for live sources).

    A track begins with `min_hits` detections in a row of at least `min_confidence`, goes on with detections of at least
    half of it, and ends when it was not seen for `lost_s`. A track that stands in another zone for `settle_s` has
    moved there.
    """

    interval_s: float = 10.0
    cooldown_s: float = 5.0
    min_confidence: float = 0.4
    min_hits: int = 2
    lost_s: float = 2.0
    settle_s: float = 1.0


@dataclass(frozen=True, slots=True)
class Zone:
    """An area of a camera's picture: `polygon` in shares of its width and height (0..1, origin top left).

    Persons count where they stand in some zone, or anywhere if there is none, but never in one that is `excluded`.
    """

    name: str
    polygon: tuple[tuple[float, float], ...]
    excluded: bool = False


@dataclass(frozen=True, slots=True)
class CameraConfig:
    """One camera: `source` is an RTSP URL, a video file, a folder of images or a webcam number, kept unredacted.

    None means the pipeline's own. `min_height` is the least height of a person as a share of the picture's. `crops`:
    the picture sent is cut to the people in view, with `padding` times their extent on each side, else it is whole.
    `wants_details` asks the backend for captions in JSON.
    """

    camera_id: str
    source: str
    loop: bool = False
    realtime: bool = True
    transport: str | None = None
    detector_fps: float | None = None
    zones: tuple[Zone, ...] = ()
    min_height: float = 0.0
    gate: GateConfig | None = None
    prompt: str | None = None
    crops: bool = True
    padding: float = 0.35
    wants_details: bool = False

    def reads_like(self, other: CameraConfig) -> bool:
        """Whether both read the same pictures in the same way, so that one source serves either. User and password are
        part of `source`."""
        return self._reading == other._reading

    @property
    def _reading(self) -> tuple[object, ...]:
        return self.camera_id, self.source, self.transport or "tcp", self.loop, self.realtime


@dataclass(frozen=True, slots=True)
class RetentionConfig:
    """How long events and their pictures are kept: at most `days` and at most `max_gb` (10^9 bytes); None: no limit."""

    days: float | None = 30.0
    max_gb: float | None = 10.0


@dataclass(frozen=True, slots=True)
class RetryConfig:
    """How long the worker insists on a caption. `delays_s` is the wait before each further try, give or take a fifth.

    No first token `deadline_s` after the first try ends the event; so does a stream that says nothing for as long.
    With `until_deadline` the tries go on until then, the last wait repeated: for a backend that somebody restarts.
    """

    delays_s: tuple[float, ...] = (1.0, 2.0, 4.0)
    deadline_s: float = 60.0
    until_deadline: bool = False


@dataclass(frozen=True, slots=True)
class PipelineConfig:
    """Everything the pipeline needs beside its cameras. `detector` is ultralytics weights, `base_url` ends in `/v1`.

    `detector` is a file, or the name of a published model (`yolo26n.pt`), which is then fetched into `cache_dir`
    (None: `~/.cache/watchword`).
    """

    detector: str
    base_url: str
    model: str | None = None
    api_key: str | None = None
    detector_fps: float = 5.0
    jpeg_long_side: int = 1280
    max_caption_tokens: int = 48
    prompt: str = "Describe the image."
    gate: GateConfig = GateConfig()
    retry: RetryConfig = RetryConfig()
    cache_dir: Path | None = None
