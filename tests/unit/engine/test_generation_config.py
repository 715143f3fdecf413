"""Defaults of sampling: the checkpoint's, the API's where it is silent, and nothing of what it must not say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from backend.conversation import SamplingDefaults
from backend.generation_config import read_defaults


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, SamplingDefaults()),
        ({"do_sample": False, "max_length": 20, "eos_token_id": 2}, SamplingDefaults()),
        (
            {"temperature": 0.2, "top_p": 0.9, "do_sample": True},
            SamplingDefaults(temperature=0.2, top_p=0.9),
        ),
        (
            {"top_k": 20, "min_p": 0.05, "repetition_penalty": 1.05, "max_new_tokens": 64},
            SamplingDefaults(top_k=20, min_p=0.05, repetition_penalty=1.05, max_tokens=64),
        ),
    ],
)
def test_what_the_file_says_holds(said: dict[str, Any], expected: SamplingDefaults, tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps(said))
    assert read_defaults(str(tmp_path), "auto") == expected
    assert read_defaults(str(tmp_path), "vllm") == SamplingDefaults()


def test_a_checkpoint_without_the_file_has_the_api_s_defaults(tmp_path: Path) -> None:
    assert read_defaults(str(tmp_path), "auto") == SamplingDefaults()
