"""What families share whose towers take tiles of one shape: tile after tile, each in the slices of a paused call."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from backend.models.vision_language import ProcessedImage, VisionLanguageAdapter, processed_of

if TYPE_CHECKING:
    from PIL import Image
    from transformers import PreTrainedModel

    from backend.models.checkpoint import Checkpoint
    from backend.models.sliced import SlicedTower
    from backend.types.request import ImageInput


class TiledVision(VisionLanguageAdapter):
    """A `VisionLanguageAdapter` whose images are tiles [n, 3, S, S].

    A family sets itself up before it calls this constructor, which runs its tower once, on a small grey image.
    """

    def __init__(
        self, checkpoint: Checkpoint, model: PreTrainedModel, processor: Any, *, tower: SlicedTower, **facts: Any
    ) -> None:
        super().__init__(checkpoint, model, processor, **facts)
        self._tower = tower
        self._slices_per_tile = self._count_slices()
        self._takes_batches = True

    @abstractmethod
    def encode_tiles(self, tiles: torch.Tensor) -> torch.Tensor:
        """Rows [n, m, H] of tiles [n, 3, S, S], in one call of the tower, whatever their pixels.

        HF takes an all-zero tile of a batch for padding and drops its rows, where it is asked.
        """

    def num_slices(self, processed: ProcessedImage) -> int:
        """See `VisionLanguageAdapter.num_slices`."""
        return len(processed.pixels) * self._slices_per_tile

    def encode_together(self, images: Sequence[ImageInput]) -> Generator[None, None, tuple[torch.Tensor, ...]]:
        """See `ModelAdapter.encode_together`: tile after tile, each paused where the tower pauses.

        An image's tiles are encoded one by one, those at the same place in all images together.
        """
        processed = processed_of(images)
        rows: list[torch.Tensor] = []
        for index in range(len(processed[0].pixels)):
            if rows:
                yield
            tiles = self._to_device(torch.cat([p.pixels[index : index + 1] for p in processed]))
            rows.append((yield from self._tower.run(lambda tiles=tiles: self.encode_tiles(tiles))))
        return tuple(self.join_tiles([tile[number] for tile in rows], p) for number, p in enumerate(processed))

    def join_tiles(self, rows: Sequence[torch.Tensor], processed: ProcessedImage) -> torch.Tensor:
        """Rows [num_embeds, H] of the image `processed` from those of its tiles: here one after the other."""
        return torch.cat(list(rows))

    def encode_probe(self, picture: Image.Image) -> torch.Tensor:
        """Rows of the picture's last tile, in one go."""
        tile = self._to_device(self.process(picture).pixels[-1:])
        with torch.inference_mode():
            return self.encode_tiles(tile)[0]

    def layout(self, processed: ProcessedImage) -> tuple[int, ...]:
        """See `VisionLanguageAdapter.layout`: the tiles' own shape."""
        return tuple(processed.pixels.shape) if self._takes_batches else ()

    def recount_slices(self, *, takes_batches: bool) -> None:
        """Count the slices of a tile anew, after parts of the tower were exchanged; before any image is prepared.

        `takes_batches` says whether those parts compute several tiles at once.
        """
        self._slices_per_tile = self._count_slices()
        self._takes_batches = takes_batches

    def _count_slices(self) -> int:
        """Slices of one tile: all of a family's tiles are of one shape, and where a tower pauses follows from it."""
        from PIL import Image

        tile = self._to_device(self.process(Image.new("RGB", (64, 64), "grey")).pixels[:1])
        with torch.inference_mode():
            return self._tower.count(lambda: self.encode_tiles(tile))
