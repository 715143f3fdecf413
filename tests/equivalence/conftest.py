from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from backend.models.adapter import ModelAdapter
from backend.models.registry import load
from tests.equivalence.harness import Expected, expected_of, prompts_of


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Tiny matrices gain nothing from threads, and the machine may be shared."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def adapter(checkpoint: Callable[[str], Path]) -> Callable[[str], ModelAdapter]:
    loaded: dict[str, ModelAdapter] = {}

    def of(family: str) -> ModelAdapter:
        if family not in loaded:
            loaded[family] = load(str(checkpoint(family)), device="cpu", dtype="float32")
        return loaded[family]

    return of


@pytest.fixture(scope="session")
def expected(checkpoint: Callable[[str], Path]) -> Callable[[str], dict[str, Expected]]:
    return lambda family: expected_of(checkpoint(family), prompts_of(family))
