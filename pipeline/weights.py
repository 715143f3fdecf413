"""From the name of a detector's weights to their file: what can be said of it without loading a library."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

DEFAULT_CACHE = Path("~/.cache/watchword")
SUFFIXES = (".pt", ".onnx", ".torchscript", ".engine", ".mlpackage", ".pb", ".tflite", ".mnn")
"""Of the single files that ultralytics loads as models."""


class DetectorError(Exception):
    """The detector cannot work as given. One line that names the weights and what to do."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Where the weights called `name` are, or, if `is_missing`, where they go once they are fetched."""

    name: str
    path: Path
    is_missing: bool


def find_weights(name: str, cache_dir: Path | None = None) -> Weights:
    """A file, or the bare name of a published model, which lives in `cache_dir`. Raises `DetectorError`."""
    path = Path(name).expanduser()
    if path.is_file():
        if path.suffix.lower() not in SUFFIXES:
            raise DetectorError(f"detector weights {name}: not a YOLO model by its name; give an ultralytics .pt file")
        return Weights(name, path, is_missing=False)
    if path.exists() or path.name != name or path.suffix != ".pt":
        raise DetectorError(f"detector weights {name}: no such file; give an ultralytics .pt file")
    cached = (cache_dir or DEFAULT_CACHE).expanduser() / "detectors" / name
    return Weights(name, cached, is_missing=not cached.exists())
