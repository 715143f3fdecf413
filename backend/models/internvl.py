"""InternVL 3: a picture in up to a dozen square tiles and an overview, pixel shuffle, a Qwen decoder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backend.models.processor_tiles import ProcessorTiles, model_and_processor
from backend.models.sliced import SlicedTower
from backend.models.vision_slices import ByRows, measure_row_s

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from backend.models.checkpoint import Checkpoint

_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "projection_layer")
_SAMPLE_ROWS = 128


class InternVl(ProcessorTiles):
    """`ModelAdapter` of `InternVLForConditionalGeneration`."""

    def __init__(self, checkpoint: Checkpoint, model: PreTrainedModel, processor: Any) -> None:
        # The processor's own word wins over that of the image processor beside it.
        options = dict(processor.images_kwargs)
        crops = options["crop_to_patches"]
        num_embeds: int = processor.image_seq_length
        super().__init__(
            checkpoint,
            model,
            processor,
            tower=_tower_in_slices(model.get_encoder(modality="image")),
            options=options,
            max_embeds_per_image=(processor.image_processor.max_patches + 1 if crops else 1) * num_embeds,
            min_embeds_per_image=num_embeds,
            max_image_side=0,
        )

    @classmethod
    def load(cls, checkpoint: Checkpoint) -> InternVl:
        """Read processor and weights. Raises `ModelLoadError`."""
        return cls(checkpoint, *model_and_processor(checkpoint))


def _tower_in_slices(vision: Any) -> SlicedTower:
    """The tower's projections and MLPs, replaced by ones that pause where they would take too long."""
    layers = vision.encoder.layer
    tower = SlicedTower(list(layers))
    first = layers[0]
    sample = first.attention.q_proj.weight.new_zeros(1, _SAMPLE_ROWS, first.attention.embed_dim)
    mlp_s, projection_s = measure_row_s(first.mlp, sample), measure_row_s(first.attention.q_proj, sample)
    for layer in layers:
        layer.mlp = ByRows(layer.mlp, tower, mlp_s)
        for name in _PROJECTIONS:
            setattr(layer.attention, name, ByRows(getattr(layer.attention, name), tower, projection_s))
    return tower
