"""The embedded default's files, made sure of before anything starts, with progress on the terminal."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Assets:
    """What was asked for, ready on disk; None for what was not."""

    detector: Path | None
    clip: Path | None


def ensure_assets(cache_dir: Path, *, model: bool, detector: bool, clip: bool) -> Assets:
    """Download and assemble what is asked for and missing. Raises `AssetError`. Loads no torch."""
    from backend.demo.assemble import ensure_demo_model
    from backend.demo.assets import download_progress, ensure_demo_clip, ensure_detector

    with download_progress() as progress:
        found_detector = ensure_detector(cache_dir, progress) if detector else None
        found_clip = ensure_demo_clip(cache_dir, progress) if clip else None
        if model:
            ensure_demo_model(cache_dir, progress)
    return Assets(found_detector, found_clip)
