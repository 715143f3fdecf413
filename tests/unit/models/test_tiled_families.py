"""LLaVA, LLaVA-OneVision, InternVL and Idefics3: bounds that hold, rows and tokens that are transformers' own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

from backend.models.adapter import ModelAdapter
from backend.types.request import ImageInput
from tests.equivalence.harness import picture

Adapters = Callable[[str], ModelAdapter]
FAMILIES = ("llava", "llava_onevision", "internvl", "idefics3")
IMAGE: dict[str, Any] = {"type": "image"}
SIZES = ((1, 1), (3, 2), (1, 120), (120, 1), (31, 33), (64, 64), (90, 60), (37, 100), (70, 64), (300, 200), (130, 500))


def prompt(num_images: int) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "text", "text": "Look"}, *[IMAGE] * num_images]}]


def rows_of(model: ModelAdapter, image: ImageInput) -> torch.Tensor:
    encoder = model.encode(image)
    with torch.inference_mode():
        for _ in range(image.num_slices - 1):
            next(encoder)
        with pytest.raises(StopIteration) as end:
            next(encoder)
    return end.value.value


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("family", FAMILIES)
def test_bounds_hold_alone_and_beside_another(family: str, size: tuple[int, int], adapter: Adapters) -> None:
    model = adapter(family)
    image = Image.new("RGB", size, (9, 90, 200))
    for num_images in (1, 2):
        found = model.prepare(prompt(num_images), [image] * num_images).images[0]
        assert model.spec.min_embeds_per_image <= found.num_embeds <= model.spec.max_embeds_per_image
        assert len(rows_of(model, found)) == found.num_embeds


@pytest.mark.parametrize("num_images", [1, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_and_rows_are_those_of_transformers(
    family: str, num_images: int, adapter: Adapters, checkpoint: Callable[[str], Path]
) -> None:
    """Several pictures, as frames of a video come, are not what one alone is to every family."""
    images = [picture(1, 90, 60), picture(2, 40, 100), picture(3, 64, 64)][:num_images]
    directory = checkpoint(family)
    processor: Any = AutoProcessor.from_pretrained(directory)
    text = processor.apply_chat_template(prompt(num_images), add_generation_prompt=True)
    theirs = processor(text=[text], images=[images], return_tensors="pt", add_special_tokens=False)
    prepared = adapter(family).prepare(prompt(num_images), images)
    assert list(prepared.token_ids) == theirs.pop("input_ids")[0].tolist()
    theirs.pop("attention_mask")
    model: Any = AutoModelForImageTextToText.from_pretrained(directory)
    with torch.inference_mode():
        features = model.get_image_features(**theirs).pooler_output
    expected = torch.cat([rows.reshape(-1, rows.shape[-1]) for rows in features])
    own = torch.cat([rows_of(adapter(family), image) for image in prepared.images])
    torch.testing.assert_close(own, expected, rtol=1e-4, atol=1e-4)


def test_a_picture_alone_is_cut_and_beside_others_is_not(adapter: Adapters) -> None:
    model = adapter("llava_onevision")
    image = picture(1, 64, 64)
    (alone,) = model.prepare(prompt(1), [image]).images
    (beside,) = model.prepare(prompt(2), [image, image]).images
    assert beside.num_embeds == 16 + 1, "a row end"
    assert alone.num_embeds > beside.num_embeds
    assert alone.key != beside.key


def test_pictures_that_differ_in_shape_alone_have_keys_of_their_own(adapter: Adapters) -> None:
    """Padding is cut off by the size a picture had, which its pixels may not tell."""
    one, other = (Image.new("RGB", size) for size in ((64, 62), (64, 60)))
    keys = {adapter("llava_onevision").prepare(prompt(1), [image]).images[0].key for image in (one, other)}
    assert len(keys) == 2
