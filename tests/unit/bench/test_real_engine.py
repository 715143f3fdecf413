"""Bench and tune against the real server with a tiny model: they understand what it really says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.api.conftest import Live, live_checkpoint
from tests.unit.bench.conftest import Done

Command = Callable[..., Done]


@pytest.fixture(scope="module")
def engine(checkpoint: Callable[[str], Path]) -> Iterator[Live]:
    with live_checkpoint(checkpoint("fast_vlm")) as server:
        yield server


def test_chat_under_camera(engine: Live, command: Command, tmp_path: Path) -> None:
    done = command(
        "bench", "--base-url", engine.base_url, "--tokens", 60, "--size", "160x160", "--runs", 1,
        "--png", tmp_path / "gaps.png",
    )  # fmt: skip
    assert done.status == 0, done.err
    quiet, camera = done.report["phases"]
    assert done.report["server"]["engine"]["max_num_batched_tokens"] == 64
    assert done.report["server"]["ignore_eos"] is True
    assert quiet["num_failed"] == camera["num_failed"] == 0
    assert quiet["tokens_per_s"] * quiet["wall_s"] == pytest.approx(120, abs=1)
    assert quiet["num_slices"] == 0
    assert quiet["bare_decode_step_ms"] > 0
    assert camera["num_slices"] >= 1
    assert camera["stall_p99"] > 0
    # A step's time is the engine's own: were it put on another clock, none would lie within the phase.
    assert quiet["num_steps"] >= 60


def test_tune(engine: Live, command: Command) -> None:
    before = engine.service.engine.token_budget
    assert not engine.service.engine.is_budget_exact, "nobody chose one"
    done = command(
        "tune", "--base-url", engine.base_url, "--budgets", "32,128", "--duration", 1, "--rate", 5, "--mix", "chat",
    )  # fmt: skip
    assert done.status == 0, done.err
    assert [point["max_num_batched_tokens"] for point in done.report["points"]] == [32, 128]
    assert all(point["num_failed"] == 0 for point in done.report["points"])
    assert engine.service.engine.token_budget == before
    assert not engine.service.engine.is_budget_exact, "it goes by time again"
