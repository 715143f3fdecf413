"""Qwen2.5-VL and Qwen3-VL: pictures in their own resolution and proportions, positions by rows and columns (M-RoPE).

How many tokens a picture takes depends on its size, between bounds that the checkpoint's processor sets. Qwen3-VL also
taps features on the way through its tower and adds them behind the first layers of its text model: here they travel
with the picture's embeddings, as further columns.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import replace
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import pad
from transformers import AutoModelForImageTextToText, AutoProcessor

from backend.errors import ModelLoadError
from backend.models.mrope import Picture, mrope_positions
from backend.models.patch_tower import PatchTower
from backend.models.vision_language import ProcessedImage, VisionLanguageAdapter, processed_of

if TYPE_CHECKING:
    from PIL import Image
    from transformers import PreTrainedModel

    from backend.models.checkpoint import Checkpoint
    from backend.types.request import ImageInput, ImageSpan, PositionRows

LONGEST_RATIO = 200
"""Of a picture's sides; the processor refuses longer ones."""


class QwenVl(VisionLanguageAdapter):
    """`ModelAdapter` of `Qwen2_5_VLForConditionalGeneration` and `Qwen3VLForConditionalGeneration`.

    `embed` and `encode` give rows [H * (1 + taps)]: embeddings, then what is added behind each of the first layers,
    zeros for text. `forward` takes them so.
    """

    def __init__(self, checkpoint: Checkpoint, model: PreTrainedModel, processor: Any) -> None:
        self._processor = processor
        image_processor = processor.image_processor
        if not image_processor.do_resize:
            raise ModelLoadError(f"model {checkpoint.source!r}: its image processor does not bound the size of images")
        self._merge: int = image_processor.merge_size
        side = image_processor.patch_size * self._merge
        least, most = embeds_bounds(image_processor.size, side * side)
        super().__init__(
            checkpoint,
            model,
            processor,
            max_embeds_per_image=most,
            min_embeds_per_image=least,
            max_image_side=math.isqrt(image_processor.size["longest_edge"]),
        )
        self._tower = PatchTower(model.get_encoder(modality="image"))
        self.spec = replace(self.spec, num_position_rows=3, num_extra_rows=self._tower.num_taps)
        if self._tower.num_taps:
            # HF picks image tokens by a mask, which a GPU has to be waited for; our rows are there for every token.
            text: Any = self._text
            text._deepstack_process = MethodType(_add_rows, text)

    @classmethod
    def load(cls, checkpoint: Checkpoint) -> QwenVl:
        """Read processor and weights. Raises `ModelLoadError`."""
        processor = checkpoint.load_part(AutoProcessor.from_pretrained)
        return cls(checkpoint, checkpoint.load_model(AutoModelForImageTextToText.from_pretrained), processor)

    def process(self, image: Image.Image) -> ProcessedImage:
        """See `VisionLanguageAdapter.process`: patches [P, K], those of one embedding next to one another."""
        inputs = self._processor.image_processor(images=[image], return_tensors="pt")
        _, height, width = inputs["image_grid_thw"][0].tolist()
        grid = (height // self._merge, width // self._merge)
        placeholder = self._processor.image_token * (grid[0] * grid[1])
        return ProcessedImage(inputs["pixel_values"].float(), placeholder, grid)

    def num_slices(self, processed: ProcessedImage) -> int:
        """See `VisionLanguageAdapter.num_slices`."""
        return len(self._tower.layout(processed.grid).slices)

    def encode_together(self, images: Sequence[ImageInput]) -> Generator[None, None, tuple[torch.Tensor, ...]]:
        """See `ModelAdapter.encode_together`."""
        processed = processed_of(images)
        pixels = self._to_device(torch.stack([p.pixels for p in processed]))
        return tuple((yield from self._tower.run(pixels, self._tower.layout(processed[0].grid))))

    def positions(self, num_tokens: int, runs: Sequence[tuple[ImageSpan, ProcessedImage]]) -> tuple[PositionRows, int]:
        """See `VisionLanguageAdapter.positions`."""
        return mrope_positions(num_tokens, [Picture(span.start, *processed.grid) for span, processed in runs])

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """See `ModelAdapter.embed`."""
        return pad(self._table(token_ids), (0, self.spec.hidden_size * self._tower.num_taps))

    def forward(self, embeds: torch.Tensor, positions: torch.Tensor, plan: object) -> torch.Tensor:
        """See `ModelAdapter.forward`."""
        if not self._tower.num_taps:
            return super().forward(embeds, positions, plan)
        first, *tapped = embeds[None].chunk(1 + self._tower.num_taps, dim=-1)
        output = self._text(
            inputs_embeds=first,
            position_ids=positions[:, None],
            use_cache=False,
            plan=plan,
            deepstack_visual_embeds=tapped,
        )
        return output.last_hidden_state[0]


def embeds_bounds(size: Any, pixels_per_embed: int) -> tuple[int, int]:
    """The fewest and the most embeddings of any picture, for a processor of `size` in pixels.

    Sides are rounded to whole embeddings, each by itself: down where a picture is reduced, to no less than one, up
    where it is enlarged. For narrow pictures that can go past the processor's own bounds; these hold for all.
    """
    least, most = -(-size["shortest_edge"] // pixels_per_embed), size["longest_edge"] // pixels_per_embed
    narrow = math.isqrt(LONGEST_RATIO * (most + 1)) + 1
    enlarged = least + math.ceil(math.sqrt(LONGEST_RATIO * least) + math.sqrt(least)) + 1
    return max(1, min(least, most // 4)), max(most, narrow, enlarged)


def _add_rows(_text: Any, hidden: torch.Tensor, _mask: None, rows: torch.Tensor) -> torch.Tensor:
    return hidden + rows
