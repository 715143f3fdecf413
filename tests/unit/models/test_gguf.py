"""GGUF files by name: the same tokens as the checkpoint they were made of, and one line for what cannot be read."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFWriter, TokenType
from safetensors.torch import load_file
from transformers import AutoConfig, AutoTokenizer

import backend.gguf_file
from backend.demo.smollm2 import LAYER_TENSORS, OUTER_TENSORS, SmolLM2
from backend.errors import ModelLoadError
from backend.gguf_file import as_directory
from backend.models.registry import load
from tests.equivalence.harness import TEXT_PROMPTS, assert_matches, expected_of, generate, limits, request_of

ASSET = Path("~/.cache/watchword/assets/SmolLM2-135M-Instruct.Q4_1.gguf").expanduser()


def interleaved(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """The rows of rotary pairs next to one another, as the format has them."""
    rows, columns = weight.shape
    return weight.reshape(num_heads, 2, rows // num_heads // 2, columns).transpose(1, 2).reshape(rows, columns)


def write_gguf(source: Path, target: Path) -> None:
    """The tiny Llama checkpoint as a GGUF file in float32."""
    config, tokenizer = AutoConfig.from_pretrained(source), AutoTokenizer.from_pretrained(source)
    writer = GGUFWriter(target, "llama")
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    _add_tokenizer(writer, tokenizer)
    weights = load_file(source / "model.safetensors")
    names = {f"model.{theirs}": ours for ours, theirs in OUTER_TENSORS.items()} | {"lm_head.weight": "output.weight"}
    for name, weight in weights.items():
        if name not in names:
            _, _, layer, part = name.split(".", 3)
            ours = next(ours for ours, theirs in LAYER_TENSORS.items() if part == f"{theirs}.weight")
            names[name] = f"blk.{layer}.{ours}.weight"
            if ours in ("attn_q", "attn_k"):
                heads = config.num_attention_heads if ours == "attn_q" else config.num_key_value_heads
                weight = interleaved(weight, heads)
        writer.add_tensor(names[name], weight.numpy().astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(writer: GGUFWriter, tokenizer: Any) -> None:
    model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokenizer.convert_ids_to_tokens(list(range(len(tokenizer)))))
    writer.add_token_types([TokenType.CONTROL if i in special else TokenType.NORMAL for i in range(len(tokenizer))])
    writer.add_token_merges([" ".join(merge) for merge in model["merges"]])
    writer.add_bos_token_id(tokenizer.pad_token_id)
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_chat_template(tokenizer.chat_template)


@pytest.fixture
def said() -> list[str]:
    return []


def test_a_file_is_the_checkpoint_it_was_made_of(
    checkpoint: Callable[[str], Path], tmp_path: Path, said: list[str]
) -> None:
    file = tmp_path / "tiny.gguf"
    write_gguf(checkpoint("llama"), file)
    directory = as_directory(str(file), tmp_path / "cache", said.append)
    assert "dequantised" in said[0]
    model = load(directory, device="cpu", dtype="float32")
    prompts = TEXT_PROMPTS[:2]
    requests = [request_of(model, prompt) for prompt in prompts]
    assert_matches(expected_of(checkpoint("llama"), prompts), generate(model, requests, limits(16)).tokens)
    said.clear()
    assert as_directory(str(file), tmp_path / "cache", said.append) == directory
    assert said == [], "the second time it is there"
    assert [path.name for path in (tmp_path / "cache" / "gguf").iterdir() if path.suffix != ".lock"] == [
        Path(directory).name
    ]


@pytest.mark.parametrize("fault", ["cut short", "not one", "unknown", "other family"])
def test_what_cannot_be_read_is_one_line(
    fault: str, checkpoint: Callable[[str], Path], tmp_path: Path, said: list[str]
) -> None:
    file = tmp_path / "tiny.gguf"
    if fault == "not one":
        file.write_bytes(b"hello" * 100)
    elif fault == "cut short":
        write_gguf(checkpoint("llama"), file)
        file.write_bytes(file.read_bytes()[:-5000])
    else:
        writer = GGUFWriter(file, "starcoder2" if fault == "other family" else "unheard-of")
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
    with pytest.raises(ModelLoadError, match=r"tiny\.gguf") as caught:
        as_directory(str(file), tmp_path / "cache", said.append)
    assert "\n" not in str(caught.value)
    assert not any(path.is_dir() for path in (tmp_path / "cache" / "gguf").iterdir()), "nothing half made stays"


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path: Path, said: list[str]) -> None:
    file, cache = tmp_path / "tiny.gguf", tmp_path / "cache"
    file.write_bytes(b"never looked at")
    cache.write_bytes(b"no directory")
    with pytest.raises(ModelLoadError, match=r"cannot be kept in .*cache/gguf: .*directory; .*--cache-dir") as caught:
        as_directory(str(file), cache, said.append)
    assert "\n" not in str(caught.value)


@contextmanager
def no_file_over(size: int) -> Iterator[None]:
    """As on a disk that is full after so many bytes of a file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("room", [0, 4000])
