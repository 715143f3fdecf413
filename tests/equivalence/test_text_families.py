"""Every text family that the registry lists, on a tiny checkpoint of its own, against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, AutoModelForCausalLM

from backend.models.hf_adapter import TEXT_FAMILIES
from backend.models.registry import load
from tests.checkpoints import TEXT_SHAPE, build_tokenizer
from tests.equivalence.harness import TEXT_PROMPTS, assert_matches, expected_of, generate, limits, request_of
from tests.weights import randomize

SPECIALITIES: dict[str, dict[str, Any]] = {
    "gemma2": {"head_dim": 16, "sliding_window": 24, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    "gemma3_text": {"head_dim": 16, "sliding_window": 24, "query_pre_attn_scalar": 8, "final_logit_softcapping": 3.0},
    "granite": {"logits_scaling": 4.0, "attention_multiplier": 0.4, "embedding_multiplier": 2.0},
    "mistral": {"sliding_window": 24},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "head_dim": 16},
}
"""What a family does that others do not, switched on and small enough to matter within a test."""


@pytest.mark.parametrize("family", TEXT_FAMILIES)
def test_family_equals_transformers(family: str, tmp_path: Path) -> None:
    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    shape = TEXT_SHAPE | {"vocab_size": len(tokenizer), "pad_token_id": 0} | SPECIALITIES.get(family, {})
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **shape))
    randomize(model, seed=7)
    model.save_pretrained(tmp_path)
    adapter = load(str(tmp_path), device="cpu", dtype="float32")
    assert adapter.spec.family == family
    prompts = TEXT_PROMPTS[1:3]
    outcome = generate(adapter, [request_of(adapter, p) for p in prompts], limits(7))
    assert_matches(expected_of(tmp_path, prompts), outcome.tokens)
