"""Gemma 3 with images: runs that may not be split, what stands around them, pan and scan."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForImageTextToText, AutoProcessor

from backend.errors import Rejected
from backend.models.adapter import ModelAdapter
from backend.models.registry import load
from backend.sched.limits import check_request
from backend.types.request import Request, SamplingParams
from tests.equivalence.harness import limits, picture
from tests.unit.models.test_encode import MESSAGES, image_of, run

Adapters = Callable[[str], ModelAdapter]
Checkpoints = Callable[[str], Path]


def test_a_picture_is_one_atomic_run(adapter: Adapters) -> None:
    model = adapter("gemma3")
    prompt = model.prepare(MESSAGES, [picture(1, 300, 20)])
    (span,) = prompt.spans
    assert span.atomic
    assert span.length == model.spec.max_atomic_len == model.spec.max_embeds_per_image == 16
    names = model.tokenizer.convert_ids_to_tokens(list(prompt.token_ids))
    assert (names[span.start - 1], names[span.end]) == ("<start_of_image>", "<end_of_image>")


@pytest.mark.parametrize("word", ["<image_soft_token>", "<start_of_image>"])
def test_the_words_for_images_are_kept_for_images(word: str, adapter: Adapters) -> None:
    with pytest.raises(Rejected, match=f"the text contains '{word}'"):
        adapter("gemma3").prepare([{"role": "user", "content": f"What is {word}?"}], [])


def test_a_step_too_small_for_a_picture_beside_the_others_is_refused_with_the_limit(adapter: Adapters) -> None:
    """R5: whatever the soft budget, a picture fits into the hard one beside a token of each other request, or never."""
    prompt = adapter("gemma3").prepare(MESSAGES, [picture(1, 32, 32)])
    request = Request("r", prompt, SamplingParams(max_tokens=4))
    check_request(request, limits(4, hard_num_batched_tokens=19))
    with pytest.raises(Rejected, match="An image takes 16 tokens at once, but a step beside 3 running requests holds"):
        check_request(request, limits(4, hard_num_batched_tokens=18))


def test_logits_are_not_capped(adapter: Adapters) -> None:
    """The config says 3.0, and transformers' class for images ignores it."""
    model = adapter("gemma3")
    assert model.logits(torch.ones(1, model.spec.hidden_size)).abs().max() > 3.0


def test_pan_and_scan_makes_a_run_of_each_crop(checkpoint: Checkpoints, tmp_path: Path) -> None:
    for file in checkpoint("gemma3").iterdir():
        (tmp_path / file.name).symlink_to(file)
    path = tmp_path / "processor_config.json"
    config = json.loads(path.read_text())
    path.unlink()
    config["image_processor"] |= {"do_pan_and_scan": True, "pan_and_scan_min_crop_size": 16}
    path.write_text(json.dumps(config))
    model = load(str(tmp_path), device="cpu", dtype="auto")
    image = picture(1, 100, 30)
    prompt = model.prepare(MESSAGES, [image])
    assert [(s.length, s.offset) for s in prompt.spans] == [(16, 0), (16, 16), (16, 32), (16, 48)]
    assert model.spec.max_embeds_per_image == 5 * 16
    assert model.spec.max_image_side == 0, "crops show more of it than the size of one"
    processor = AutoProcessor.from_pretrained(tmp_path)
    options = {"do_pan_and_scan": True, "pan_and_scan_max_num_crops": 4, "pan_and_scan_min_ratio_to_activate": 1.2}
    inputs = processor.image_processor(images=[image], return_tensors="pt", **options, pan_and_scan_min_crop_size=16)
    theirs: Any = AutoModelForImageTextToText.from_pretrained(tmp_path)
    with torch.inference_mode():
        rows = theirs.get_image_features(pixel_values=inputs["pixel_values"]).pooler_output
    torch.testing.assert_close(run(model, image_of(model, image)), rows.flatten(0, 1), atol=1e-5, rtol=1e-5)
