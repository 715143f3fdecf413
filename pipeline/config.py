"""The pipeline's settings, frozen, with the defaults a person gets."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CameraConfig:
    """One camera: `source` is an RTSP URL, a video file, a folder of images or a webcam number, kept unredacted."""

    camera_id: str
    source: str
    loop: bool = False
    realtime: bool = True


@dataclass(frozen=True, slots=True)
class GateConfig:
    """When a frame is worth a caption; seconds of the gate's clock (PTS for files, monotonic for live sources)."""

    interval_s: float = 10.0
    cooldown_s: float = 5.0
    min_confidence: float = 0.4
    min_hits: int = 2


@dataclass(frozen=True, slots=True)
class PipelineConfig:
    """Everything the pipeline needs beside its cameras. `detector` is ultralytics weights, `base_url` ends in `/v1`."""

    detector: str
    base_url: str
    model: str | None = None
    api_key: str | None = None
    detector_fps: float = 5.0
    jpeg_long_side: int = 1280
    max_caption_tokens: int = 48
    prompt: str = "Describe the image."
    gate: GateConfig = GateConfig()
