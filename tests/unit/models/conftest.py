from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from backend.models.adapter import ModelAdapter
from backend.models.registry import load
from tests.pace import cut_finely


@pytest.fixture(scope="session")
def adapter(checkpoint: Callable[[str], Path]) -> Callable[[str], ModelAdapter]:
    loaded: dict[str, ModelAdapter] = {}

    def of(family: str) -> ModelAdapter:
        if family not in loaded:
            loaded[family] = cut_finely(load(str(checkpoint(family)), device="cpu", dtype="auto"))
        return loaded[family]

    return of