def test_a_disk_without_room_is_not_told_as_a_broken_file(
    room: int, checkpoint: Callable[[str], Path], tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without any, Python fails at the configuration; with some, safetensors, which has an error of its own."""
    file, cache = tmp_path / "tiny.gguf", tmp_path / "cache"
    write_gguf(checkpoint("llama"), file)
    keep = backend.gguf_file._keep

    def keep_in_room(*arguments: Any) -> None:
        with no_file_over(room):
            keep(*arguments)

    monkeypatch.setattr(backend.gguf_file, "_keep", keep_in_room)
    with pytest.raises(ModelLoadError, match=r"cannot be kept in .*cache/gguf: .*too large.*--cache-dir") as caught:
        as_directory(str(file), cache, said.append)
    assert "\n" not in str(caught.value)
    assert not any(path.is_dir() for path in (cache / "gguf").iterdir()), "nothing half made stays"


def test_a_directory_is_on_the_disk_before_it_has_its_name(
    checkpoint: Callable[[str], Path], tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, flushed = tmp_path / "tiny.gguf", list[Path]()
    write_gguf(checkpoint("llama"), file)
    monkeypatch.setattr(os, "fsync", lambda handle: flushed.append(Path(os.readlink(f"/proc/self/fd/{handle}"))))
    directory = Path(as_directory(str(file), tmp_path / "cache", said.append))
    unfinished = directory.with_name(f"{directory.name}.part")
    written = {unfinished / path.name for path in directory.iterdir()}
    assert len(written) >= 3
    assert written <= set(flushed[:-2])
    assert flushed[-2:] == [unfinished, directory.parent], "their names after the files, its own at the end"


def test_what_is_kept_is_found_where_nothing_can_be_written(
    checkpoint: Callable[[str], Path], tmp_path: Path, said: list[str]
) -> None:
    file = tmp_path / "tiny.gguf"
    write_gguf(checkpoint("llama"), file)
    directory = as_directory(str(file), tmp_path / "cache", said.append)
    for lock in (tmp_path / "cache" / "gguf").glob("*.lock"):
        lock.unlink()
        lock.mkdir()  # cannot be opened to be written
    assert as_directory(str(file), tmp_path / "cache", said.append) == directory


def test_other_names_stay_what_they_are(tmp_path: Path, said: list[str]) -> None:
    for name in ("org/model", str(tmp_path), str(tmp_path / "missing.gguf")):
        assert as_directory(name, tmp_path, said.append) == name
    assert said == []


@pytest.mark.long
@pytest.mark.skipif(not ASSET.is_file(), reason="the demo model's language weights are not here")
def test_a_quantised_file_has_the_weights_that_another_reader_finds(tmp_path: Path, said: list[str]) -> None:
    written = load_file(Path(as_directory(str(ASSET), tmp_path, said.append)) / "model.safetensors")
    for name, weight in SmolLM2(ASSET).tensors().items():
        assert torch.equal(written[f"model.{name}"], weight), name
