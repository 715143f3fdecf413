"""A vision transformer's blocks in int8: near the exact ones, whole or in ranges, and chosen only where they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import gelu, scaled_dot_product_attention

from backend.models.adapter import BlockParts
from backend.models.registry import load
from backend.runtime.native import encoder_choice
from backend.runtime.native.encoder_choice import choose_encoder, probe_pictures, relative_error
from backend.runtime.native.vision_weights import find_block_obstacle
from tests.checkpoints import build_smolvlm
from tests.equivalence.harness import picture
from tests.unit.models.test_encode import image_of, resume, run

NUM_PATCHES, HIDDEN, INNER, HEADS = 100, 64, 96, 2


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    if obstacle := encoder_choice.find_kernel_obstacle(int8=True):
        pytest.skip(obstacle)
    # A tower of so few columns is further off than a real one.
    monkeypatch.setattr(encoder_choice, "MAX_ERROR", 0.1)


class Pauses:
    """A pacer that writes down what it is told."""

    def __init__(self, slice_s: float = 1.0) -> None:
        self.slice_s = slice_s
        self.spent: list[float] = []

    def spend(self, seconds: float) -> None:
        self.spent.append(seconds)


def block(seed: int = 0, activation: str = "gelu_pytorch_tanh", heads: int = HEADS) -> BlockParts:
    torch.manual_seed(seed)
    linear = torch.nn.Linear
    norm1, norm2 = torch.nn.LayerNorm(HIDDEN), torch.nn.LayerNorm(HIDDEN)
    for norm in (norm1, norm2):
        torch.nn.init.normal_(norm.weight, 1.0, 0.2)
        torch.nn.init.normal_(norm.bias, 0.0, 0.2)
    qkv = (linear(HIDDEN, HIDDEN), linear(HIDDEN, HIDDEN), linear(HIDDEN, HIDDEN))
    for projection in qkv[:2]:
        projection.weight.data.mul_(4.0)  # so that attention has something to choose between
    up, down = linear(HIDDEN, INNER), linear(INNER, HIDDEN, bias=False)
    return BlockParts(norm1, qkv, linear(HIDDEN, HIDDEN), norm2, up, down, activation, heads, (HIDDEN // heads) ** -0.5)


def exact(parts: BlockParts, x: torch.Tensor) -> torch.Tensor:
    """The block in float32."""
    normed = parts.norm1(x)
    q, k, v = (p(normed).view(1, len(x[0]), HEADS, -1).transpose(1, 2) for p in parts.qkv)
    mixed = scaled_dot_product_attention(q, k, v, scale=parts.scaling)
    x = x + parts.out(mixed.transpose(1, 2).reshape(x.shape))
    return x + parts.down(gelu(parts.up(parts.norm2(x)), approximate="tanh"))


def native(parts: BlockParts, pauses: Pauses) -> Any:
    from backend.runtime.native.encoder import NativeBlock, Workshop

    return NativeBlock(Workshop(NUM_PATCHES, parts, pauses), parts)


def test_a_block_is_near_the_exact_one() -> None:
    parts, x = block(), torch.randn(1, NUM_PATCHES, HIDDEN, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        added = exact(parts, x) - x
        error = native(parts, Pauses())(x.clone()) - x - added
    assert 0 < error.norm() < 0.04 * added.norm()
    assert error.norm(dim=-1).max() < 0.1 * added.norm(dim=-1).max()


def test_far_off_keys_cost_no_precision() -> None:
    """A bias that all keys share moves no weight of a softmax, but would take most of their eight bits."""
    parts, x = block(), torch.randn(1, NUM_PATCHES, HIDDEN, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        parts.qkv[1].bias.add_(100.0)
        added = exact(parts, x) - x
        error = native(parts, Pauses())(x.clone()) - x - added
    assert error.norm() < 0.04 * added.norm()


def test_ranges_give_what_the_whole_gives_and_are_announced() -> None:
    parts, x = block(), torch.randn(1, NUM_PATCHES, HIDDEN)
    pauses = Pauses()
    layer = native(parts, pauses)
    whole = layer(x.clone())
    assert len(pauses.spent) == 3
    pauses.slice_s, pauses.spent = 1.0, []
    layer._shop.pace.project_s = layer._shop.pace.finish_s = 1.0
    assert torch.equal(layer(x.clone()), whole)
    assert len(pauses.spent) == 2 * -(-NUM_PATCHES // 12) + 1


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        (block(activation="quick_gelu"), "activation is 'quick_gelu'"),
        (block(heads=4), "head size of 16 is no multiple of 32"),
        (block(), None),
    ],
)
def test_what_the_loops_cannot_compute_is_said(parts: BlockParts, reason: str | None) -> None:
    found = find_block_obstacle(parts)
    assert found is None if reason is None else reason in str(found)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny SmolVLM whose tower the loops can compute."""
    path = tmp_path_factory.mktemp("smolvlm_wide")
    build_smolvlm(path, vision={"hidden_size": 64, "intermediate_size": 96})
    return path


