"""Tiny random checkpoints as ordinary HF directories: weights, tokenizer, processor, chat template. No network.

Weights are deterministic and spread widely enough that greedy outputs wander through the vocabulary: a model that
repeats one token would pass any comparison.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    FastVlmConfig,
    FastVlmForConditionalGeneration,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma3ImageProcessor,
    Gemma3Processor,
    LlamaConfig,
    LlamaForCausalLM,
    LlavaProcessor,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLProcessor,
    Qwen3VLVideoProcessor,
    SiglipImageProcessor,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
    SmolVLMImageProcessor,
    SmolVLMProcessor,
    SmolVLMVideoProcessor,
)

from tests.weights import randomize

CORPUS = """A camera that puts what it watches into words, on an engine that never lets a camera stall a chat.
The engine spends a budget of tokens in every step: first one token for each running answer, then pieces of prompts.
Two people walk along a street; a red car stops, a dog waits beside a bicycle. What do you see? Describe the image.
Ein Hund läuft über die Straße, große Bäume stehen daneben. 日本語の短い文。 Numbers: 0 1 2 3 4 5 6 7 8 9, 42, 1000."""

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
IMAGE_TOKEN = "<image>"

TEXT_TEMPLATE = """{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"""

IMAGE_TEMPLATE = """{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\\n' -}}
{%- for part in message.content -%}
{{- '<image>' if part.type == 'image' else part.text -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"""


def build_tokenizer(
    extra_special_tokens: tuple[str, ...] = (),
    template: str | None = TEXT_TEMPLATE,
    named_tokens: dict[str, str] | None = None,
) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer trained on a few lines; ends a turn with `<|im_end|>`.

    `named_tokens` become attributes of the tokenizer, by which some processors look for them.
    """
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=360,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator([CORPUS], trainer)
    core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in extra_special_tokens])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=template,
        **({"extra_special_tokens": named_tokens} if named_tokens else {}),
    )


TEXT_SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}


def save(model: PreTrainedModel, directory: Path, seed: int, eos_token_id: Any) -> None:
    """Random weights into `model`, and all of it into `directory`."""
    randomize(model, seed)
    assert model.generation_config is not None
    model.generation_config.eos_token_id = eos_token_id
    model.save_pretrained(directory)


def build_llama(directory: Path) -> None:
    """Llama with grouped queries: 4 heads of 16, 2 key heads."""
    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(directory)
    model = LlamaForCausalLM(LlamaConfig(**TEXT_SHAPE, vocab_size=len(tokenizer)))
    save(model, directory, seed=1, eos_token_id=tokenizer.eos_token_id)


def build_qwen3(directory: Path) -> None:
    """Qwen3: query and key norms, a head size that is not hidden / heads, a sliding window on every other layer."""
    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(directory)
    config = Qwen3Config(
        **{**TEXT_SHAPE, "num_hidden_layers": 4, "num_attention_heads": 6},
        vocab_size=len(tokenizer),
        head_dim=24,
        use_sliding_window=True,
        sliding_window=24,
        layer_types=["full_attention", "sliding_attention"] * 2,
    )
    save(Qwen3ForCausalLM(config), directory, seed=2, eos_token_id=[tokenizer.eos_token_id])


def build_fast_vlm(directory: Path) -> None:
    """FastVLM as the embedded model is made: a timm EfficientNet, 160 x 160 pixels to 25 rows, a Llama decoder."""
    tokenizer = build_tokenizer((IMAGE_TOKEN,))
    config = FastVlmConfig(
        vision_config={
            "model_type": "timm_wrapper",
            "architecture": "tf_efficientnet_lite0",
            "do_pooling": False,
            "num_classes": 0,
            "hidden_size": 1280,
        },
        text_config={**TEXT_SHAPE, "model_type": "llama", "vocab_size": len(tokenizer)},
        image_token_index=tokenizer.vocab[IMAGE_TOKEN],
        image_seq_length=25,
    )
    save(FastVlmForConditionalGeneration(config), directory, seed=3, eos_token_id=tokenizer.eos_token_id)
    LlavaProcessor(
        image_processor=SiglipImageProcessor(
            size={"height": 160, "width": 160}, crop_size={"height": 160, "width": 160}
        ),
        tokenizer=tokenizer,
        patch_size=32,
        num_additional_image_tokens=0,
        vision_feature_select_strategy="full",
        image_token=IMAGE_TOKEN,
        chat_template=IMAGE_TEMPLATE,
    ).save_pretrained(directory)


def build_smolvlm(directory: Path, vision: dict[str, Any] | None = None) -> None:
    """SmolVLM2, with a part for videos: tiles of 32 x 32 pixels to 4 rows each, at most 3 x 3 of them and the overview.

    `vision` replaces facts of its tower.
    """
    grid = tuple(f"<row_{row}_col_{col}>" for row in range(1, 4) for col in range(1, 4))
    extra = (IMAGE_TOKEN, "<fake_token_around_image>", "<global-img>", "<end_of_utterance>", *grid)
    tokenizer = build_tokenizer(extra)
    config = SmolVLMConfig(
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 3,
            "num_attention_heads": 2,
            "image_size": 32,
            "patch_size": 8,
            **(vision or {}),
        },
        text_config={**TEXT_SHAPE, "model_type": "llama", "vocab_size": len(tokenizer), "pad_token_id": 0},
        image_token_id=tokenizer.vocab[IMAGE_TOKEN],
        scale_factor=2,
    )
    eos_token_id = tokenizer.vocab["<end_of_utterance>"]
    save(SmolVLMForConditionalGeneration(config), directory, seed=4, eos_token_id=eos_token_id)
    SmolVLMProcessor(
        image_processor=SmolVLMImageProcessor(
            size={"longest_edge": 96}, max_image_size={"longest_edge": 32}, do_image_splitting=True
        ),
        tokenizer=tokenizer,
        video_processor=SmolVLMVideoProcessor(),
        image_seq_len=4,
        chat_template=IMAGE_TEMPLATE.replace("<|im_end|>", "<end_of_utterance>"),
    ).save_pretrained(directory)


