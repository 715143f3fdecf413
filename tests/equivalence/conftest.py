from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from backend.models.adapter import ModelAdapter
from backend.models.registry import load
from tests.equivalence.harness import FAMILIES, NATIVE_FAMILIES, Expected, expected_of, prompts_of
from tests.pace import cut_finely


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The suite runs once more on the compiled loops, for the families that those compute."""
    others = set(FAMILIES) - set(NATIVE_FAMILIES)
    items[:] = [item for item in items if "test_native" not in item.nodeid or others.isdisjoint(_params_of(item))]


def _params_of(item: pytest.Item) -> list[Any]:
    """The test's parameters that are names."""
    callspec = getattr(item, "callspec", None)
    return [p for p in callspec.params.values() if isinstance(p, str)] if callspec else []


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Tiny matrices gain nothing from threads, and the machine may be shared."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def adapter(checkpoint: Callable[[str], Path]) -> Callable[[str], ModelAdapter]:
    loaded: dict[str, ModelAdapter] = {}

    def of(family: str) -> ModelAdapter:
        if family not in loaded:
            loaded[family] = cut_finely(load(str(checkpoint(family)), device="cpu", dtype="float32"))
        return loaded[family]

    return of


@pytest.fixture(scope="session")
def expected(checkpoint: Callable[[str], Path]) -> Callable[[str], dict[str, Expected]]:
    return lambda family: expected_of(checkpoint(family), prompts_of(family))
