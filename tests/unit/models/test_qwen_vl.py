"""Qwen2.5-VL and Qwen3-VL: bounds of the processor, positions, slices of every size, and refusals."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import AutoModelForImageTextToText

from backend.errors import ModelLoadError, Rejected
from backend.models import patch_tower
from backend.models.adapter import ModelAdapter
from backend.models.mrope import Picture, mrope_positions
from backend.models.patch_layout import Cost, Pace
from backend.models.qwen_vl import embeds_bounds
from backend.models.registry import load
from backend.sched.limits import check_request
from backend.types.request import Request, SamplingParams
from tests.equivalence.harness import limits, picture
from tests.pace import SLOW
from tests.unit.models.test_encode import MESSAGES, image_of, run, theirs

Adapters = Callable[[str], ModelAdapter]
Checkpoints = Callable[[str], Path]
QWEN = ("qwen2_5_vl", "qwen3_vl")
SLOWER = Pace(*(Cost(0.0, row_s) for row_s in (1e-6, 1e-3, 1e-3, 1e-3)), pair_s=1e-5)
SIZES = ((17, 90), (8, 8), (64, 40), (40, 64), (200, 12), (96, 96))


@pytest.mark.parametrize("pace", [Pace(), SLOW, SLOWER], ids=["none", "slow", "slower"])
@pytest.mark.parametrize("family", QWEN)
def test_rows_do_not_depend_on_the_slices(family: str, pace: Pace, adapter: Adapters, checkpoint: Checkpoints) -> None:
    """Windows and queries cut anywhere: the rows are those of transformers, for wide, tall and tiny pictures."""
    model: Any = adapter(family)
    model._tower.set_pace(pace)
    for size in SIZES[:1] if pace is SLOWER else SIZES:
        image = picture(1, *size)
        torch.testing.assert_close(
            run(model, image_of(model, image)), theirs(checkpoint(family), image), atol=1e-5, rtol=1e-5
        )
    model._tower.set_pace(SLOW)


@pytest.mark.parametrize("family", QWEN)
def test_without_a_pace_every_block_is_a_slice(family: str, adapter: Adapters) -> None:
    model: Any = adapter(family)
    model._tower.set_pace(Pace())
    assert image_of(model, picture(1, 96, 96)).num_slices == 3
    model._tower.set_pace(SLOW)
    assert image_of(model, picture(1, 96, 96)).num_slices > 10


@pytest.mark.parametrize("family", QWEN)
def test_an_error_in_the_tower_surfaces_at_the_resumer(
    family: str, adapter: Adapters, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = adapter(family)
    image = image_of(model, picture(4, 96, 32))
    good = run(model, image)

    def fail(*_: Any) -> torch.Tensor:
        raise RuntimeError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(patch_tower, "project", fail)
        with pytest.raises(RuntimeError, match="no memory"):
            run(model, image)
    assert torch.equal(run(model, image), good)


@pytest.mark.parametrize("family", QWEN)
def test_every_picture_is_within_the_announced_bounds(family: str, adapter: Adapters) -> None:
    model: Any = adapter(family)
    rng = random.Random(0)
    seen = []
    for _ in range(60):
        width = rng.choice([1, 3, 8, 20, 100, rng.randint(1, 400)])
        height = rng.randint(max(1, width // 199 + 1), min(199 * width, 400))
        seen.append(image_of(model, Image.new("RGB", (width, height))).num_embeds)
    assert model.spec.min_embeds_per_image <= min(seen)
    assert max(seen) <= model.spec.max_embeds_per_image
    assert len(set(seen)) > 10, "pictures of many sizes take many numbers of tokens"


def test_bounds_of_real_checkpoints() -> None:
    """Where the bounds are far apart they are the processor's own."""
    assert embeds_bounds({"shortest_edge": 3136, "longest_edge": 12845056}, 28 * 28) == (4, 16384)
    assert embeds_bounds({"shortest_edge": 65536, "longest_edge": 16777216}, 32 * 32) == (64, 16384)


@pytest.mark.parametrize("family", QWEN)
def test_max_pixels_of_the_checkpoint_are_honoured(family: str, checkpoint: Checkpoints, tmp_path: Path) -> None:
    """As hub checkpoints write them, in preprocessor_config.json."""
    for file in checkpoint(family).iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "processor_config.json").unlink(missing_ok=True)
    plain = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "patch_size": 4,
        "merge_size": 2,
        "temporal_patch_size": 2,
    }
    bounds = {"min_pixels": 64, "max_pixels": 20 * 64}
    (tmp_path / "preprocessor_config.json").unlink(missing_ok=True)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(plain | bounds))
    model = load(str(tmp_path), device="cpu", dtype="auto")
    assert image_of(model, picture(1, 300, 300)).num_embeds == 16
    assert model.spec.max_image_side == 35


@pytest.mark.parametrize("family", QWEN)
def test_positions_are_those_of_transformers(family: str, adapter: Adapters, checkpoint: Checkpoints) -> None:
    model = adapter(family)
    theirs: Any = AutoModelForImageTextToText.from_pretrained(checkpoint(family))
    content = [
        {"type": "text", "text": "One "},
        {"type": "image"},
        {"type": "image"},
        {"type": "text", "text": " and "},
        {"type": "image"},
    ]
    images = [picture(1, 64, 40), picture(2, 17, 90), picture(3, 90, 90)]
    prompt = model.prepare([{"role": "user", "content": content}], images)
    ids = torch.tensor([prompt.token_ids])
    by_key = {i.key: i.pixels.grid for i in prompt.images}  # type: ignore[attr-defined]
    grids = [[1, 2 * by_key[s.key][0], 2 * by_key[s.key][1]] for s in prompt.spans]
    positions, delta = theirs.model.get_rope_index(
        ids, (ids == model.spec.image_token_id).int(), image_grid_thw=torch.tensor(grids)
    )
    assert [list(row) for row in prompt.positions] == positions[:, 0].tolist()
    assert prompt.decode_delta == delta.item() < 0


