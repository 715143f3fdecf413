"""The demo model as assembled: it says what its card promises, in the form it was taught, and is whole or absent.

Uses the machine's cache (filled through pip's index if need be) and takes some ten seconds per assembly.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from PIL import Image
from rich.console import Console
from rich.progress import Progress
from timm.data import ImageNetInfo  # pyright: ignore[reportPrivateImportUsage]
from transformers import AutoModelForImageTextToText, AutoProcessor, GenerationConfig

from backend.demo import checkpoint
from backend.demo.assemble import STAMP, ensure_demo_model
from backend.demo.assets import LANGUAGE_MODEL, VISION_TOWER, default_cache_dir, digest, ensure_asset

# Found, not imported: ultralytics changes Pillow for the whole process.
PHOTOGRAPHS = Path(str(getattr(find_spec("ultralytics"), "origin", ""))).parent / "assets"
TAUGHT = "<|im_start|>user\n<|image|>\nDescribe the image.<|im_end|>\n<|im_start|>assistant\n"
IMAGE = {"type": "image"}
INSTRUCTION = {"type": "text", "text": "Describe the image."}


@pytest.fixture(scope="module")
def progress() -> Iterator[Progress]:
    with open(os.devnull, "w") as sink:
        yield Progress(console=Console(file=sink), disable=True)


@pytest.fixture(scope="module")
def directory(progress: Progress) -> Path:
    return ensure_demo_model(default_cache_dir(), progress)


@pytest.fixture(scope="module")
def model(directory: Path) -> Any:
    loaded: Any = AutoModelForImageTextToText.from_pretrained(directory, output_loading_info=True)
    model, loading = loaded
    assert not any(loading.values()), loading
    return model


@pytest.fixture(scope="module")
def processor(directory: Path) -> Any:
    return AutoProcessor.from_pretrained(directory)


def photograph(name: str) -> Image.Image:
    return Image.open(PHOTOGRAPHS / name).convert("RGB")


def greedy(model: Any, processor: Any, inputs: Any) -> str:
    with torch.inference_mode():
        output = model.generate(**inputs, max_new_tokens=32, do_sample=False)
    return processor.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


@pytest.mark.parametrize(
    ("name", "caption"),
    [
        ("zidane.jpg", "A man and woman are standing in a field."),
        ("bus.jpg", "A man and a woman are standing in a row."),
    ],
)
def test_captions_are_those_of_the_training_run(model: Any, processor: Any, name: str, caption: str) -> None:
    inputs = processor(text=TAUGHT, images=[photograph(name)], return_tensors="pt")
    assert greedy(model, processor, inputs) == caption


def test_chat_is_the_language_models_own(model: Any, processor: Any) -> None:
    prompt = processor.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}], add_generation_prompt=True, tokenize=False
    )
    assert (
        greedy(model, processor, processor.tokenizer(prompt, return_tensors="pt")) == "The capital of France is Paris."
    )


def test_default_sampling_suits_so_small_a_model(directory: Path) -> None:
    generation = GenerationConfig.from_pretrained(directory)
    assert (generation.do_sample, generation.temperature, generation.top_p) == (True, 0.2, 0.9)
    assert generation.eos_token_id == 2


def test_vision_tower_keeps_its_imagenet_class(processor: Any, progress: Progress) -> None:
    """The order in which two naming schemes are matched is right: with its classifier the tower knows a minibus."""
    weights = torch.load(ensure_asset(VISION_TOWER, default_cache_dir(), progress), weights_only=True)
    classifier = timm.create_model(checkpoint.TOWER, pretrained=False).eval()
    classifier.load_state_dict(dict(zip(classifier.state_dict(), weights.values(), strict=True)))
    with torch.inference_mode():
        pixels = processor.image_processor(photograph("bus.jpg"), return_tensors="pt")["pixel_values"]
        scores = classifier(pixels)[0].softmax(-1)
    assert ImageNetInfo().index_to_description(int(scores.argmax())).startswith("minibus")
    assert float(scores.max()) == pytest.approx(0.62, abs=0.02)


def test_image_takes_as_many_placeholders_as_the_tower_gives_rows(model: Any, processor: Any) -> None:
    inputs = processor(text=TAUGHT, images=[photograph("bus.jpg")], return_tensors="pt")
    placeholders = int((inputs["input_ids"] == model.config.image_token_id).sum())
    with torch.inference_mode():
        rows = model.get_image_features(pixel_values=inputs["pixel_values"]).pooler_output
    assert rows.shape == (1, placeholders, model.config.text_config.hidden_size) == (1, 81, 576)


@pytest.mark.parametrize(
    ("messages", "prompt"),
    [
        pytest.param([{"role": "user", "content": [IMAGE, INSTRUCTION]}], TAUGHT, id="as taught"),
        pytest.param(
            [{"role": "user", "content": [INSTRUCTION, IMAGE]}], TAUGHT, id="text first is put in taught order"
        ),
        pytest.param(
            [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [IMAGE, INSTRUCTION]}],
            f"<|im_start|>system\nBe brief.<|im_end|>\n{TAUGHT}",
            id="an explicit system message stays",
        ),
        pytest.param(
            [
                {"role": "user", "content": [IMAGE, IMAGE, INSTRUCTION]},
                {"role": "assistant", "content": "Two dogs."},
                {"role": "user", "content": "Where?"},
            ],
            "<|im_start|>user\n<|image|>\n<|image|>\nDescribe the image.<|im_end|>\n"
            "<|im_start|>assistant\nTwo dogs.<|im_end|>\n<|im_start|>user\nWhere?<|im_end|>\n<|im_start|>assistant\n",
            id="several images, several turns",
        ),
        pytest.param(
            [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
            "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
            id="text alone gets the default system message",
        ),
    ],
)
def test_chat_template(processor: Any, messages: list[dict[str, Any]], prompt: str) -> None:
    assert processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False) == prompt


def test_tokenizer_splits_numbers_into_digits_and_loses_nothing(processor: Any) -> None:
    tokenizer = processor.tokenizer
    assert tokenizer.tokenize("on  2024") == ["on", "ĠĠ", "2", "0", "2", "4"]
    text = "<|im_start|>user\n  Ünïcode 東京 🙂 <tag>\n\n\t3.14<|im_end|>\n"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert len(tokenizer) == 49152


@pytest.fixture
def fresh_cache(tmp_path: Path, progress: Progress) -> Path:
    """A cache that has the parts, but not the model."""
    (tmp_path / "assets").mkdir()
    for asset in (VISION_TOWER, LANGUAGE_MODEL):
        (tmp_path / "assets" / asset.filename).symlink_to(ensure_asset(asset, default_cache_dir(), progress))
    return tmp_path


def test_killed_assembly_leaves_no_model_and_a_damaged_one_is_replaced(
    fresh_cache: Path, directory: Path, progress: Progress
) -> None:
    code = (
        "import sys; from pathlib import Path; from backend.demo.assemble import ensure_demo_model;"
        "from backend.demo.assets import download_progress; ensure_demo_model(Path(sys.argv[1]), download_progress())"
    )
    killed = subprocess.Popen([sys.executable, "-c", code, str(fresh_cache)], start_new_session=True)
    deadline = time.monotonic() + 60
    while not list(fresh_cache.glob(".demo-model.partial-*/*.json")):
        assert killed.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    assert not (fresh_cache / "demo-model").exists()

    # What an earlier version or a full disk may have left: all files there, the weights cut short.
    damaged = fresh_cache / "demo-model"
    shutil.copytree(directory, damaged)
    os.truncate(damaged / "model.safetensors", 1000)

    assert ensure_demo_model(fresh_cache, progress) == damaged
    assert digest(damaged / "model.safetensors") == digest(directory / "model.safetensors")
    assert (damaged / STAMP).read_bytes() == (directory / STAMP).read_bytes()
    assert {path.name for path in fresh_cache.iterdir()} == {"assets", "demo-model", ".demo-model.lock"}
    assert not (damaged / "previous").exists()

    inode = damaged.stat().st_ino
    ensure_demo_model(fresh_cache, progress)
    assert damaged.stat().st_ino == inode, "what is whole is not assembled again"
