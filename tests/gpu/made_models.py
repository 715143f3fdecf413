"""Models of random weights behind their adapters: made on the device from a config, never a checkpoint.

What only `prepare` needs, a tokenizer and a processor, is left out; pictures are random pixels of the right shape.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
)

from backend.models.adapter import ModelAdapter
from backend.models.checkpoint import Checkpoint
from backend.models.qwen_vl import QwenVl
from backend.models.smolvlm import SmolVlm
from backend.models.text_decoder import TextDecoder
from backend.models.vision_language import ProcessedImage
from tests.weights import randomize

IMAGE_TOKEN = "<image>"
SMALL_TEXT = {
    "vocab_size": 2048,
    "hidden_size": 384,
    "intermediate_size": 768,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}


@dataclass(frozen=True, slots=True)
class Shape:
    """A model's shape; its last token id stands for images."""

    name: str
    model_class: Callable[[Any], Any]
    config: Callable[[], Any]
    takes_images: bool = False


@dataclass(frozen=True, slots=True)
class Made:
    """A model of random weights that the runtime can run; `num_weight_bytes` are those a decode step reads."""

    name: str
    adapter: ModelAdapter
    num_weight_bytes: int
    num_layer_weights: int
    num_heads: int

    def picture(self, generator: torch.Generator) -> ProcessedImage:
        """Pixels of one 512 x 512 frame (less where the model is small), as the family's processor would give them."""
        adapter = self.adapter
        assert isinstance(adapter, SmolVlm | QwenVl), "a model that takes images"
        return _tiles(adapter, generator) if isinstance(adapter, SmolVlm) else _patches(adapter, generator)


class _TileShapeKnown(SmolVlm):
    """Counts its slices on zeros: there is no processor to make a tile of a picture, and none is needed."""

    def _count_slices(self) -> int:
        side = self._vision.embeddings.image_size
        with torch.inference_mode():
            tile = torch.zeros(1, 3, side, side, dtype=self.dtype, device=self.device)
            return self._tower.count(lambda: self.encode_tiles(tile))


def make(shape: Shape, device: str, dtype: torch.dtype) -> Made:
    """The model on `device`, initialised there as transformers does it."""
    config = shape.config()
    with torch.device(device):
        model = shape.model_class._from_config(config, dtype=dtype).eval()  # type: ignore[attr-defined]
    return wrap(shape, model, device, dtype)


def make_exact(shape: Shape, device: str, dtype: torch.dtype) -> Made:
    """The model with the same wide-spread weights on every device and in every dtype: exact in bfloat16."""
    model = shape.model_class(shape.config()).eval()
    randomize(model, seed=9)
    return wrap(shape, model.bfloat16().to(device, dtype), device, dtype)


def wrap(shape: Shape, model: Any, device: str, dtype: torch.dtype) -> Made:
    """The family's adapter over a model."""
    checkpoint = Checkpoint(shape.name, model.config, torch.device(device), dtype, local_files_only=True)
    text = model.config.get_text_config()
    tokenizer: Any = SimpleNamespace(
        eos_token_id=None,
        chat_template=None,
        added_tokens_decoder={},
        convert_tokens_to_ids=lambda _: text.vocab_size - 1,
    )
    adapter: Any
    if isinstance(model, SmolVLMForConditionalGeneration):
        adapter = _TileShapeKnown(checkpoint, model, _smolvlm_processor(tokenizer, model))
    elif isinstance(model, Qwen3VLForConditionalGeneration):
        adapter = QwenVl(checkpoint, model, _qwen_processor(tokenizer, model))
    else:
        adapter = TextDecoder(checkpoint, model, tokenizer)
    parts = adapter.text_parts()
    layers = sum(p.numel() for p in parts.decoder.layers.parameters())
    read = (layers + parts.head.weight.numel()) * dtype.itemsize
    return Made(shape.name, adapter, read, layers, text.num_attention_heads)


