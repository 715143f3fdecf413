"""Fixtures shared by all parts: tiny checkpoints, built once per session when first asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from backend.runtime.native.compiler import find_kernel_obstacle, ready_numba

# As a server does, before any test module imports compiled loops: else those here would be others than a server's.
if find_kernel_obstacle(int8=False) is None:
    ready_numba()


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`checkpoint("llama")` is a directory with that tiny checkpoint, made by the builder of that name."""
    built: dict[str, Path] = {}

    def path_of(name: str) -> Path:
        if name not in built:
            from tests.checkpoints import BUILDERS
            from tests.text_checkpoints import TEXT_BUILDERS
            from tests.tiled_checkpoints import TILED_BUILDERS

            directory = tmp_path_factory.mktemp("checkpoint") / name
            (BUILDERS | TEXT_BUILDERS | TILED_BUILDERS)[name](directory)
            built[name] = directory
        return built[name]

    return path_of
