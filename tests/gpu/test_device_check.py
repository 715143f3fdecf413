"""The device check on a CPU, so that it runs where it is needed; and that it finds what it is for."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from backend.runtime.attention.registry import BACKENDS
from backend.runtime.attention.sdpa import SdpaAttention
from tests.architecture.sources import ROOT
from tests.gpu.device_check import TINY, Check, print_table
from tests.gpu.equality import equality_rows
from tests.gpu.made_models import SMALL
from tests.gpu.table import Row, attempt, show


@pytest.mark.long
def test_all_of_it_with_few_libraries() -> None:
    """Imports of other libraries than torch, transformers and safetensors would fail, in functions too."""
    command = [sys.executable, "-m", "tests.bare", "tests.gpu.device_check", "--device", "cpu", "--tiny"]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stdout + done.stderr
    table = done.stdout.splitlines()
    assert table[-1].startswith("all ")
    parts = {line.split()[0] for line in table[2:-1]}
    assert parts == {"equality", "rates", "model", "decode", "prefill", "picture", "stalls", "ahead"}


def test_nothing_is_said_without_a_device() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a device")
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.device_check"], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, "skipped: no CUDA device\n")


class WrongScale(SdpaAttention):
    """Attention that is a little too sharp."""

    def run(self, *args: torch.Tensor, scale: float, **options: float | None) -> torch.Tensor:  # type: ignore[override]
        return super().run(*args, scale=1.5 * scale, **options)  # type: ignore[arg-type]


def test_wrong_attention_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKENDS, "wrong", f"{__name__}:WrongScale")
    rows = list(equality_rows(SMALL[0], "cpu", ("wrong", "sdpa"), (30, 70), 6))
    assert [row.is_fault for row in rows] == [True, False] * 2
    assert "wrong tokens" in rows[0].verdict


def test_a_part_that_fails_or_hangs_leaves_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> Iterator[Row]:
        yield Row("decode", "llama", "first", "1 ms")
        raise RuntimeError("an illegal memory access")

    check = Check("cpu", TINY, has_pictures=True)
    check.part("decode", "llama", "sdpa", fail)
    check.part("prefill", "llama", "sdpa", lambda: [Row("prefill", "llama", "sdpa", "2 ms")])
    assert [row.is_fault for row in check.rows] == [False, True, False]
    check.current = Row("stalls", "llama", "", "", "does not end")
    assert print_table("a GPU", check) == 2
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "a GPU"
    assert printed[-2].endswith("does not end")
    assert printed[-1] == "2 of 4 rows are wrong"


def test_what_fails_is_a_fault_and_what_does_not_fit_is_none() -> None:
    def fail(error: Exception) -> list[Row]:
        raise error

    broken = [*attempt("part", "model", "case", lambda: fail(ArithmeticError("not\nfinite")))]
    large = [*attempt("part", "model", "case", lambda: fail(torch.OutOfMemoryError("2 GiB")))]
    assert broken == [Row("part", "model", "case", "", "ArithmeticError: not")]
    assert broken[0].is_fault
    assert not large[0].is_fault
    assert "ArithmeticError: not" in show(broken)
