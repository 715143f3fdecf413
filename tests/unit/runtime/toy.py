"""A `ModelAdapter` small enough to compute by hand, whose encoder does what a test tells it to."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch

from backend.models.adapter import Message, ModelSpec, TextParts
from backend.runtime.attention.base import StepAttention
from backend.types.request import ImageInput, Prepared

if TYPE_CHECKING:
    from PIL import Image
    from transformers import PreTrainedTokenizerBase

VOCAB_SIZE, HIDDEN = 16, 4


class ToyAdapter:
    """Logits of a token are one-hot at (id + 1) % V; image rows push them to where their first number says.

    An image's `pixels` is its script: one entry per slice, an exception to raise or None, and then the rows to return.
    """

    spec = ModelSpec(
        family="toy",
        num_layers=1,
        num_kv_heads=1,
        head_dim=HIDDEN,
        hidden_size=HIDDEN,
        vocab_size=VOCAB_SIZE,
        max_model_len=64,
        num_position_rows=1,
        eos_token_ids=frozenset(),
        image_token_id=15,
        max_embeds_per_image=8,
    )
    device = torch.device("cpu")
    dtype = torch.float32
    vision_blocks = None
    tokenizer = cast("PreTrainedTokenizerBase", None)
    chat_template: Any = None

    def __init__(self) -> None:
        self.num_resumed = 0
        self.closed: list[str] = []
        self.batches: list[tuple[str, ...]] = []
        self.poisoned_ids: set[int] = set()

    def prepare(self, messages: Sequence[Message], images: Sequence[Image.Image], tools: Any = ()) -> Prepared:
        raise AssertionError("the runner never prepares")

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(token_ids[:, None].float(), (0, HIDDEN - 1))

    def encode(self, image: ImageInput) -> Generator[None, None, torch.Tensor]:
        return (yield from self.encode_together((image,)))[0]

    def encode_together(self, images: Sequence[ImageInput]) -> Generator[None, None, tuple[torch.Tensor, ...]]:
        """A batch fails with the first error of any."""
        assert torch.is_inference_mode_enabled(), "the resumer holds inference mode"
        self.batches.append(tuple(image.key for image in images))
        scripts = [cast(list[Any], image.pixels) for image in images]
        try:
            for index, errors in enumerate(zip(*(script[:-1] for script in scripts), strict=True)):
                self.num_resumed += 1
                for error in errors:
                    if error is not None:
                        raise error
                if index < len(scripts[0]) - 2:
                    yield
            return tuple(script[-1] for script in scripts)
        finally:
            self.closed += [image.key for image in images]

    def forward(self, embeds: torch.Tensor, positions: torch.Tensor, plan: object) -> torch.Tensor:
        assert isinstance(plan, StepAttention)
        return embeds

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        ids = hidden[:, 0].long()
        logits = torch.nn.functional.one_hot((ids + 1) % VOCAB_SIZE, VOCAB_SIZE).float()
        logits[[i in self.poisoned_ids for i in ids.tolist()]] = float("nan")
        return logits

    def text_parts(self) -> TextParts:
        raise AssertionError("only compiled loops ask for them")


def image(key: str, num_embeds: int, script: list[Any]) -> ImageInput:
    """An image of `len(script) - 1` slices."""
    return ImageInput(key, num_embeds, num_slices=len(script) - 1, pixels=script)


def rows(*values: float) -> torch.Tensor:
    """Embedding rows that begin with `values`."""
    return torch.nn.functional.pad(torch.tensor(values)[:, None], (0, HIDDEN - 1))