def chosen(directory: Path, cache: Path, quantization: str = "int8") -> tuple[Any, list[str]]:
    said: list[str] = []
    model: Any = load(str(directory), device="cpu", dtype="auto")
    choose_encoder(model, quantization, cache, said.append)
    return model, said


def test_an_int8_tower_takes_the_announced_slices_and_gives_close_rows(directory: Path, tmp_path: Path) -> None:
    plain, said = chosen(directory, tmp_path, "none")
    assert not said
    model, said = chosen(directory, tmp_path)
    assert said[-1].startswith("Vision encoder: int8 (float32 ")
    pictures = [image_of(model, picture(seed, 96, 64)) for seed in (1, 2)]
    alone = [run(model, image) for image in pictures]
    rows = run(plain, image_of(plain, picture(1, 96, 64)))
    assert 0 < relative_error([alone[0]], [rows]) < 0.1
    encoders = [model.encode(image) for image in pictures]
    resume(encoders[0])
    for _ in range(pictures[0].num_slices - 2):
        assert [resume(encoder) for encoder in encoders] == [None, None]
    first = resume(encoders[0])
    assert resume(encoders[1]) is None
    second = resume(encoders[1])
    assert first is not None
    assert second is not None
    assert torch.equal(first, alone[0])
    assert torch.equal(second, alone[1])


def test_an_encoder_dropped_inside_an_int8_block_leaves_no_trace(directory: Path, tmp_path: Path) -> None:
    model, _ = chosen(directory, tmp_path)
    model._tower.slice_s = 1e-12
    model.recount_slices(takes_batches=True)
    image = image_of(model, picture(3, 32, 32))
    before = run(model, image)
    for num_slices in range(1, 12):
        encoder = model.encode(image)
        for _ in range(num_slices):
            resume(encoder)
        encoder.close()
    assert torch.equal(run(model, image), before)


def test_a_choice_is_remembered(directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, first = chosen(directory, tmp_path)
    monkeypatch.setattr(encoder_choice, "_measure", lambda blocks: pytest.fail("measured again"))
    _, second = chosen(directory, tmp_path)
    assert second == first[-1:]


def test_a_tower_that_is_too_far_off_stays_float32(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder_choice, "MAX_ERROR", 1e-9)
    model, said = chosen(directory, tmp_path)
    assert said[-1].startswith("Vision encoder: float32 (")
    plain, _ = chosen(directory, tmp_path, "none")
    image = picture(1, 96, 64)
    torch.testing.assert_close(run(model, image_of(model, image)), run(plain, image_of(plain, image)))


def test_the_ends_stay_float32_until_the_error_is_small_enough(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = iter((0.5, 0.01))
    monkeypatch.setattr(encoder_choice, "relative_error", lambda *_: next(errors))
    model, said = chosen(directory, tmp_path)
    assert "2 of 3 blocks stay float32" in said[-1]
    kinds = [type(layer).__name__ for layer in model._vision.encoder.layers]
    assert kinds == ["SmolVLMEncoderLayer", "NativeBlock", "SmolVLMEncoderLayer"]


def test_auto_takes_int8_only_where_it_is_faster(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings = {"float32": [1.0], "int8": [2.0], "error": [0.01], "kept": [0]}
    monkeypatch.setattr(encoder_choice, "_measure", lambda blocks: readings)
    assert chosen(directory, tmp_path, "auto")[1][-1].startswith("Vision encoder: float32 (")
    readings["int8"] = [0.5]
    assert chosen(directory, tmp_path / "other", "auto")[1][-1].startswith("Vision encoder: int8 (")


def test_a_failing_kernel_prevents_no_start(directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(blocks: Any) -> Any:
        raise RuntimeError("no such instruction\nat all")

    monkeypatch.setattr(encoder_choice, "_measure", broken)
    model, said = chosen(directory, tmp_path)
    assert said[-1] == "Vision encoder: float32; int8 fails: no such instruction"
    assert run(model, image_of(model, picture(1, 32, 32))).isfinite().all()


def test_a_model_without_a_transformer_is_left_alone(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    for family in ("llama", "fast_vlm"):
        assert not chosen(checkpoint(family), tmp_path)[1]


def test_probes_are_pictures_of_their_own() -> None:
    pictures = probe_pictures()
    assert len({picture.tobytes() for picture in pictures}) == 3
    assert all(picture.mode == "RGB" for picture in pictures)
