"""Image embeddings by content key, and the encoders that are paused half-way.

What may stay and what must go is the scheduler's decision (its encoder ledger counts the same embeddings); this cache
obeys `Step.evictions` and never drops anything by itself, except an image whose encoding failed.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from backend.types.request import ImageInput
from backend.types.step import EncodeSlice

if TYPE_CHECKING:
    from backend.models.adapter import ModelAdapter


class EncodeError(Exception):
    """An image could not be encoded; the message says why, in one line."""


@dataclass(slots=True)
class _Encoding:
    """Images on their way through the encoder as one batch; None in place of one that was dropped meanwhile."""

    images: list[ImageInput | None]
    encoder: Generator[None, None, tuple[torch.Tensor, ...]]
    num_done: int = 0


class EncoderCache:
    """Resident rows [num_embeds, H] and half-run encoders, both by image key. Engine thread only."""

    def __init__(self, adapter: ModelAdapter) -> None:
        self._adapter = adapter
        self._resident: dict[str, torch.Tensor] = {}
        self._paused: dict[str, _Encoding] = {}

    def find_rows(self, key: str) -> torch.Tensor | None:
        """The resident embeddings of an image, or None."""
        return self._resident.get(key)

    def drop(self, key: str) -> None:
        """Forget an image, resident or half encoded; unknown keys are nothing to forget."""
        self._resident.pop(key, None)
        encoding = self._paused.pop(key, None)
        if encoding is None:
            return
        encoding.images = [None if image is None or image.key == key else image for image in encoding.images]
        if not any(encoding.images):
            encoding.encoder.close()

    def advance(self, piece: EncodeSlice) -> dict[str, str]:
        """Run the encoder as far as the slice says; why it failed, by the key of each image of which nothing is left.

        What fails in a batch is tried again image by image, so that no image fails for another, nor for lack of the
        memory that a batch takes; from then on its images go on one by one, although the slices still name them
        together.
        """
        if piece.first_slice and len({id(self._paused.get(image.key)) for image in piece.images}) > 1:
            return self._advance_each(piece.images, piece.first_slice, piece.num_slices)
        reason = self._find_failure(piece)
        if reason is None:
            return {}
        for image in piece.images:
            self.drop(image.key)
        if not piece.mates:
            return {piece.image.key: reason}
        return self._advance_each(piece.images, 0, piece.first_slice + piece.num_slices)

    def _advance_each(self, images: tuple[ImageInput, ...], first: int, number: int) -> dict[str, str]:
        alone = [self.advance(EncodeSlice(image, first, number)) for image in images]
        return {key: reason for failed in alone for key, reason in failed.items()}

    def _find_failure(self, piece: EncodeSlice) -> str | None:
        """Advance; why it failed, if it did. The error itself ends here: it keeps alive all that the encoder held."""
        try:
            self._advance(piece)
        except Exception as error:
            return _first_line(error) if isinstance(error, EncodeError) else _encoder_failed(error)
        return None

    def _advance(self, piece: EncodeSlice) -> None:
        if piece.first_slice == 0:
            self._begin(piece.images)
        encoding = self._paused.get(piece.image.key)
        if encoding is None or encoding.num_done != piece.first_slice:
            raise EncodeError(f"slice {piece.first_slice} of an image that was never started or was dropped")
        encoding.num_done += piece.num_slices
        for _ in range(piece.num_slices):
            try:
                next(encoding.encoder)
            except StopIteration as end:
                self._finish(piece, encoding, end.value)
                return
        if piece.is_last:
            raise EncodeError(f"the encoder had more than the {piece.image.num_slices} slices it announced")

    def _begin(self, images: tuple[ImageInput, ...]) -> None:
        for image in images:
            self.drop(image.key)
        encoding = _Encoding(list(images), self._adapter.encode_together(images))
        self._paused |= {image.key: encoding for image in images}

    def _finish(self, piece: EncodeSlice, encoding: _Encoding, rows_of_all: tuple[torch.Tensor, ...]) -> None:
        if not piece.is_last:
            raise EncodeError(f"the encoder ended before slice {piece.image.num_slices}")
        for image, rows in zip(encoding.images, rows_of_all, strict=True):
            if image is None:
                continue
            if rows.shape[0] != image.num_embeds:
                raise EncodeError(f"the encoder gave {rows.shape[0]} rows for {image.num_embeds} image placeholders")
            del self._paused[image.key]
            # A view would keep the rows of the whole batch alive.
            self._resident[image.key] = rows if len(rows_of_all) == 1 else rows.clone()

    def close(self) -> None:
        """Drop everything."""
        for key in (*self._paused, *self._resident):
            self.drop(key)


def _encoder_failed(error: Exception) -> str:
    return f"the vision encoder failed: {type(error).__name__}: {_first_line(error)}"


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
