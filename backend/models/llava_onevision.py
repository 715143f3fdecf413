"""LLaVA-OneVision: a picture alone is cut into tiles by the grid that suits its shape best ("anyres"), several are not.

Tiles are put together again as rows of patches, the padding cut off, and a learned row end is set behind each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoModelForImageTextToText, AutoProcessor

from backend.models.hf_adapter import require_text_family
from backend.models.llava import siglip_in_slices
from backend.models.tiled_vision import TiledVision
from backend.models.vision_language import ProcessedImage

if TYPE_CHECKING:
    from PIL import Image
    from transformers import PreTrainedModel

    from backend.models.checkpoint import Checkpoint

SLACK = 1.1**2
"""More rows than a picture's largest number are let through by so much before they are reduced to it."""


class LlavaOnevision(TiledVision):
    """`ModelAdapter` of `LlavaOnevisionForConditionalGeneration`."""

    def __init__(self, checkpoint: Checkpoint, model: PreTrainedModel, processor: Any) -> None:
        self._processor = processor
        self._core: Any = model.model
        vision: Any = model.get_encoder(modality="image")
        self._side: int = vision.config.image_size
        super().__init__(
            checkpoint,
            model,
            processor,
            tower=siglip_in_slices(model, vision),
            max_embeds_per_image=self._max_embeds(),
            min_embeds_per_image=processor.num_image_tokens,
            max_image_side=max(min(size) for size in processor.image_processor.image_grid_pinpoints),
        )

    @classmethod
    def load(cls, checkpoint: Checkpoint) -> LlavaOnevision:
        """Read processor and weights. Raises `ModelLoadError`."""
        require_text_family(checkpoint)
        processor = checkpoint.load_part(AutoProcessor.from_pretrained)
        return cls(checkpoint, checkpoint.load_model(AutoModelForImageTextToText.from_pretrained), processor)

    def process(self, image: Image.Image) -> ProcessedImage:
        """See `VisionLanguageAdapter.process`: the whole picture, then its tiles."""
        return self._process([image])

    def process_beside(self, image: Image.Image, num_images: int) -> ProcessedImage:
        """See `VisionLanguageAdapter.process_beside`: one of several is one tile."""
        return self._process([image] * min(num_images, 2))

    def encode_tiles(self, tiles: torch.Tensor) -> torch.Tensor:
        """See `TiledVision.encode_tiles`."""
        # As one of several pictures none is cut; the row end behind each is left out until the tiles are joined.
        features = self._core.get_image_features(
            pixel_values=tiles[:, None],
            image_sizes=torch.tensor([[self._side, self._side]] * len(tiles)),
            batch_num_images=torch.tensor([1 + len(tiles)]),
        )
        return torch.stack([rows[:-1] for rows in features.pooler_output])

    def join_tiles(self, rows: Sequence[torch.Tensor], processed: ProcessedImage) -> torch.Tensor:
        """See `TiledVision.join_tiles`."""
        packed, _ = self._core.pack_image_features(
            [torch.stack(list(rows))],
            torch.tensor([processed.grid]),
            image_newline=self._core.image_newline,
            vision_aspect_ratio=self._core.config.vision_aspect_ratio,
        )
        return packed[0]

    def _process(self, images: list[Image.Image]) -> ProcessedImage:
        inputs = self._processor.image_processor(images=[images], return_tensors="pt")
        height, width = inputs["image_sizes"][0].tolist()
        placeholder = self._processor.replace_image_token(inputs, 0)
        return ProcessedImage(inputs["pixel_values"][0].float(), placeholder, (height, width))

    def _max_embeds(self) -> int:
        """The whole picture and the finest grid, each of its rows with an end."""
        whole: int = self._processor.num_image_tokens
        per_side = round(whole**0.5)
        most = int(SLACK * int(self._processor.vision_aspect_ratio.removeprefix("anyres_max_")) * whole)
        finest = 0
        for height, width in self._processor.image_processor.image_grid_pinpoints:
            rows, columns = height // self._side * per_side, width // self._side * per_side
            finest = max(finest, min(rows * columns, most) + rows)
        return whole + finest
