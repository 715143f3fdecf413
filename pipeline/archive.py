"""What the pipeline asks of the place where ended events are kept."""

from __future__ import annotations

from typing import Protocol

from pipeline.events import Event


class StoreError(Exception):
    """The data directory cannot be used. One line that names it."""


class Archive(Protocol):
    """Where ended events are kept."""

    def add(self, event: Event, jpeg: bytes) -> Event:
        """Keep `event` and its picture; returns it with `jpeg_path` set. Raises `StoreError` if it cannot for now."""
        ...
