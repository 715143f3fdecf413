"""LLaVA 1.5: a CLIP tower (or another of SigLIP's shape) over one square picture, a two-layer connector, a decoder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backend.models.fast_vlm import FastVlm
from backend.models.sliced import SlicedTower
from backend.models.vision_slices import ByStrips, slice_blocks

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from backend.models.checkpoint import Checkpoint


class Llava(FastVlm):
    """`ModelAdapter` of `LlavaForConditionalGeneration`: FastVLM's processor, another tower."""

    def _tower_in_slices(self, checkpoint: Checkpoint, model: PreTrainedModel) -> SlicedTower:
        return siglip_in_slices(model, model.get_encoder(modality="image"))


def siglip_in_slices(model: PreTrainedModel, vision: Any) -> SlicedTower:
    """The parts of a tower of SigLIP's shape, replaced by ones that pause where they would take too long."""
    layers, embeddings = vision.encoder.layers, vision.embeddings
    tower = SlicedTower(list(layers))
    slice_blocks(model, layers, tower, embeddings.num_patches)
    embeddings.patch_embedding = ByStrips(embeddings.patch_embedding, tower, embeddings.image_size)
    return tower
