"""What families share whose towers take tiles of one shape: tile after tile, each in the slices of a paused call."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from backend.models.vision_language import ProcessedImage, VisionLanguageAdapter

if TYPE_CHECKING:
    from PIL import Image
    from transformers import PreTrainedModel

    from backend.models.checkpoint import Checkpoint
    from backend.models.sliced import SlicedTower
    from backend.types import ImageInput


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

    @abstractmethod
    def encode_tile(self, tile: torch.Tensor) -> torch.Tensor:
        """Rows [m, H] of one tile [1, 3, S, S], in one call of the tower."""

    def num_slices(self, processed: ProcessedImage) -> int:
        """See `VisionLanguageAdapter.num_slices`."""
        return len(processed.pixels) * self._slices_per_tile

    def encode(self, image: ImageInput) -> Generator[None, None, torch.Tensor]:
        """See `ModelAdapter.encode`: tile after tile, each paused where the tower pauses.

        A tile is encoded by itself, whatever its pixels: in a batch, HF takes an all-zero tile for padding and drops
        its rows.
        """
        processed = image.pixels
        assert isinstance(processed, ProcessedImage), "an image of this adapter's own making"
        tiles = processed.pixels
        rows: list[torch.Tensor] = []
        for index in range(len(tiles)):
            if rows:
                yield
            tile = self._to_device(tiles[index : index + 1])
            rows.append((yield from self._tower.run(lambda tile=tile: self.encode_tile(tile))))
        return self.join_tiles(rows, processed)

    def join_tiles(self, rows: Sequence[torch.Tensor], processed: ProcessedImage) -> torch.Tensor:
        """Rows [num_embeds, H] of the image `processed` from those of its tiles: here one after the other."""
        return torch.cat(list(rows))

    def encode_probe(self, picture: Image.Image) -> torch.Tensor:
        """Rows of the picture's last tile, in one go."""
        tile = self._to_device(self.process(picture).pixels[-1:])
        with torch.inference_mode():
            return self.encode_tile(tile)

    def recount_slices(self) -> None:
        """Count the slices of a tile anew, after parts of the tower were exchanged; before any image is prepared."""
        self._slices_per_tile = self._count_slices()

    def _count_slices(self) -> int:
        """Slices of one tile: all of a family's tiles are of one shape, and where a tower pauses follows from it."""
        from PIL import Image

        tile = self._to_device(self.process(Image.new("RGB", (64, 64), "grey")).pixels[:1])
        with torch.inference_mode():
            return self._tower.count(lambda: self.encode_tile(tile))