def _smolvlm_processor(tokenizer: Any, model: Any) -> Any:
    vision = model.config.vision_config
    return SimpleNamespace(
        tokenizer=tokenizer,
        image_token=IMAGE_TOKEN,
        chat_template=None,
        image_seq_len=(vision.image_size // vision.patch_size // model.config.scale_factor) ** 2,
        image_processor=SimpleNamespace(
            do_image_splitting=False, do_resize=True, size={"longest_edge": vision.image_size}
        ),
    )


def _qwen_processor(tokenizer: Any, model: Any) -> Any:
    vision = model.config.vision_config
    side = vision.patch_size * vision.spatial_merge_size
    return SimpleNamespace(
        tokenizer=tokenizer,
        image_token=IMAGE_TOKEN,
        chat_template=None,
        image_processor=SimpleNamespace(
            do_resize=True,
            merge_size=vision.spatial_merge_size,
            patch_size=vision.patch_size,
            size={"shortest_edge": side * side, "longest_edge": 512 * 512},
        ),
    )


def _tiles(adapter: SmolVlm, generator: torch.Generator) -> ProcessedImage:
    side = adapter._vision.embeddings.image_size
    pixels = torch.randn(1, 3, side, side, generator=generator).bfloat16().float()
    return ProcessedImage(pixels, IMAGE_TOKEN * adapter._processor.image_seq_len)


def _patches(adapter: QwenVl, generator: torch.Generator) -> ProcessedImage:
    visual, merge = adapter._tower.visual, adapter._merge
    cells = min(512, 16 * visual.patch_size) // visual.patch_size // merge
    patch_len = visual.patch_embed.proj.weight[0].numel()
    pixels = torch.randn(cells * cells * merge**2, patch_len, generator=generator).bfloat16().float()
    return ProcessedImage(pixels, IMAGE_TOKEN * cells * cells, (cells, cells))


def _smolvlm(text: dict[str, Any], vision: dict[str, Any], scale_factor: int) -> SmolVLMConfig:
    return SmolVLMConfig(
        text_config={**text, "model_type": "llama", "pad_token_id": 0},
        vision_config=vision,
        image_token_id=text["vocab_size"] - 1,
        scale_factor=scale_factor,
        tie_word_embeddings=text["tie_word_embeddings"],
    )


def _qwen3_vl(text: dict[str, Any], vision: dict[str, Any]) -> Qwen3VLConfig:
    half = text["head_dim"] // 2
    side = half * 5 // 16
    rope = {
        "rope_type": "default",
        "rope_theta": 5_000_000.0,
        "mrope_section": [half - 2 * side, side, side],
        "mrope_interleaved": True,
    }
    return Qwen3VLConfig(
        text_config={**text, "rope_parameters": rope},
        vision_config={**vision, "out_hidden_size": text["hidden_size"]},
        image_token_id=text["vocab_size"] - 1,
        tie_word_embeddings=text["tie_word_embeddings"],
    )


SMALL = (
    Shape("llama", LlamaForCausalLM, lambda: LlamaConfig(**SMALL_TEXT)),
    Shape(
        "gemma2",
        Gemma2ForCausalLM,
        lambda: Gemma2Config(**SMALL_TEXT, sliding_window=24, attn_logit_softcapping=20.0, query_pre_attn_scalar=64),
    ),
    Shape(
        "smolvlm",
        SmolVLMForConditionalGeneration,
        lambda: _smolvlm(
            SMALL_TEXT,
            {
                "hidden_size": 192,
                "intermediate_size": 384,
                "num_hidden_layers": 4,
                "num_attention_heads": 3,
                "image_size": 128,
                "patch_size": 16,
            },
            scale_factor=2,
        ),
        takes_images=True,
    ),
    Shape(
        "qwen3_vl",
        Qwen3VLForConditionalGeneration,
        lambda: _qwen3_vl(
            SMALL_TEXT,
            {
                "depth": 4,
                "hidden_size": 128,
                "intermediate_size": 256,
                "num_heads": 2,
                "patch_size": 16,
                "num_position_embeddings": 256,
                "deepstack_visual_indexes": [0, 2],
            },
        ),
        takes_images=True,
    ),
)
"""Shapes small enough for the oracle, between them with all that attention can be asked for but atomic images."""

FULL = (
    Shape(
        "SmolVLM-256M",
        SmolVLMForConditionalGeneration,
        lambda: _smolvlm(
            {
                "vocab_size": 49280,
                "hidden_size": 576,
                "intermediate_size": 1536,
                "num_hidden_layers": 30,
                "num_attention_heads": 9,
                "num_key_value_heads": 3,
                "head_dim": 64,
                "max_position_embeddings": 8192,
                "tie_word_embeddings": True,
            },
            {
                "hidden_size": 768,
                "intermediate_size": 3072,
                "num_hidden_layers": 12,
                "num_attention_heads": 12,
                "image_size": 512,
                "patch_size": 16,
            },
            scale_factor=4,
        ),
        takes_images=True,
    ),
    Shape(
        "Qwen3-VL-2B",
        Qwen3VLForConditionalGeneration,
        lambda: _qwen3_vl(
            {
                "vocab_size": 151936,
                "hidden_size": 2048,
                "intermediate_size": 6144,
                "num_hidden_layers": 28,
                "num_attention_heads": 16,
                "num_key_value_heads": 8,
                "head_dim": 128,
                "max_position_embeddings": 262144,
                "tie_word_embeddings": True,
            },
            {
                "depth": 24,
                "hidden_size": 1024,
                "intermediate_size": 4096,
                "num_heads": 16,
                "patch_size": 16,
                "num_position_embeddings": 2304,
                "deepstack_visual_indexes": [5, 11, 17],
            },
        ),
        takes_images=True,
    ),
)
"""Shapes that are timed."""
