"""Every text family that the registry lists, on a tiny checkpoint of its own, against transformers."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.models.hf_adapter import TEXT_FAMILIES
from backend.models.registry import load
from tests.equivalence.harness import TEXT_PROMPTS, assert_matches, expected_of, generate, limits, request_of
from tests.text_checkpoints import build_text


@pytest.mark.parametrize("family", TEXT_FAMILIES)
def test_family_equals_transformers(family: str, tmp_path: Path) -> None:
    build_text(family, tmp_path)
    adapter = load(str(tmp_path), device="cpu", dtype="float32")
    assert adapter.spec.family == family
    prompts = TEXT_PROMPTS[1:3]
    outcome = generate(adapter, [request_of(adapter, p) for p in prompts], limits(7))
    assert_matches(expected_of(tmp_path, prompts), outcome.tokens)
