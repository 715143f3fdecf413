"""Which text backend is chosen from what was measured, and when int4 may be."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from backend import readings
from backend.errors import ConfigError
from backend.models.adapter import ModelAdapter
from backend.models.registry import load
from backend.runtime.native import choice, compiler
from backend.runtime.native.choice import choose_text
from backend.runtime.native.packing import quantise_int4
from tests.checkpoints import build_llama

ALL = "+avx512f,+avx512vnni"
TIMES = {"torch": 4.0, "native": 3.0, "native-int8": 2.0, "native-int4": 1.0}


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelAdapter:
    """A model of random weights on a quiet machine that can do everything; int4 is fastest."""
    pytest.importorskip("numba")
    monkeypatch.setattr(compiler, "_features", lambda: ALL)
    monkeypatch.setattr(readings, "machine_load", lambda: 0.0)
    monkeypatch.setattr(choice, "_measure", lambda adapter, name, say: [TIMES[name]] * 3)
    build_llama(tmp_path / "model")
    return load(str(tmp_path / "model"), device="cpu", dtype="float32")


def had_four_bits(adapter: ModelAdapter) -> None:
    """Round the linears of every layer as a file of four bits does."""
    for layer in adapter.text_parts().decoder.layers:
        for module in layer.modules():
            if isinstance(module, torch.nn.Linear):
                module.weight.data = quantise_int4(module.weight.data).weights()


def test_int4_is_chosen_by_itself_only_for_weights_that_had_four_bits(model: ModelAdapter, tmp_path: Path) -> None:
    said: list[str] = []
    assert choose_text(model, "auto", tmp_path, said.append) == "native-int8"
    assert said[-1].startswith("Text model: int8 (compiled), the fastest of float32 (torch) 4.0 / 4.0 / 4.0 ms; ")
    assert said[-1].endswith("; int4 would round these weights more than int8")
    assert "int4 (compiled)" not in said[-1]
    had_four_bits(model)
    assert choose_text(model, "auto", tmp_path, said.append) == "native-int4"
    assert said[-1].endswith("int4 (compiled) 1.0 / 1.0 / 1.0 ms (1 and 8 answers, a chunk of 64)")
    weight = model.text_parts().decoder.layers[-1].mlp.down_proj.weight
    weight.data += 0.02 * torch.randn_like(weight)
    assert choose_text(model, "auto", tmp_path, said.append) == "native-int8"


def test_int4_that_is_slower_is_not_chosen(
    model: ModelAdapter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    had_four_bits(model)
    monkeypatch.setitem(TIMES, "native-int4", 2.5)
    assert choose_text(model, "auto", tmp_path, lambda line: None) == "native-int8"


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_what_is_demanded_is_had_or_refused(
    name: str, model: ModelAdapter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    assert choose_text(model, name, tmp_path, said.append) == f"native-{name}"
    assert said == [f"Text model: {name} (compiled); as demanded"]
    monkeypatch.setattr(compiler, "_features", lambda: "+avx2")
    with pytest.raises(ConfigError, match=f"^--quantization {name} cannot be used: the processor has no avx512vnni$"):
        choose_text(model, name, tmp_path, said.append)
    assert choose_text(model, "auto", tmp_path, said.append) == "native"
    monkeypatch.setattr(compiler, "_features", lambda: None)
    assert choose_text(model, "auto", tmp_path, said.append) == "torch"
    assert said[-1] == "Text model: float32 (torch); numba is not installed"


def test_figures_of_a_busy_start_say_so_until_a_quiet_one(
    model: ModelAdapter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(readings, "machine_load", lambda: 2.0)
    monkeypatch.setitem(TIMES, "native-int8", 9.0)
    assert choose_text(model, "auto", tmp_path, said.append) == "native"
    assert said[-1].endswith("; measured beside other work (load 2.0 a core), and again at a quieter start")
    monkeypatch.setattr(readings, "machine_load", lambda: 0.1)
    monkeypatch.setitem(TIMES, "native-int8", 2.0)
    assert choose_text(model, "auto", tmp_path, said.append) == "native-int8"
    assert said[-1].endswith("more than int8")
