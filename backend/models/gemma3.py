"""Gemma 3 with images: a SigLIP tower, its patches pooled to a fixed number of embeddings, a Gemma 3 decoder.

The tokens of a picture see one another whatever their order, so each run of them is computed within one step. A long
picture becomes itself and some crops where the checkpoint's processor pans and scans.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from backend.models.processor_tiles import ProcessorTiles, model_and_processor
from backend.models.sliced import SlicedTower
from backend.models.vision_blocks import TowerBlocks
from backend.models.vision_slices import ByStrips, slice_blocks

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from backend.models.checkpoint import Checkpoint

_PAN_AND_SCAN = (
    "do_pan_and_scan",
    "pan_and_scan_min_crop_size",
    "pan_and_scan_max_num_crops",
    "pan_and_scan_min_ratio_to_activate",
)


class Gemma3(ProcessorTiles):
    """`ModelAdapter` of `Gemma3ForConditionalGeneration`."""

    def __init__(self, checkpoint: Checkpoint, model: PreTrainedModel, processor: Any) -> None:
        image_processor = processor.image_processor
        # Checkpoints leave these null; what null means is the processor's to say.
        said = {name: getattr(image_processor, name) for name in _PAN_AND_SCAN}
        options = {n: processor.images_kwargs[n] if value is None else value for n, value in said.items()}
        scans = options["do_pan_and_scan"]
        max_tiles = 1 + options["pan_and_scan_max_num_crops"] if scans else 1
        num_embeds: int = processor.image_seq_length
        vision: Any = model.get_encoder(modality="image")
        tower = _tower_in_slices(model, vision)
        super().__init__(
            checkpoint,
            model,
            processor,
            tower=tower,
            options=options,
            max_embeds_per_image=max_tiles * num_embeds,
            min_embeds_per_image=num_embeds,
            max_image_side=0 if scans else max(dict(image_processor.size).values()),
            image_token=processor.tokenizer.image_token,
            image_mark=processor.boi_token,
            atomic=True,
        )
        self.spec = replace(self.spec, max_atomic_len=num_embeds)
        self.vision_blocks = TowerBlocks(self, tower, vision)
        # The class without images caps its logits; this one does not, whatever its config says.
        self._logit_cap = None

    @classmethod
    def load(cls, checkpoint: Checkpoint) -> Gemma3:
        """Read processor and weights. Raises `ModelLoadError`."""
        return cls(checkpoint, *model_and_processor(checkpoint))


def _tower_in_slices(model: PreTrainedModel, vision: Any) -> SlicedTower:
    """The tower's parts, replaced by ones that pause where they would take too long."""
    layers, embeddings = vision.encoder.layers, vision.embeddings
    tower = SlicedTower(list(layers))
    slice_blocks(model, layers, tower, embeddings.num_patches)
    embeddings.patch_embedding = ByStrips(embeddings.patch_embedding, tower, embeddings.image_size)
    return tower
