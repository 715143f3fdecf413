"""Image embeddings by content key, and the encoders that are paused half-way.

What may stay and what must go is the scheduler's decision (its encoder ledger counts the same embeddings); this cache
obeys `Step.evictions` and never drops anything by itself, except an image whose encoding failed.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

import torch

from backend.types import EncodeSlice

if TYPE_CHECKING:
    from backend.models.adapter import ModelAdapter


class EncodeError(Exception):
    """An image could not be encoded; the message says why, in one line."""


class EncoderCache:
    """Resident rows [num_embeds, H] and half-run encoders, both by image key. Engine thread only."""

    def __init__(self, adapter: ModelAdapter) -> None:
        self._adapter = adapter
        self._resident: dict[str, torch.Tensor] = {}
        self._paused: dict[str, Generator[None, None, torch.Tensor]] = {}

    def find_rows(self, key: str) -> torch.Tensor | None:
        """The resident embeddings of an image, or None."""
        return self._resident.get(key)

    def drop(self, key: str) -> None:
        """Forget an image, resident or half encoded; unknown keys are nothing to forget."""
        self._resident.pop(key, None)
        paused = self._paused.pop(key, None)
        if paused is not None:
            paused.close()

    def advance(self, piece: EncodeSlice) -> None:
        """Run the encoder as far as the slice says. Raises `EncodeError`, after which nothing of the image is left."""
        key = piece.image.key
        try:
            self._advance(piece)
        except EncodeError:
            self.drop(key)
            raise
        except Exception as error:
            self.drop(key)
            raise EncodeError(f"the vision encoder failed: {type(error).__name__}: {_first_line(error)}") from error

    def _advance(self, piece: EncodeSlice) -> None:
        image = piece.image
        if piece.first_slice == 0:
            self.drop(image.key)
            self._paused[image.key] = self._adapter.encode(image)
        encoder = self._paused.get(image.key)
        if encoder is None:
            raise EncodeError(f"slice {piece.first_slice} of an image that was never started or was dropped")
        for _ in range(piece.num_slices):
            try:
                next(encoder)
            except StopIteration as end:
                self._finish(piece, end.value)
                return
        if piece.is_last:
            raise EncodeError(f"the encoder had more than the {image.num_slices} slices it announced")

    def _finish(self, piece: EncodeSlice, rows: torch.Tensor) -> None:
        image = piece.image
        if not piece.is_last:
            raise EncodeError(f"the encoder ended before slice {image.num_slices}")
        if rows.shape[0] != image.num_embeds:
            raise EncodeError(f"the encoder gave {rows.shape[0]} rows for {image.num_embeds} image placeholders")
        del self._paused[image.key]
        self._resident[image.key] = rows

    def close(self) -> None:
        """Drop everything."""
        for key in (*self._paused, *self._resident):
            self.drop(key)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
