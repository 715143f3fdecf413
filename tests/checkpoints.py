"""Tiny random checkpoints as ordinary HF directories: weights, tokenizer, processor, chat template. No network.

Weights are deterministic and spread widely enough that greedy outputs wander through the vocabulary: a model that
repeats one token would pass any comparison.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

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


def build_tokenizer(
    extra_special_tokens: tuple[str, ...] = (), template: str | None = TEXT_TEMPLATE
) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer trained on a few lines; ends a turn with `<|im_end|>`."""
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
    )


def randomize(model: PreTrainedModel, seed: int, *, text_std: float = 0.15) -> None:
    """Deterministic weights: matrices of the text model normal with `text_std`, norms left at one."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if parameter.dim() >= 2:
                fan_in = parameter[0].numel()
                std = text_std if "embed" in name or "lm_head" in name else 1.3 / fan_in**0.5
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * std)


TEXT_SHAPE: dict[str, Any] = {
    "vocab_size": 360,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}


def _save_text(model: PreTrainedModel, directory: Path, seed: int) -> None:
    randomize(model, seed)
    tokenizer = build_tokenizer()
    assert model.generation_config is not None
    model.generation_config.eos_token_id = tokenizer.convert_tokens_to_ids("<|im_end|>")
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def build_llama(directory: Path) -> None:
    """Llama with grouped queries: 4 heads of 16, 2 key heads."""
    _save_text(LlamaForCausalLM(LlamaConfig(**TEXT_SHAPE)), directory, seed=1)


def build_qwen3(directory: Path) -> None:
    """Qwen3: query and key norms, a head size that is not hidden / heads, a sliding window on every other layer."""
    shape = {**TEXT_SHAPE, "num_hidden_layers": 4, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 24}
    config = Qwen3Config(
        **shape,
        use_sliding_window=True,
        sliding_window=24,
        layer_types=["full_attention", "sliding_attention"] * 2,
    )
    _save_text(Qwen3ForCausalLM(config), directory, seed=2)


BUILDERS: dict[str, Callable[[Path], None]] = {"llama": build_llama, "qwen3": build_qwen3}
