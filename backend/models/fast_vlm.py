"""FastVLM: a convolutional tower from timm, a two-layer connector, a plain text decoder. The embedded model is one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoModelForImageTextToText, AutoProcessor

from backend.errors import ModelLoadError
from backend.models.hf_adapter import require_text_family
from backend.models.sliced import SlicedTower
from backend.models.tiled_vision import TiledVision
from backend.models.vision_language import ProcessedImage

if TYPE_CHECKING:
    from PIL import Image
    from transformers import PreTrainedModel

    from backend.models.checkpoint import Checkpoint


class FastVlm(TiledVision):
    """`ModelAdapter` of `FastVlmForConditionalGeneration` with a `LlavaProcessor`."""

    def __init__(self, checkpoint: Checkpoint, model: PreTrainedModel, processor: Any) -> None:
        self._processor = processor
        self._image_features: Any = model.get_image_features
        num_embeds = self._placeholder_len()
        super().__init__(
            checkpoint,
            model,
            processor,
            tower=self._tower_in_slices(checkpoint, model),
            max_embeds_per_image=num_embeds,
            min_embeds_per_image=num_embeds,
            max_image_side=_max_side(processor.image_processor),
        )

    @classmethod
    def load(cls, checkpoint: Checkpoint) -> FastVlm:
        """Read processor and weights. Raises `ModelLoadError`."""
        require_text_family(checkpoint)
        processor = checkpoint.load_part(AutoProcessor.from_pretrained)
        return cls(checkpoint, checkpoint.load_model(AutoModelForImageTextToText.from_pretrained), processor)

    def process(self, image: Image.Image) -> ProcessedImage:
        """See `VisionLanguageAdapter.process`: one tile, whatever the image's size."""
        inputs = self._processor.image_processor(images=[image], return_tensors="pt")
        return ProcessedImage(inputs["pixel_values"].float(), self._processor.replace_image_token(inputs, 0))

    def encode_tiles(self, tiles: torch.Tensor) -> torch.Tensor:
        """See `TiledVision.encode_tiles`."""
        # A tensor for some classes, a list of rows for others.
        rows: Any = self._image_features(pixel_values=tiles).pooler_output
        return rows if isinstance(rows, torch.Tensor) else torch.stack(rows)

    def _tower_in_slices(self, checkpoint: Checkpoint, model: PreTrainedModel) -> SlicedTower:
        """What pauses the tower of `model`, between its blocks or inside them."""
        tower: Any = model.get_encoder(modality="image")
        return SlicedTower(_pause_points(checkpoint.source, tower.timm_model))

    def _placeholder_len(self) -> int:
        """Rows of any image: the processor brings all to one size."""
        from PIL import Image

        return self.process(Image.new("RGB", (64, 64))).placeholder.count(self._processor.image_token)


def _max_side(image_processor: Any) -> int:
    """The most pixels that the processor leaves of an image's shorter side; 0 where it does not scale."""
    if not image_processor.do_resize:
        return 0
    return max(dict(image_processor.size).values(), default=0)


def _pause_points(source: str, tower: Any) -> list[torch.nn.Module]:
    """Blocks of the tower, in order of execution, before which it may pause.

    An EfficientNet's first blocks, of high resolution, take up to 10 ms each on a CPU core and the later ones so little
    that a pause before every third is enough; a FastViT's are worth a pause each.
    """
    if hasattr(tower, "blocks"):
        blocks = [block for stage in tower.blocks for block in stage]
        return [*blocks[:6], *blocks[6::3]]
    if hasattr(tower, "stages"):
        return [block for stage in tower.stages for block in stage.blocks]
    raise ModelLoadError(f"model {source!r}: the blocks of its vision tower ({type(tower).__name__}) are not known")