QWEN_TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
QWEN_TEMPLATE = IMAGE_TEMPLATE.replace("<image>", "<|vision_start|><|image_pad|><|vision_end|>")
QWEN_PIXELS = {"shortest_edge": 6 * 64, "longest_edge": 40 * 64}
"""6 to 40 embeddings of 8 x 8 pixels, four patches each."""


def _qwen_ids(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    names = ("vision_start_token_id", "vision_end_token_id", "image_token_id", "video_token_id")
    return dict(zip(names, (tokenizer.vocab[token] for token in QWEN_TOKENS), strict=True))


def build_qwen2_5_vl(directory: Path) -> None:
    """Qwen2.5-VL: 6 to 40 rows an image, windows of 2 x 2 rows in two blocks of three, M-RoPE in three sections."""
    tokenizer = build_tokenizer(QWEN_TOKENS)
    config = Qwen2_5_VLConfig(
        vision_config={
            "depth": 3,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_heads": 2,
            "patch_size": 4,
            "window_size": 16,
            "fullatt_block_indexes": [1],
            "out_hidden_size": TEXT_SHAPE["hidden_size"],
        },
        text_config={
            **TEXT_SHAPE,
            "vocab_size": len(tokenizer),
            "bos_token_id": None,
            "eos_token_id": None,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]},
        },
        **_qwen_ids(tokenizer),
        tie_word_embeddings=False,
    )
    save(Qwen2_5_VLForConditionalGeneration(config), directory, seed=11, eos_token_id=tokenizer.eos_token_id)
    Qwen2_5_VLProcessor(
        image_processor=Qwen2VLImageProcessor(patch_size=4, merge_size=2, size=QWEN_PIXELS),
        tokenizer=tokenizer,
        video_processor=Qwen2VLVideoProcessor(patch_size=4, merge_size=2),
        chat_template=QWEN_TEMPLATE,
    ).save_pretrained(directory)


def build_qwen3_vl(directory: Path) -> None:
    """Qwen3-VL: as above without windows, with learned positions, two taps ("deepstack") and interleaved M-RoPE."""
    tokenizer = build_tokenizer(QWEN_TOKENS)
    config = Qwen3VLConfig(
        vision_config={
            "depth": 3,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_heads": 2,
            "patch_size": 4,
            "num_position_embeddings": 36,
            "deepstack_visual_indexes": [0, 1],
            "out_hidden_size": TEXT_SHAPE["hidden_size"],
        },
        text_config={
            **TEXT_SHAPE,
            "vocab_size": len(tokenizer),
            "head_dim": 16,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [4, 2, 2],
                "mrope_interleaved": True,
            },
        },
        **_qwen_ids(tokenizer),
        tie_word_embeddings=False,
    )
    save(Qwen3VLForConditionalGeneration(config), directory, seed=18, eos_token_id=tokenizer.eos_token_id)
    Qwen3VLProcessor(
        image_processor=Qwen2VLImageProcessor(patch_size=4, merge_size=2, size=QWEN_PIXELS),
        tokenizer=tokenizer,
        video_processor=Qwen3VLVideoProcessor(patch_size=4, merge_size=2),
        chat_template=QWEN_TEMPLATE,
    ).save_pretrained(directory)


GEMMA_TOKENS = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}


def build_gemma3(directory: Path) -> None:
    """Gemma 3 with images: 32 x 32 pixels to 16 rows that see one another, windows of 12 tokens in two layers of three.

    A cap of logits that this class ignores, and must.
    """
    tokenizer = build_tokenizer(tuple(GEMMA_TOKENS.values()), named_tokens=GEMMA_TOKENS)
    config = Gemma3Config(
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 3,
            "num_attention_heads": 2,
            "image_size": 32,
            "patch_size": 4,
        },
        text_config={
            **TEXT_SHAPE,
            "vocab_size": len(tokenizer),
            "head_dim": 16,
            "query_pre_attn_scalar": 8,
            "sliding_window": 12,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "final_logit_softcapping": 3.0,
            "bos_token_id": None,
            "eos_token_id": None,
        },
        mm_tokens_per_image=16,
        image_token_index=tokenizer.vocab[GEMMA_TOKENS["image_token"]],
        boi_token_index=tokenizer.vocab[GEMMA_TOKENS["boi_token"]],
        eoi_token_index=tokenizer.vocab[GEMMA_TOKENS["eoi_token"]],
        tie_word_embeddings=False,
    )
    save(Gemma3ForConditionalGeneration(config), directory, seed=7, eos_token_id=tokenizer.eos_token_id)
    Gemma3Processor(
        image_processor=Gemma3ImageProcessor(size={"height": 32, "width": 32}),
        tokenizer=tokenizer,
        image_seq_length=16,
        chat_template=IMAGE_TEMPLATE.replace("<image>", GEMMA_TOKENS["boi_token"]),
    ).save_pretrained(directory)


BUILDERS: dict[str, Callable[[Path], None]] = {
    "llama": build_llama,
    "qwen3": build_qwen3,
    "fast_vlm": build_fast_vlm,
    "smolvlm": build_smolvlm,
    "qwen2_5_vl": build_qwen2_5_vl,
    "qwen3_vl": build_qwen3_vl,
    "gemma3": build_gemma3,
}
