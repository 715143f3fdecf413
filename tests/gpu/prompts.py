"""Prompts of random tokens and pictures, as `prepare` would have made them."""

from __future__ import annotations

import torch

from backend.models.vision_language import VisionLanguageAdapter
from backend.types.request import ImageInput, ImageSpan, Prepared
from tests.gpu.made_models import IMAGE_TOKEN, Made


def random_ids(made: Made, num_tokens: int, generator: torch.Generator) -> list[int]:
    """Token ids; none stands for an image."""
    return torch.randint(0, made.adapter.spec.vocab_size - 1, (num_tokens,), generator=generator).tolist()


def text_prompt(made: Made, num_tokens: int, generator: torch.Generator) -> Prepared:
    """A prompt without a picture."""
    positions = tuple(range(num_tokens) for _ in range(made.adapter.spec.num_position_rows))
    return Prepared(tuple(random_ids(made, num_tokens, generator)), (), (), positions)


def picture_prompt(made: Made, key: str, before: int, after: int, generator: torch.Generator) -> Prepared:
    """A prompt with a picture behind `before` tokens; `key` makes it another picture than others."""
    adapter = made.adapter
    assert isinstance(adapter, VisionLanguageAdapter), "a model that takes images"
    processed = made.picture(generator)
    num_embeds = processed.placeholder.count(IMAGE_TOKEN)
    image = ImageInput(key, num_embeds, adapter.num_slices(processed), processed, adapter.layout(processed))
    ids = random_ids(made, before + after, generator)
    ids[before:before] = [made.adapter.spec.vocab_size - 1] * num_embeds
    span = ImageSpan(before, num_embeds, key)
    positions, delta = adapter.positions(len(ids), [(span, processed)])
    return Prepared(tuple(ids), (image,), (span,), positions, delta)


def mixed_prompts(made: Made, lengths: tuple[int, ...]) -> list[Prepared]:
    """Prompts of these many tokens of text; if the model takes pictures, every other one has one in it."""
    generator = torch.Generator().manual_seed(3)
    if not made.adapter.spec.takes_images:
        return [text_prompt(made, length, generator) for length in lengths]
    return [
        picture_prompt(made, f"picture {i}", i * 3, length - i * 3, generator)
        if i % 2
        else text_prompt(made, length, generator)
        for i, length in enumerate(lengths)
    ]
