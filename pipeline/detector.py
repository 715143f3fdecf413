"""Finds persons in frames with an ultralytics YOLO model, run on arrays, one batch over all cameras.

Owns the model, and keeps it to one thread. Knows nothing of tracks or of what a person is worth.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from camera_sources.frame import Frame
from pipeline.events import Box, Detection
from pipeline.weights import DetectorError, find_weights
from pipeline.yolo_import import import_ultralytics

if TYPE_CHECKING:
    from ultralytics import YOLO
    from ultralytics.engine.results import Results

TASKS_WITH_BOXES = ("detect", "segment", "pose")
LONGEST_DETAIL = 160


class Detector(Protocol):
    """What finds persons. Called from one thread."""

    def detect(self, frames: Sequence[Frame]) -> list[Detection]:
        """One Detection per frame, in order."""
        ...


class YoloDetector:
    """Persons by YOLO. `weights` is a file, or the bare name of a published model, which is fetched into `cache_dir`.

    Reports boxes of at least half of `min_confidence`: the tracker begins tracks at the full one and carries them on
    with the weaker. Raises `DetectorError`.
    """

    def __init__(self, weights: str, *, min_confidence: float, cache_dir: Path | None = None) -> None:
        found = find_weights(weights, cache_dir)
        self._weights = weights
        self._min_conf = min_confidence / 2
        self._model = _load(weights, found.path, online=found.is_missing)
        try:
            self._person_id = self._find_person()
            # The first run sets up, takes many times as long, and is the first to open models other than .pt.
            self._predict([np.zeros((480, 640, 3), dtype=np.uint8)])
        except DetectorError:
            raise
        except Exception as error:
            raise _refusal(weights, "cannot be run here", error) from error

    def detect(self, frames: Sequence[Frame]) -> list[Detection]:
        """See `Detector.detect`. Frames may differ in size."""
        results = self._predict([frame.image for frame in frames])
        return [Detection(frame, _boxes(result)) for frame, result in zip(frames, results, strict=True)]

    def _predict(self, images: list[NDArray[np.uint8]]) -> list[Results]:
        results = self._model.predict(images, classes=[self._person_id], conf=self._min_conf, verbose=False)
        return cast("list[Results]", results)

    def _find_person(self) -> int:
        if self._model.task not in TASKS_WITH_BOXES:
            raise DetectorError(
                f"detector weights {self._weights}: a {self._model.task} model gives no boxes; "
                f"use one for {', '.join(TASKS_WITH_BOXES)}"
            )
        for class_id, name in self._model.names.items():
            if name.lower() == "person":
                return int(class_id)
        raise DetectorError(f"detector weights {self._weights}: the model knows no class named person")


def _boxes(result: Results) -> tuple[Box, ...]:
    assert result.boxes is not None, "the task was checked to give boxes"
    boxes = result.boxes.cpu().numpy()
    return tuple(
        Box(*(round(float(v), 1) for v in xyxy), conf=round(float(conf), 3))
        for xyxy, conf in zip(boxes.xyxy, boxes.conf, strict=True)
    )


def _load(weights: str, path: Path, *, online: bool) -> YOLO:
    """Load `path`, fetching it if `online`."""
    ultralytics = import_ultralytics(online=online)
    import torch
    from ultralytics.utils.downloads import GITHUB_ASSETS_NAMES

    torch.set_num_threads(1)
    if online and weights not in GITHUB_ASSETS_NAMES:
        raise DetectorError(f"detector weights {weights}: neither a file here nor a published ultralytics model")
    try:
        return ultralytics.YOLO(str(path))
    except Exception as error:  # ultralytics raises nearly anything: pickle, zip, key, connection and import errors
        what = "cannot be downloaded; fetch it elsewhere and give its path" if online else "not a YOLO model"
        raise _refusal(weights, what, error) from error


def _refusal(weights: str, what: str, error: Exception) -> DetectorError:
    """`what` is wrong with `weights`, and the library's own words on it.

    Of these the first line, without the signs before it and without what another library said, in brackets after it.
    """
    line = (str(error).splitlines() or [""])[0]
    detail = line.removeprefix("ERROR").lstrip("❌⚠️ ").partition(" (")[0].rstrip(" .:") or type(error).__name__
    if len(detail) > LONGEST_DETAIL:
        detail = detail[: LONGEST_DETAIL - 1] + "…"
    return DetectorError(f"detector weights {weights}: {what} ({detail})")
