"""How loops are compiled: for whole vectors, which must be settled before the first of them is imported."""

from __future__ import annotations

from typing import Any

import pytest

from backend.runtime.native import compiler

pytest.importorskip("numba")


def test_loops_here_are_compiled_as_a_servers_are() -> None:
    from numba.core.registry import cpu_target

    import backend.runtime.native.vectors  # noqa: F401 - makes numba's code generator, as every compiled loop does

    target: Any = cpu_target.target_context
    features = target.codegen().magic_tuple()[2].split(",")
    assert ("-prefer-256-bit" in features) == ("+avx512f" in features)


def test_loops_that_were_imported_too_early_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    import backend.runtime.native.vectors  # noqa: F401

    monkeypatch.delenv(compiler.FEATURES)
    with pytest.raises(AssertionError, match="imported before"):
        compiler.ready_numba()
