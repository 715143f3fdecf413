"""The demo model's checkpoint: three trained parts in one HF `FastVlm` directory, with processor and chat template.

Run as a module by `assemble`, with the arguments of `save_checkpoint`. Knows nothing of where the parts come from.
Weights are kept in fp32, as they come out of the files: on a CPU they are used so, and a conversion would only move
the numbers.
"""

from __future__ import annotations

import sys
from pathlib import Path

import timm
import torch
from safetensors.torch import load_file
from transformers import (
    FastVlmConfig,
    FastVlmForConditionalGeneration,
    GenerationConfig,
    LlavaProcessor,
    SiglipImageProcessor,
)

from backend.demo.smollm2 import IMAGE_TOKEN, SmolLM2

TOWER = "tf_efficientnet_lite2"
TOWER_WIDTH = 1280
IMAGE_SIDE = 260
PATCH_SIDE = 28
"""260 // 28 = 9: the processor's way to say that the tower gives 9 x 9 rows."""
CHAT_TEMPLATE = Path(__file__).with_name("chat_template.jinja")


def save_checkpoint(directory: Path, tower: Path, language_model: Path, connector: Path) -> None:
    """Write a directory that `AutoModelForImageTextToText` and `AutoProcessor` load."""
    text = SmolLM2(language_model)
    tokenizer = text.tokenizer()
    config = FastVlmConfig(
        vision_config={
            "model_type": "timm_wrapper",
            "architecture": TOWER,
            "do_pooling": False,
            "num_classes": 0,
            "hidden_size": TOWER_WIDTH,
        },
        text_config=text.config.to_dict(),
        image_token_index=tokenizer.get_vocab()[IMAGE_TOKEN],
        image_seq_length=(IMAGE_SIDE // PATCH_SIDE) ** 2,
        tie_word_embeddings=True,
        dtype="float32",
    )
    model = FastVlmForConditionalGeneration(config)
    _load_strictly(model.model.vision_tower.timm_model, tower_tensors(tower))
    _load_strictly(model.model.multi_modal_projector, {k: v.float() for k, v in load_file(connector).items()})
    _load_strictly(model.model.language_model, text.tensors())
    model.tie_weights()
    model.generation_config = GenerationConfig(
        bos_token_id=text.config.bos_token_id,
        eos_token_id=text.config.eos_token_id,
        pad_token_id=text.config.pad_token_id,
        # What SmolLM2's authors recommend; the OpenAI API's temperature of 1 makes so small a model ramble.
        do_sample=True,
        temperature=0.2,
        top_p=0.9,
    )
    model.save_pretrained(directory)
    LlavaProcessor(
        image_processor=SiglipImageProcessor(
            size={"height": IMAGE_SIDE, "width": IMAGE_SIDE}, crop_size={"height": IMAGE_SIDE, "width": IMAGE_SIDE}
        ),
        tokenizer=tokenizer,
        patch_size=PATCH_SIDE,
        num_additional_image_tokens=0,
        vision_feature_select_strategy="full",
        image_token=IMAGE_TOKEN,
        chat_template=CHAT_TEMPLATE.read_text(),
    ).save_pretrained(directory)


def tower_tensors(path: Path) -> dict[str, torch.Tensor]:
    """The tower's weights by timm's names, without the ImageNet classifier.

    The file and timm name the same 386 tensors differently but in the same order, which is how they are matched.
    """
    theirs = torch.load(path, weights_only=True)
    ours = timm.create_model(TOWER, pretrained=False).state_dict()
    return {
        name: tensor
        for (name, expected), tensor in zip(ours.items(), theirs.values(), strict=True)
        if not name.startswith("classifier.") and _same_shape(name, expected, tensor)
    }


def _same_shape(name: str, expected: torch.Tensor, tensor: torch.Tensor) -> bool:
    if expected.shape != tensor.shape:
        raise ValueError(f"{name}: {tuple(tensor.shape)} in the file, {tuple(expected.shape)} in the model")
    return True


def _load_strictly(module: torch.nn.Module, tensors: dict[str, torch.Tensor]) -> None:
    module.load_state_dict(tensors, strict=True)


if __name__ == "__main__":
    save_checkpoint(*map(Path, sys.argv[1:]))
