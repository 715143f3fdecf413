from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from backend import dtype_choice
from backend.dtype_choice import choose_dtype, fastest, measure, sizes_of
from backend.runtime.native import compiler


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without int8 products."""
    monkeypatch.setattr(compiler, "_features", lambda: None)


def test_sizes_are_those_of_the_text_model(tmp_path: Path) -> None:
    assert sizes_of(tmp_path) == (1024, 4096)
    for config, sizes in (
        ({"hidden_size": 64, "intermediate_size": 96}, (64, 96)),
        ({"hidden_size": 1, "text_config": {"hidden_size": 32, "intermediate_size": 10**9}}, (32, 16_384)),
        ({"hidden_size": None, "intermediate_size": 4}, (1024, 4096)),
        ([], (1024, 4096)),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
        assert sizes_of(tmp_path) == sizes


def test_the_faster_format_wins_and_a_missing_one_never() -> None:
    assert fastest({"float32": [1.0, 2.0, 3.0], "bfloat16": [1.0, 1.0, 5.0]}) == "bfloat16"
    assert fastest({"float32": [1.0, 1.0, 1.0], "bfloat16": [math.inf] * 3}) == "float32"
    assert measure("no_such_format", (8, 8)) == [math.inf] * 3
    assert all(0 < ms < math.inf for ms in measure("bfloat16", (64, 96)))


@pytest.mark.usefixtures("plain")
def test_it_is_measured_once_and_said_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"float32": [2.0, 2.0, 2.0], "bfloat16": [1.0, 2.0, 3.0]}
    monkeypatch.setattr(dtype_choice, "measure", lambda name, sizes: times[name])
    said: list[str] = []
    assert choose_dtype("some/model", "auto", tmp_path, said.append) == "bfloat16"
    monkeypatch.setattr(dtype_choice, "measure", lambda name, sizes: pytest.fail("measured again"))
    assert choose_dtype("some/model", "auto", tmp_path, said.append) == "bfloat16"
    assert len(said) == 2
    assert said[0] == said[1]
    assert said[0].startswith("Weights: bfloat16, the faster of float32 2.00 / 2.00 / 2.00 ms; bfloat16 1.00 / ")


def test_int8_products_are_made_of_float32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "_features", lambda: "+avx512vnni")
    monkeypatch.setattr(dtype_choice, "measure", lambda name, sizes: [2.0] * 3 if name == "float32" else [1.0] * 3)
    assert choose_dtype("some/model", "auto", tmp_path, lambda line: None) == "float32"
    assert choose_dtype("some/model", "none", tmp_path, lambda line: None) == "bfloat16"