def test_pictures_may_touch() -> None:
    """Nothing between them, nothing around them."""
    rows, delta = mrope_positions(7, [Picture(0, 1, 2), Picture(2, 2, 2)])
    assert rows == ((0, 0, 2, 2, 2, 2, 4), (0, 0, 2, 2, 3, 3, 4), (0, 1, 2, 3, 2, 3, 4))
    assert delta == -2


@pytest.mark.parametrize("family", QWEN)
def test_one_grid_turned_is_another_image(family: str, adapter: Adapters) -> None:
    """As many embeddings, other positions: the picture's shape belongs to its key."""
    model = adapter(family)
    wide, tall = (image_of(model, Image.new("RGB", size, "grey")) for size in ((64, 32), (32, 64)))
    assert wide.num_embeds == tall.num_embeds
    assert wide.key != tall.key


@pytest.mark.parametrize("family", QWEN)
def test_an_image_beyond_the_encoder_cache_is_refused_with_the_limit(family: str, adapter: Adapters) -> None:
    model = adapter(family)
    prompt = model.prepare(MESSAGES, [picture(1, 96, 96)])
    request = Request("r", prompt, SamplingParams(max_tokens=4))
    check_request(request, limits(16))
    with pytest.raises(Rejected, match=r"needs 36 embeddings, but the encoder cache holds 35\. Send a smaller image"):
        check_request(request, limits(16, encoder_cache_embeds=35))


@pytest.mark.parametrize("family", QWEN)
def test_a_picture_too_narrow_is_refused(family: str, adapter: Adapters) -> None:
    with pytest.raises(Rejected, match=r"image 1 \(1000x2\) cannot be processed by this model: .*aspect ratio"):
        adapter(family).prepare(MESSAGES, [Image.new("RGB", (1000, 2))])


def test_taps_travel_with_the_rows_and_are_zero_for_text(adapter: Adapters) -> None:
    model = adapter("qwen3_vl")
    hidden = model.spec.hidden_size
    rows = run(model, image_of(model, picture(1, 64, 64)))
    assert rows.shape[1] == 3 * hidden
    assert all(part.abs().max() > 0.01 for part in rows.chunk(3, dim=1))
    embeds = model.embed(torch.tensor([5, 6]))
    assert embeds.shape == (2, 3 * hidden)
    assert not embeds[:, hidden:].any()


@pytest.mark.parametrize("family", QWEN)
def test_images_of_unbounded_size_are_refused_at_the_start(
    family: str, checkpoint: Checkpoints, tmp_path: Path
) -> None:
    for file in checkpoint(family).iterdir():
        (tmp_path / file.name).symlink_to(file)
    path = tmp_path / "processor_config.json"
    config = json.loads(path.read_text())
    path.unlink()
    config["image_processor"]["do_resize"] = False
    path.write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match="does not bound the size of images"):
        load(str(tmp_path), device="cpu", dtype="auto")


@pytest.mark.parametrize("rope_type", ["dynamic", "longrope"])
@pytest.mark.parametrize("family", QWEN)
def test_rotary_scalings_that_follow_the_batch_are_refused(
    family: str, rope_type: str, checkpoint: Checkpoints, tmp_path: Path
) -> None:
    for file in checkpoint(family).iterdir():
        (tmp_path / file.name).symlink_to(file)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    path.unlink()
    scaling = {
        "factor": 2.0,
        "short_factor": [1.0] * 8,
        "long_factor": [2.0] * 8,
        "original_max_position_embeddings": 64,
    }
    config["text_config"]["rope_parameters"] |= {"rope_type": rope_type, **scaling}
    path.write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match=f"rotary positions by '{rope_type}'"):
        load(str(tmp_path), device="cpu", dtype="auto")


def test_a_checkpoint_as_the_hub_has_it(checkpoint: Checkpoints, adapter: Adapters, tmp_path: Path) -> None:
    """Qwen2.5-VL was published with its text model's settings at the top and the older names of its weights."""
    directory = checkpoint("qwen2_5_vl")
    for file in directory.iterdir():
        if file.name not in ("config.json", "model.safetensors"):
            (tmp_path / file.name).symlink_to(file)
    config = json.loads((directory / "config.json").read_text())
    text = {k: v for k, v in config.pop("text_config").items() if k not in ("model_type", "rope_parameters", "dtype")}
    rope = {"rope_theta": 10000.0, "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}}
    (tmp_path / "config.json").write_text(json.dumps(config | text | rope))
    weights = load_file(directory / "model.safetensors")
    renamed = {
        name.replace("model.visual.", "visual.").replace("model.language_model.", "model."): weight
        for name, weight in weights.items()
    }
    assert any(name.startswith("visual.blocks.0") for name in renamed)
    assert any(name.startswith("model.layers.0") for name in renamed)
    save_file(renamed, tmp_path / "model.safetensors", metadata={"format": "pt"})
    model, known = load(str(tmp_path), device="cpu", dtype="auto"), adapter("qwen2_5_vl")
    assert replace(model.spec, eos_token_ids=known.spec.eos_token_ids) == known.spec
    ids = torch.tensor([[3, 4]])
    assert torch.equal(model.embed(ids), known.embed(ids))
    assert torch.equal(*(m.text_parts().decoder.rotary_emb.inv_freq for m in (model, known)))
    image = picture(1, 64, 40)
    torch.testing.assert_close(run(model, image_of(model, image)), theirs(directory, image), atol=1e-5, rtol=1e-5)
