"""The suite, tested: each fault below, injected into the running engine, must make the equivalence check fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from backend.runtime import runner
from backend.runtime.attention.base import AttentionInputs
from backend.runtime.attention.sdpa import SdpaAttention, SdpaPlan
from backend.runtime.batch import StepTensors, build_step_tensors
from backend.types.step import Chunk
from tests.equivalence.harness import (
    ATOMIC_FAMILIES,
    FAMILIES,
    IMAGE_FAMILIES,
    Adapters,
    Answers,
    assert_matches,
    generate,
    limits,
    prompts_of,
    request_of,
)

Fault = Callable[[StepTensors], StepTensors]


def swapped_block(tensors: StepTensors) -> StepTensors:
    """Two neighbouring blocks change places when keys are read."""
    tables = tuple(
        (t[1], t[0], *t[2:]) if len(t) > 1 and kv_len > 4 else t
        for t, kv_len in zip(tensors.attention.block_tables, tensors.attention.kv_lens, strict=True)
    )
    return replace(tensors, attention=replace(tensors.attention, block_tables=tables))


def position_off_by_one(tensors: StepTensors) -> StepTensors:
    """The chunks of a sequence after its first count their positions from one too far."""
    positions = tensors.positions.clone()
    starts = tensors.attention.query_starts
    for seq, kv_len in enumerate(tensors.attention.kv_lens):
        if kv_len > starts[seq + 1] - starts[seq]:
            positions[:, starts[seq] : starts[seq + 1]] += 1
    return replace(tensors, positions=positions)


def dropped_image_row(tensors: StepTensors) -> StepTensors:
    """The first row of every run of image rows stays what it was before: a placeholder."""
    embeds = tuple(
        replace(e, row=e.row + 1, dest=e.dest + 1, length=e.length - 1) for e in tensors.embeds if e.length > 1
    )
    return replace(tensors, embeds=embeds)


def image_row_counted_from_the_chunk(tensors: StepTensors) -> StepTensors:
    """Image rows are taken by their place in the chunk, not in the image."""
    return replace(tensors, embeds=tuple(replace(e, row=0) for e in tensors.embeds))


def wrong_sample_row(tensors: StepTensors) -> StepTensors:
    """The next token is chosen one row early."""
    return replace(tensors, sample_rows=(tensors.sample_rows - 1).clamp(min=0))


def kv_written_one_slot_late(tensors: StepTensors) -> StepTensors:
    """A token's keys land where the next token's belong."""
    return replace(tensors, attention=replace(tensors.attention, slots=(tensors.attention.slots + 1) % (256 * 4)))


def image_seen_in_one_direction(tensors: StepTensors) -> StepTensors:
    """The tokens of an image see only those before them."""
    return replace(tensors, attention=replace(tensors.attention, atomic_rows=()))


FAULTS_IN_TENSORS: tuple[Fault, ...] = (
    swapped_block,
    position_off_by_one,
    wrong_sample_row,
    kv_written_one_slot_late,
)
FAULTS_IN_IMAGES: tuple[Fault, ...] = (dropped_image_row, image_row_counted_from_the_chunk)


def check(family: str, adapter: Adapters, expected: Answers, budget: int = 16) -> None:
    """The very check of `test_chunked_equals_transformers`."""
    model = adapter(family)
    outcome = generate(model, [request_of(model, p) for p in prompts_of(family)], limits(budget))
    assert_matches(expected(family), outcome.tokens)


def inject(monkeypatch: pytest.MonkeyPatch, fault: Fault) -> None:
    def faulty(chunks: Sequence[Chunk], **options: Any) -> StepTensors:
        return fault(build_step_tensors(chunks, **options))

    monkeypatch.setattr(runner, "build_step_tensors", faulty)


@pytest.mark.parametrize("fault", FAULTS_IN_TENSORS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_fault_in_the_step_is_seen(
    family: str, fault: Fault, adapter: Adapters, expected: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    inject(monkeypatch, fault)
    with pytest.raises(AssertionError, match="diverges"):
        check(family, adapter, expected)


@pytest.mark.parametrize("fault", FAULTS_IN_IMAGES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("family", IMAGE_FAMILIES)
def test_a_fault_in_the_image_rows_is_seen(
    family: str, fault: Fault, adapter: Adapters, expected: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    if family in ATOMIC_FAMILIES and fault is image_row_counted_from_the_chunk:
        fault = image_seen_in_one_direction  # images in one piece have no rows to miscount
    inject(monkeypatch, fault)
    with pytest.raises(AssertionError, match="diverges"):
        check(family, adapter, expected, budget=7)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_mask_one_too_wide_is_seen(
    family: str, adapter: Adapters, expected: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inside a chunk, every token also sees the one after it."""
    plan = SdpaAttention.plan

    def too_wide(self: SdpaAttention, inputs: AttentionInputs) -> SdpaPlan:
        groups = plan(self, inputs).groups
        return SdpaPlan(
            inputs.slots, tuple(replace(g, last_keys=g.last_keys + 1, whole=False, masks={}) for g in groups)
        )

    monkeypatch.setattr(SdpaAttention, "plan", too_wide)
    with pytest.raises(AssertionError, match="diverges"):
        check(family, adapter, expected)


@pytest.mark.parametrize("family", ATOMIC_FAMILIES)
def test_an_image_one_too_wide_is_seen(
    family: str, adapter: Adapters, expected: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The image's tokens also see the text token behind it."""

    def too_wide(tensors: StepTensors) -> StepTensors:
        starts, rows = tensors.attention.query_starts, tensors.attention.atomic_rows
        wider = tuple(range(r.start, r.stop if r.stop in starts else r.stop + 1) for r in rows)
        return replace(tensors, attention=replace(tensors.attention, atomic_rows=wider))

    inject(monkeypatch, too_wide)
    with pytest.raises(AssertionError, match="diverges"):
        check(family, adapter, expected, budget=64)


@pytest.mark.parametrize("family", ["qwen3", "gemma3", "gemma3_text"])
def test_a_window_one_too_wide_is_seen(
    family: str, adapter: Adapters, expected: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sliding layers look back one key too far."""
    run = SdpaAttention.run

    def too_wide(self: SdpaAttention, *args: Any, sliding_window: int | None = None, **options: Any) -> torch.Tensor:
        window = sliding_window + 1 if sliding_window is not None else None
        return run(self, *args, sliding_window=window, **options)

    monkeypatch.setattr(SdpaAttention, "run", too_wide)
    with pytest.raises(AssertionError, match="diverges"):
        check(family, adapter, expected)


def test_the_check_passes_without_a_fault(adapter: Adapters, expected: Answers) -> None:
    """What the faults above are compared with."""
    for family in FAMILIES:
        check(family, adapter, expected)
