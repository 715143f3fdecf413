"""What families share whose tiles, image tokens and image features are all as HF's processor and model have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from transformers import AutoModelForImageTextToText, AutoProcessor

from backend.models.hf_adapter import require_text_family
from backend.models.tiled_vision import TiledVision
from backend.models.vision_language import ProcessedImage

if TYPE_CHECKING:
    import torch
    from PIL import Image
    from transformers import PreTrainedModel

    from backend.models.checkpoint import Checkpoint
    from backend.models.sliced import SlicedTower


class ProcessorTiles(TiledVision):
    """A `TiledVision` that asks HF for each part; `options` are what its image processor is told of tiles."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        model: PreTrainedModel,
        processor: Any,
        *,
        tower: SlicedTower,
        options: Mapping[str, Any],
        **facts: Any,
    ) -> None:
        self._processor = processor
        self._image_features: Any = model.get_image_features
        self._options = options
        super().__init__(checkpoint, model, processor, tower=tower, **facts)

    def process(self, image: Image.Image) -> ProcessedImage:
        """See `VisionLanguageAdapter.process`: tiles and the whole picture, in the processor's order."""
        inputs = self._processor.image_processor(images=[image], return_tensors="pt", **self._options)
        return ProcessedImage(inputs["pixel_values"].float(), self._processor.replace_image_token(inputs, 0))

    def encode_tiles(self, tiles: torch.Tensor) -> torch.Tensor:
        """See `TiledVision.encode_tiles`."""
        return self._image_features(pixel_values=tiles).pooler_output


def model_and_processor(checkpoint: Checkpoint) -> tuple[PreTrainedModel, Any]:
    """Weights and processor, as HF's auto classes read them. Raises `ModelLoadError`."""
    require_text_family(checkpoint)
    processor = checkpoint.load_part(AutoProcessor.from_pretrained)
    return checkpoint.load_model(AutoModelForImageTextToText.from_pretrained), processor
