"""Tiny checkpoints of further families whose pictures are tiles: LLaVA, LLaVA-OneVision, InternVL, Idefics3."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from transformers import (
    CLIPImageProcessor,
    GotOcr2ImageProcessor,
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    Idefics3ImageProcessor,
    Idefics3Processor,
    InternVLConfig,
    InternVLForConditionalGeneration,
    InternVLProcessor,
    InternVLVideoProcessor,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaOnevisionConfig,
    LlavaOnevisionForConditionalGeneration,
    LlavaOnevisionImageProcessor,
    LlavaOnevisionProcessor,
    LlavaOnevisionVideoProcessor,
    LlavaProcessor,
)

from tests.checkpoints import IMAGE_TEMPLATE, IMAGE_TOKEN, TEXT_SHAPE, build_tokenizer, save

TOWER = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 8,
}
INTERNVL_TOKENS = {
    "start_image_token": "<img>",
    "end_image_token": "</img>",
    "context_image_token": "<IMG_CONTEXT>",
    "video_token": "<video>",
}


def build_idefics3(directory: Path) -> None:
    """Idefics3, and the first SmolVLM, which has its classes: as SmolVLM, without a part for videos."""
    grid = tuple(f"<row_{row}_col_{col}>" for row in range(1, 4) for col in range(1, 4))
    extra = (IMAGE_TOKEN, "<fake_token_around_image>", "<global-img>", "<end_of_utterance>", *grid)
    tokenizer = build_tokenizer(extra)
    config = Idefics3Config(
        vision_config=TOWER,
        text_config={**TEXT_SHAPE, "model_type": "llama", "vocab_size": len(tokenizer), "pad_token_id": 0},
        image_token_id=tokenizer.vocab[IMAGE_TOKEN],
        scale_factor=2,
        tie_word_embeddings=False,
    )
    eos_token_id = tokenizer.vocab["<end_of_utterance>"]
    save(Idefics3ForConditionalGeneration(config), directory, seed=24, eos_token_id=eos_token_id)
    Idefics3Processor(
        image_processor=Idefics3ImageProcessor(
            size={"longest_edge": 96}, max_image_size={"longest_edge": 32}, do_image_splitting=True
        ),
        tokenizer=tokenizer,
        image_seq_len=4,
        chat_template=IMAGE_TEMPLATE.replace("<|im_end|>", "<end_of_utterance>"),
    ).save_pretrained(directory)


def build_llava(directory: Path) -> None:
    """LLaVA 1.5: the middle of a picture, 16 rows of a CLIP tower's last block but one, its class token left out."""
    tokenizer = build_tokenizer((IMAGE_TOKEN,))
    config = LlavaConfig(
        vision_config={**TOWER, "model_type": "clip_vision_model", "projection_dim": 32},
        text_config={**TEXT_SHAPE, "model_type": "llama", "vocab_size": len(tokenizer)},
        image_token_index=tokenizer.vocab[IMAGE_TOKEN],
        image_seq_length=16,
        tie_word_embeddings=False,
    )
    save(LlavaForConditionalGeneration(config), directory, seed=21, eos_token_id=tokenizer.eos_token_id)
    LlavaProcessor(
        image_processor=CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}),
        tokenizer=tokenizer,
        patch_size=8,
        num_additional_image_tokens=1,
        vision_feature_select_strategy="default",
        image_token=IMAGE_TOKEN,
        chat_template=IMAGE_TEMPLATE,
    ).save_pretrained(directory)


def build_llava_onevision(directory: Path) -> None:
    """LLaVA-OneVision: a picture alone in up to 2 x 2 tiles of 16 patches, at most 32 rows and their ends."""
    tokenizer = build_tokenizer((IMAGE_TOKEN, "<video>"))
    grids = [[32, 64], [64, 32], [64, 64]]
    config = LlavaOnevisionConfig(
        vision_config={**TOWER, "model_type": "siglip_vision_model", "vision_use_head": False},
        text_config={**TEXT_SHAPE, "model_type": "qwen2", "vocab_size": len(tokenizer)},
        image_token_index=tokenizer.vocab[IMAGE_TOKEN],
        video_token_index=tokenizer.vocab["<video>"],
        image_grid_pinpoints=grids,
        vision_aspect_ratio="anyres_max_2",
        tie_word_embeddings=False,
    )
    save(LlavaOnevisionForConditionalGeneration(config), directory, seed=22, eos_token_id=tokenizer.eos_token_id)
    square = {"height": 32, "width": 32}
    LlavaOnevisionProcessor(
        image_processor=LlavaOnevisionImageProcessor(size=square, image_grid_pinpoints=grids),
        tokenizer=tokenizer,
        video_processor=LlavaOnevisionVideoProcessor(size=square),
        num_image_tokens=16,
        vision_feature_select_strategy="full",
        vision_aspect_ratio="anyres_max_2",
        chat_template=IMAGE_TEMPLATE,
    ).save_pretrained(directory)


def build_internvl(directory: Path) -> None:
    """InternVL 3: up to 4 tiles of 32 x 32 pixels and an overview, 4 rows each, query and key norms in the tower."""
    tokenizer = build_tokenizer(tuple(INTERNVL_TOKENS.values()), named_tokens=INTERNVL_TOKENS)
    config = InternVLConfig(
        vision_config={**TOWER, "image_size": [32, 32], "patch_size": [8, 8], "use_qk_norm": True},
        text_config={**TEXT_SHAPE, "model_type": "qwen2", "vocab_size": len(tokenizer)},
        image_token_id=tokenizer.vocab["<IMG_CONTEXT>"],
        image_seq_length=4,
        tie_word_embeddings=False,
    )
    save(InternVLForConditionalGeneration(config), directory, seed=23, eos_token_id=tokenizer.eos_token_id)
    InternVLProcessor(
        image_processor=GotOcr2ImageProcessor(size={"height": 32, "width": 32}, min_patches=1, max_patches=4),
        tokenizer=tokenizer,
        video_processor=InternVLVideoProcessor(),
        image_seq_length=4,
        chat_template=IMAGE_TEMPLATE.replace(IMAGE_TOKEN, "<IMG_CONTEXT>"),
    ).save_pretrained(directory)


TILED_BUILDERS: dict[str, Callable[[Path], None]] = {
    "idefics3": build_idefics3,
    "internvl": build_internvl,
    "llava": build_llava,
    "llava_onevision": build_llava_onevision,
}
