"""What is really kept: the data directory as another program would read it, compared with what was announced."""

from __future__ import annotations

import io
import sqlite3
from collections.abc import Mapping
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from pipeline.store import DATABASE
from tests.e2e.faults.witness import Told


def lost(data_dir: Path, announced: Mapping[str, Told]) -> list[str]:
    """One line for each announced event that is not kept as it was announced, with a picture that opens."""
    with sqlite3.connect(f"file:{data_dir / DATABASE}?mode=ro", uri=True) as database:
        rows = {row[0]: row[1:] for row in database.execute("SELECT event_id, status, caption, jpeg_path FROM events")}
    database.close()
    return [f"{name}: {why}" for name, told in announced.items() if (why := _fault(data_dir, told, rows.get(name)))]


def _fault(data_dir: Path, told: Told, row: tuple[str, str | None, str | None] | None) -> str | None:
    if row is None:
        return f"announced as {told.state}, not kept"
    status, caption, jpeg_path = row
    if status != told.state or (status == "ok" and caption != told.text):
        return f"announced as {told.state} {told.text!r}, kept as {status} {caption!r}"
    try:
        Image.open(io.BytesIO((data_dir / (jpeg_path or "")).read_bytes())).load()
    except (OSError, UnidentifiedImageError) as error:
        return f"its picture: {error}"
    return None
