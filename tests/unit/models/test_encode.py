"""Towers paused between blocks: the same numbers as an undisturbed run, whatever happens in between."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

from backend.models.adapter import ModelAdapter
from backend.models.vision_language import ProcessedImage
from backend.types.request import ImageInput
from tests.equivalence.harness import picture

Adapters = Callable[[str], ModelAdapter]
TILED = ("fast_vlm", "smolvlm")
VISION = (*TILED, "gemma3", "qwen2_5_vl", "qwen3_vl")
MESSAGES = [{"role": "user", "content": [{"type": "image"}]}]


def image_of(model: ModelAdapter, image: Image.Image) -> ImageInput:
    return model.prepare(MESSAGES, [image]).images[0]


def resume(encoder: Generator[None, None, torch.Tensor]) -> torch.Tensor | None:
    """One resumption, as the runner does it; the rows if it was the last."""
    with torch.inference_mode():
        try:
            next(encoder)
        except StopIteration as end:
            return end.value
    return None


def run(model: ModelAdapter, image: ImageInput) -> torch.Tensor:
    encoder = model.encode(image)
    for _ in range(image.num_slices - 1):
        assert resume(encoder) is None
    rows = resume(encoder)
    assert rows is not None, "announced slices finish the image"
    return rows


def theirs(directory: Path, image: Image.Image) -> torch.Tensor:
    """The rows that transformers makes of the image, all tiles in one batch, undisturbed."""
    processor = AutoProcessor.from_pretrained(directory)
    inputs = processor.image_processor(images=[image], return_tensors="pt")
    model: Any = AutoModelForImageTextToText.from_pretrained(directory)
    with torch.inference_mode():
        features = model.get_image_features(**inputs)
    tapped = getattr(features, "deepstack_features", None) or []
    return torch.cat([features.pooler_output[0], *(level[0] for level in tapped)], dim=-1)


@pytest.mark.parametrize("family", VISION)
def test_rows_are_those_of_transformers(family: str, adapter: Adapters, checkpoint: Callable[[str], Path]) -> None:
    image = picture(1, 96, 64)
    rows = run(adapter(family), image_of(adapter(family), image))
    torch.testing.assert_close(rows, theirs(checkpoint(family), image), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", VISION)
def test_interleaved_encoders_do_not_disturb_each_other(family: str, adapter: Adapters) -> None:
    model = adapter(family)
    images = [image_of(model, picture(seed, 96, 32)) for seed in (1, 2)]
    alone = [run(model, image) for image in images]
    encoders = [model.encode(image) for image in images]
    results: list[torch.Tensor | None] = [None, None]
    for _ in range(images[0].num_slices):
        for index, encoder in enumerate(encoders):
            results[index] = resume(encoder)
    for rows, undisturbed in zip(results, alone, strict=True):
        assert rows is not None
        assert torch.equal(rows, undisturbed)
    assert not torch.equal(alone[0], alone[1])


@pytest.mark.parametrize("family", VISION)
def test_an_abandoned_encoder_leaves_no_trace(family: str, adapter: Adapters) -> None:
    model = adapter(family)
    image = image_of(model, picture(3, 96, 32))
    before = run(model, image)
    for num_slices in range(image.num_slices):
        encoder = model.encode(image)
        for _ in range(num_slices):
            resume(encoder)
        encoder.close()
    assert torch.equal(run(model, image), before)
    assert not torch.is_inference_mode_enabled()


@pytest.mark.parametrize("family", TILED)
def test_an_error_in_the_tower_surfaces_at_the_resumer(
    family: str, adapter: Adapters, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Any = adapter(family)
    image = image_of(model, picture(4, 96, 32))
    good = run(model, image)

    def fail(tiles: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(model, "encode_tiles", fail)
        with pytest.raises(RuntimeError, match="no memory"):
            resume(model.encode(image))
    assert torch.equal(run(model, image), good)


def test_a_tile_of_zeros_keeps_its_rows(adapter: Adapters) -> None:
    """transformers takes an all-zero tile for padding and drops it; then rows and placeholders no longer match."""
    model = adapter("smolvlm")
    image = image_of(model, picture(5, 96, 96))
    assert isinstance(image.pixels, ProcessedImage)
    tiles = image.pixels.pixels
    whole = run(model, image)
    tiles[4] = 0.0
    rows = run(model, image)
    assert rows.shape == (image.num_embeds, model.spec.hidden_size)
    untouched = [i for i in range(image.num_embeds) if i // 4 != 4]
    assert torch.equal(rows[untouched], whole[untouched])


def test_an_image_without_a_grid_is_one_tile(adapter: Adapters) -> None:
    """`do_image_splitting` off in the processor: the overview alone, and the same rows as transformers makes of it."""
    model: Any = adapter("smolvlm")
    processor = model._processor.image_processor
    splitting, processor.do_image_splitting = processor.do_image_splitting, False
    try:
        image = image_of(model, picture(6, 96, 64))
    finally:
        processor.do_image_splitting = splitting
    assert (image.num_embeds, image.num_slices) == (4, model._slices_per_tile)
    assert run(model, image).shape == (4, 64)


@pytest.mark.parametrize("family", [*VISION, "idefics3", "llava", "llava_onevision", "internvl"])
def test_images_encoded_together_have_the_rows_they_have_alone(family: str, adapter: Adapters) -> None:
    model = adapter(family)
    images = [image_of(model, picture(seed, 96, 64)) for seed in (1, 2, 3)]
    alone = [run(model, image) for image in images]
    assert all(images[0].is_alike(image) for image in images)
    encoder: Any = model.encode_together(images)
    for _ in range(images[0].num_slices - 1):
        assert resume(encoder) is None
    together: Any = resume(encoder)
    for rows, expected in zip(together, alone, strict=True):
        torch.testing.assert_close(rows, expected, atol=1e-5, rtol=1e-5)
    assert (alone[0] - alone[1]).abs().max() > 1e-2
    assert (alone[1] - alone[2]).abs().max() > 1e-2


def test_pictures_of_other_sizes_are_not_alike(adapter: Adapters) -> None:
    for family in ("smolvlm", "qwen3_vl"):
        model = adapter(family)
        wide, high = image_of(model, picture(1, 128, 32)), image_of(model, picture(1, 32, 128))
        if wide.num_embeds == high.num_embeds and family == "qwen3_vl":
            assert not wide.is_alike(high), "as many patches, in other places"
        assert not wide.is_alike(image_of(model, picture(1, 96, 96)))
