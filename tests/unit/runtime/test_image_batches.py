"""The check of image batches at the start: what it lets through, and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from backend.models.registry import load
from backend.runtime.image_batches import largest_batch
from backend.types.request import ImageInput


@pytest.fixture
def adapter(checkpoint: Callable[[str], Path]) -> Any:
    return load(str(checkpoint("smolvlm")), device="cpu", dtype="float32")


def test_batches_that_are_right(adapter: Any) -> None:
    said: list[str] = []
    assert largest_batch(adapter, said.append, limit=4) == 4
    assert said == ["Images encoded together: up to 4"]


def test_text_models_have_none(checkpoint: Callable[[str], Path]) -> None:
    said: list[str] = []
    assert largest_batch(load(str(checkpoint("llama")), device="cpu", dtype="float32"), said.append) == 1
    assert said == []


def test_towers_that_take_one_tile_at_a_time(adapter: Any) -> None:
    said: list[str] = []
    adapter.recount_slices(takes_batches=False)
    assert largest_batch(adapter, said.append) == 1
    assert said == ["Images encoded together: none; this model encodes its images one by one"]


@pytest.mark.parametrize(("most", "found"), [(1, "none; 2 at once are off by "), (2, "up to 2; 4 at once are off by ")])
def test_rows_that_change_places_are_found(most: int, found: str, adapter: Any, monkeypatch: Any) -> None:
    right = adapter.encode_together

    def wrong(images: Sequence[ImageInput]) -> Generator[None, None, tuple[torch.Tensor, ...]]:
        rows = yield from right(images)
        return tuple(reversed(rows)) if len(images) > most else rows

    monkeypatch.setattr(adapter, "encode_together", wrong)
    said: list[str] = []
    assert largest_batch(adapter, said.append, limit=4) == most
    assert said[0].startswith(f"Images encoded together: {found}")


def test_memory_that_does_not_suffice_is_no_reason_not_to_start(adapter: Any, monkeypatch: Any) -> None:
    right = adapter.encode_together

    def greedy(images: Sequence[ImageInput]) -> Generator[None, None, tuple[torch.Tensor, ...]]:
        if len(images) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate")
        return (yield from right(images))

    monkeypatch.setattr(adapter, "encode_together", greedy)
    said: list[str] = []
    assert largest_batch(adapter, said.append) == 2
    assert said == ["Images encoded together: up to 2; CUDA out of memory."]
