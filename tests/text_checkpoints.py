"""Tiny random checkpoints of the plain text families, by the rules of `tests.checkpoints`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM

from tests.checkpoints import TEXT_SHAPE, build_tokenizer
from tests.weights import randomize

SPECIALITIES: dict[str, dict[str, Any]] = {
    "gemma2": {"head_dim": 16, "sliding_window": 24, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    "gemma3_text": {"head_dim": 16, "sliding_window": 24, "query_pre_attn_scalar": 8, "final_logit_softcapping": 3.0},
    "granite": {"logits_scaling": 4.0, "attention_multiplier": 0.4, "embedding_multiplier": 2.0},
    "mistral": {"sliding_window": 24},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "head_dim": 16},
}
"""What a family does that others do not, switched on and small enough to matter within a test."""


def build_text(family: str, directory: Path) -> None:
    """A checkpoint of any text family, with what sets it apart switched on."""
    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(directory)
    shape = TEXT_SHAPE | {"vocab_size": len(tokenizer), "pad_token_id": 0} | SPECIALITIES.get(family, {})
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **shape))
    randomize(model, seed=7)
    model.save_pretrained(directory)


TEXT_BUILDERS: dict[str, Callable[[Path], None]] = {
    family: partial(build_text, family) for family in ("gemma3_text", "phi3")
}
