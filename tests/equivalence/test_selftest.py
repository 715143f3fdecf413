"""`watchword selftest`: equal where the engine is right, and found out where it is not."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from backend.runtime import runner
from backend.runtime.batch import StepTensors, build_step_tensors
from backend.selftest import selftest as the_selftest
from backend.selftest.compare import differences, first_difference
from backend.selftest.reference import Expected
from backend.selftest.report import Report, Status
from backend.selftest.selftest import Selftest
from backend.types.step import Chunk
from tests.equivalence.test_mutants import image_row_counted_from_the_chunk, position_off_by_one
from ui.cli import execute

Checkpoints = Callable[[str], Path]


class Told:
    """A progress that remembers."""

    def __init__(self) -> None:
        self.num_phases, self.names = 0, list[str]()

    def expect(self, num_phases: int) -> None:
        self.num_phases = num_phases

    def begin(self, name: str) -> None:
        self.names.append(name)


def examine(path: Path, **options: Any) -> Report:
    return Selftest(name="tiny", path=str(path), quantization="none", num_tokens=16, **options).run(Told())


def statuses(report: Report) -> dict[str, Status]:
    return {check.name: check.status for check in report.checks}


@pytest.mark.parametrize("family", ["llama", "fast_vlm"])
def test_a_right_engine_passes_and_everything_comes_up(family: str, checkpoint: Checkpoints) -> None:
    told = Told()
    report = Selftest(name="tiny", path=str(checkpoint(family)), quantization="none", num_tokens=16).run(told)
    assert set(statuses(report).values()) == {Status.EQUAL}
    assert report.exit_status == 0
    assert ("room for one picture" in statuses(report)) is (family == "fast_vlm")
    assert all(check.num_equal == check.num_tokens > 0 for check in report.checks)
    assert told.num_phases == len(told.names)
    if family == "fast_vlm":
        assert "borders inside pictures" in next(c.what for c in report.checks if c.name == "chunks of 7")


def inject(monkeypatch: pytest.MonkeyPatch, fault: Callable[[StepTensors], StepTensors]) -> None:
    def faulty(chunks: Sequence[Chunk], **options: Any) -> StepTensors:
        return fault(build_step_tensors(chunks, **options))

    monkeypatch.setattr(runner, "build_step_tensors", faulty)


def test_a_fault_is_found_and_placed(checkpoint: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    """Image rows counted from the chunk: right in whole prompts, wrong in chunks."""
    inject(monkeypatch, image_row_counted_from_the_chunk)
    report = examine(checkpoint("fast_vlm"))
    assert report.exit_status == 1
    assert statuses(report)["whole prompts"] is Status.EQUAL
    chunked = next(c for c in report.checks if c.name == "chunks of 7")
    assert chunked.status is Status.DIFFERENT
    assert {d.prompt for d in chunked.differences} == {"picture", "other picture", "two pictures"}
    assert chunked.widest is not None
    assert chunked.widest > report.margin


def test_what_lies_within_the_margin_is_a_tie(checkpoint: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    inject(monkeypatch, position_off_by_one)
    path = checkpoint("llama")
    assert examine(path).exit_status == 1
    generous = examine(path, margin=float("inf"))
    assert generous.exit_status == 0
    assert statuses(generous)["chunks of 7"] is Status.TIE


def test_a_request_that_fails_is_broken_not_equal(checkpoint: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoilt(tensors: StepTensors) -> StepTensors:
        tensors.token_ids.fill_(0)
        return tensors

    def nan_logits(self: Any, hidden: Any) -> Any:
        return hidden.new_full((len(hidden), 320), float("nan"))

    inject(monkeypatch, spoilt)
    monkeypatch.setattr("backend.models.hf_adapter.HfAdapter.logits", nan_logits)
    report = examine(checkpoint("llama"))
    assert report.exit_status == 2
    broken = next(c for c in report.checks if c.name == "whole prompts")
    assert broken.status is Status.BROKEN
    assert "not finite" in broken.what


def test_another_prompt_is_a_difference(checkpoint: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = the_selftest._requests

    def shorter(adapter: Any, prompts: Any, num_tokens: int) -> Any:
        cut = tuple(type(p)(p.name, (p.parts[0][:-1],)) for p in prompts)
        return requests(adapter, cut, num_tokens)

    monkeypatch.setattr(the_selftest, "_requests", shorter)
    report = examine(checkpoint("llama"))
    assert statuses(report)["tokens of the prompts"] is Status.DIFFERENT


def test_the_margin_is_that_of_the_token_which_came() -> None:
    """Not that of the runner-up, which a token far behind would hide in."""
    expected = Expected((9,), (5, 6), (((5, 3.0), (4, 2.0)), ((6, 8.0), (7, 7.5), (2, 1.0))))
    assert first_difference("p", expected, (5, 6)) is None
    margins = [found.margin for got in (7, 2, 3) if (found := first_difference("p", expected, (5, got)))]
    assert margins == [0.5, 7.0, float("inf")]
    (short,) = differences({"p": expected}, {"p": (5,)})
    assert (short.index, short.got, short.margin) == (1, None, float("inf"))


def test_the_command_writes_a_report(checkpoint: Checkpoints, tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    given = [str(checkpoint("llama")), "--quantization", "none", "--max-tokens", "8", "--json", str(out)]
    assert execute(["selftest", *given]) == 0
    report = json.loads(out.read_text())
    assert report["exit_status"] == 0
    assert {check["status"] for check in report["checks"]} <= {"equal", "idle"}


@pytest.mark.long
def test_the_command_reports_compiled_loops_and_int8(checkpoint: Checkpoints, tmp_path: Path) -> None:
    pytest.importorskip("numba")
    out = tmp_path / "report.json"
    assert execute(["selftest", str(checkpoint("llama")), "--max-tokens", "16", "--json", str(out)]) == 0
    report = json.loads(out.read_text())
    assert report["exit_status"] == 0
    found = {check["name"]: check["status"] for check in report["checks"]}
    assert found["compiled: chunks of 7"] == "equal"
    notes = " ".join(report["notes"])
    assert found.get("int8: whole prompts") == "reported" or "int8: not tested" in notes


def test_what_cannot_run_ends_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["selftest", str(tmp_path / "nowhere")]) == 2
    assert "no such directory" in capsys.readouterr().err
    assert execute(["selftest", "--dtype", "int4"]) == 2
    assert "--dtype is 'int4'" in capsys.readouterr().err
