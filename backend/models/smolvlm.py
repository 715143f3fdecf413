"""SmolVLM and Idefics3: a SigLIP tower over square tiles, pixel shuffle, a Llama decoder.

A large image becomes a grid of tiles and one overview, or, with `do_image_splitting` off in the checkpoint's processor,
the overview alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoModelForImageTextToText, AutoProcessor

from backend.errors import ModelLoadError
from backend.models.hf_adapter import require_text_family
from backend.models.sliced import SlicedTower
from backend.models.tiled_vision import TiledVision
from backend.models.vision_blocks import TowerBlocks
from backend.models.vision_language import ProcessedImage
from backend.models.vision_slices import ByRows, ByStrips, measure_row_s, slice_blocks

if TYPE_CHECKING:
    from PIL import Image
    from transformers import PreTrainedModel

    from backend.models.checkpoint import Checkpoint


class SmolVlm(TiledVision):
    """`ModelAdapter` of `SmolVLMForConditionalGeneration` and `Idefics3ForConditionalGeneration`."""

    def __init__(self, checkpoint: Checkpoint, model: PreTrainedModel, processor: Any) -> None:
        self._processor = processor
        self._vision: Any = model.get_encoder(modality="image")
        self._connector: Any = model.model.connector  # type: ignore[union-attr]  # both families have it
        tower = self._tower_in_slices(model)
        super().__init__(
            checkpoint,
            model,
            processor,
            tower=tower,
            max_embeds_per_image=_max_tiles(checkpoint.source, processor.image_processor) * processor.image_seq_len,
            min_embeds_per_image=processor.image_seq_len,
            max_image_side=_max_side(processor.image_processor),
        )
        self.vision_blocks = TowerBlocks(self, tower, self._vision)

    @classmethod
    def load(cls, checkpoint: Checkpoint) -> SmolVlm:
        """Read processor and weights. Raises `ModelLoadError`."""
        require_text_family(checkpoint)
        processor = checkpoint.load_part(AutoProcessor.from_pretrained)
        return cls(checkpoint, checkpoint.load_model(AutoModelForImageTextToText.from_pretrained), processor)

    def process(self, image: Image.Image) -> ProcessedImage:
        """See `VisionLanguageAdapter.process`: rows x columns tiles, then the overview."""
        inputs = self._processor.image_processor(images=[image], return_tensors="pt", return_row_col_info=True)
        # Every tile is resized to a full square, so there is no padding in it and no mask to keep.
        return ProcessedImage(inputs["pixel_values"][0].float(), self._processor.replace_image_token(inputs, 0))

    def encode_tiles(self, tiles: torch.Tensor) -> torch.Tensor:
        """See `TiledVision.encode_tiles`.

        The tower's parts are called one by one: its own `forward` asks the device whether the mask hides anything, a
        wait per tile on a GPU, and here the answer is known.
        """
        side = tiles.shape[-1] // self._vision.patch_size
        everything = torch.ones(len(tiles), side, side, dtype=torch.bool, device=tiles.device)
        patches = self._vision.embeddings(pixel_values=tiles, patch_attention_mask=everything)
        encoded = self._vision.encoder(inputs_embeds=patches, attention_mask=None).last_hidden_state
        return self._connector(self._vision.post_layernorm(encoded))

    def _tower_in_slices(self, model: PreTrainedModel) -> SlicedTower:
        """The tower's parts, replaced by ones that pause where they would take too long."""
        layers, embeddings = self._vision.encoder.layers, self._vision.embeddings
        tower = SlicedTower(list(layers))
        slice_blocks(model, layers, tower, embeddings.num_patches)
        embeddings.patch_embedding = ByStrips(embeddings.patch_embedding, tower, embeddings.image_size)
        projection = self._connector.modality_projection
        sample = projection.proj.weight.new_zeros(1, self._processor.image_seq_len, projection.proj.in_features)
        projection.proj = ByRows(projection.proj, tower, measure_row_s(projection.proj, sample))
        return tower


def _max_side(image_processor: Any) -> int:
    """The most pixels that the processor leaves of an image's shorter side; 0 where it does not scale."""
    return image_processor.size["longest_edge"] if image_processor.do_resize else 0


def _max_tiles(source: str, image_processor: Any) -> int:
    """Tiles of the largest image that the processor lets through."""
    if not image_processor.do_image_splitting:
        return 1
    if not image_processor.do_resize:
        raise ModelLoadError(f"model {source!r}: its image processor splits images without bounding their size")
    per_side = -(-image_processor.size["longest_edge"] // image_processor.max_image_size["longest_edge"])
    return per_side * per_side + 1
