"""Loading: what is right is described correctly, what is wrong is refused in one line that names it."""

from __future__ import annotations

import json
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Gemma3TextConfig

from backend.errors import ModelLoadError
from backend.models.adapter import ModelAdapter
from backend.models.registry import FAMILIES, load
from tests.checkpoints import build_tokenizer


def refused(model: str | Path, **options: Any) -> str:
    """The message of the refusal, which is one line."""
    with pytest.raises(ModelLoadError) as caught:
        load(str(model), **({"device": "cpu", "dtype": "auto"} | options))
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.fixture
def copy(checkpoint: Callable[[str], Path], tmp_path: Path) -> Path:
    """A tiny Llama checkpoint to spoil."""
    return Path(shutil.copytree(checkpoint("llama"), tmp_path / "spoilt"))


def edit_config(directory: Path, **changes: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_the_spec_says_what_the_checkpoint_is(adapter: Callable[[str], ModelAdapter]) -> None:
    qwen3 = adapter("qwen3").spec
    assert (qwen3.family, qwen3.num_layers, qwen3.num_kv_heads, qwen3.head_dim) == ("qwen3", 4, 2, 24)
    assert (qwen3.hidden_size, qwen3.max_model_len, qwen3.takes_images) == (64, 2048, False)
    assert qwen3.eos_token_ids == {adapter("qwen3").tokenizer.get_vocab()["<|im_end|>"]}
    fast_vlm = adapter("fast_vlm").spec
    assert fast_vlm.takes_images
    assert (fast_vlm.min_embeds_per_image, fast_vlm.max_embeds_per_image, fast_vlm.max_image_side) == (25, 25, 160)
    smolvlm = adapter("smolvlm")
    assert smolvlm.spec.max_embeds_per_image == (3 * 3 + 1) * 4
    assert (smolvlm.spec.min_embeds_per_image, smolvlm.spec.max_image_side) == (4, 96)
    assert smolvlm.tokenizer.get_vocab()["<end_of_utterance>"] in smolvlm.spec.eos_token_ids


def test_dtype_auto_is_float32_on_a_cpu_and_others_are_taken(checkpoint: Callable[[str], Path]) -> None:
    assert load(str(checkpoint("llama")), device="cpu", dtype="auto").dtype == torch.float32
    half = load(str(checkpoint("llama")), device="cpu", dtype="bfloat16")
    assert half.embed(torch.tensor([1])).dtype == torch.bfloat16
    assert "float64" in refused(checkpoint("llama"), dtype="float64")


def test_an_unsupported_family_lists_the_supported(copy: Path) -> None:
    edit_config(copy, model_type="mamba")
    message = refused(copy)
    assert "'mamba'" in message
    assert all(family in message for family in FAMILIES)


def test_text_that_sees_what_is_behind_it_is_refused(tmp_path: Path) -> None:
    """EmbeddingGemma and its like: loaded as a decoder, they would answer nonsense."""
    build_tokenizer().save_pretrained(tmp_path)
    Gemma3TextConfig(use_bidirectional_attention=True).save_pretrained(tmp_path)
    message = refused(tmp_path)
    assert "use_bidirectional_attention" in message
    assert str(tmp_path) in message


def test_a_directory_without_config_is_named(tmp_path: Path) -> None:
    assert str(tmp_path) in refused(tmp_path)
    assert "config.json" in refused(tmp_path)


def test_a_config_without_family_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert "model_type" in refused(tmp_path)


@pytest.mark.parametrize("model", ["/no/such/place", "./neither/this", "a/b/c"])
def test_a_missing_directory_is_called_one(model: str) -> None:
    assert refused(model) == f"model {model!r}: no such directory"


def test_an_id_without_network_fails_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: Any, **__: Any) -> socket.socket:
        raise OSError("no route to host")

    for variable in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(socket, "create_connection", unreachable)
    started = time.monotonic()
    message = refused("nobody/has-this-model")
    assert time.monotonic() - started < 5.0
    assert "nobody/has-this-model" in message
    assert "hub cannot be reached" in message


def test_a_directory_may_be_written_with_a_tilde(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(copy.parent))
    assert load(f"~/{copy.name}", device="cpu", dtype="auto").spec.family == "llama"


def test_missing_weights_are_refused(copy: Path) -> None:
    """transformers would fill them with random numbers and warn."""
    weights = load_file(copy / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    message = refused(copy)
    assert "lacks 1 of its weights" in message
    assert "model.layers.1.mlp.up_proj.weight" in message


def test_no_weights_at_all_are_refused(copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    assert "cannot be loaded" in refused(copy)


def test_broken_weights_are_refused(copy: Path) -> None:
    content = (copy / "model.safetensors").read_bytes()
    for length in (len(content) // 2, 5, 0):
        (copy / "model.safetensors").write_bytes(content[:length])
        assert "damaged or cut short" in refused(copy)
        assert "download them again" in refused(copy)


def test_weights_of_other_shapes_are_refused(copy: Path) -> None:
    edit_config(copy, intermediate_size=128)
    message = refused(copy)
    assert "9 of its weights have other shapes" in message
    assert "model.layers.0.mlp.down_proj.weight is 64x96, expected 64x128" in message


@pytest.mark.parametrize("family", ["llama", "fast_vlm"])
def test_a_missing_tokenizer_is_called_one(family: str, checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    directory = Path(shutil.copytree(checkpoint(family), tmp_path / family))
    (directory / "tokenizer.json").unlink()
    assert "has no tokenizer" in refused(directory)


@pytest.mark.parametrize("rope_type", ["dynamic", "longrope"])
def test_rope_that_depends_on_the_batch_is_refused(copy: Path, rope_type: str) -> None:
    rope = {"rope_type": rope_type, "rope_theta": 10000.0, "factor": 2.0, "original_max_position_embeddings": 1024}
    if rope_type == "longrope":
        rope |= {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    edit_config(copy, rope_parameters=rope)
    assert rope_type in refused(copy)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_cuda_without_a_gpu_is_refused(checkpoint: Callable[[str], Path]) -> None:
    assert "--device cpu" in refused(checkpoint("llama"), device="cuda")


def test_a_text_model_inside_must_be_supported_too(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    directory = Path(shutil.copytree(checkpoint("fast_vlm"), tmp_path / "vlm"))
    config = json.loads((directory / "config.json").read_text())
    edit_config(directory, text_config=config["text_config"] | {"model_type": "gpt_oss"})
    assert "'gpt_oss'" in refused(directory)


def test_a_missing_processor_is_refused(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    directory = Path(shutil.copytree(checkpoint("fast_vlm"), tmp_path / "vlm"))
    for name in ("processor_config.json", "preprocessor_config.json"):
        (directory / name).unlink(missing_ok=True)
    assert str(directory) in refused(directory)
