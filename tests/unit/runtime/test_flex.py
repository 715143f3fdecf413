"""FlexAttention's block lists, which its eager form does not read, and its compiled form, which does."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch._dynamo.utils import counters
from torch.nn.attention.flex_attention import flex_attention

from backend.runtime.attention.base import AttentionBackend, AttentionInputs
from backend.runtime.attention.flex import FlexAttention, compiled
from backend.runtime.attention.reference import ReferenceAttention
from tests.unit.runtime.test_attention import BLOCK_SIZE, HEAD_DIM, NUM_BLOCKS, STEPS, make_inputs, make_pool

IMAGES = (range(3, 40), range(45, 150))


def long_prompt(seed: int) -> AttentionInputs:
    """Tokens 10 to 189 of a sequence, some of images, beside a few that decode: rows of several tiles."""
    inputs = make_inputs([(180, 190), (1, 77), (1, 4)], seed)
    return replace(inputs, atomic_rows=IMAGES)


@pytest.mark.parametrize("ratio", [1, 3])
@pytest.mark.parametrize("sliding_window", [None, 1, 6, 50])
def test_a_tile_visits_the_pages_that_its_rows_see_and_no_others(sliding_window: int | None, ratio: int) -> None:
    attention = FlexAttention(make_pool())
    for inputs in (long_prompt(2), make_inputs(STEPS["everything at once"], 3)):
        for group in attention.plan(inputs).groups:
            mask = attention._mask(group, sliding_window, ratio)
            tile, num_rows = mask.BLOCK_SIZE[0], mask.seq_lengths[0]
            slots = torch.arange(NUM_BLOCKS * BLOCK_SIZE)
            for seq in range(len(group.indices)):
                seen = mask.mask_mod(torch.tensor(seq), torch.tensor(0), torch.arange(num_rows)[:, None], slots)
                pages = seen.unflatten(1, (NUM_BLOCKS, BLOCK_SIZE)).any(2)
                for number, rows in enumerate(pages.split(tile)):
                    listed = mask.kv_indices[seq, 0, number, : int(mask.kv_num_blocks[seq, 0, number])].tolist()
                    assert len(set(listed)) == len(listed)
                    assert set(listed) == set(rows.any(0).nonzero()[:, 0].tolist())


def test_steps_of_all_sizes_share_few_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced as on a GPU, and then computed as it is: another graph would take seconds of a running chat."""
    attention = FlexAttention(make_pool())
    monkeypatch.setattr(attention, "_attend", compiled(backend="eager"))
    torch.compiler.reset()
    counters.clear()
    for seed, lens in enumerate(([(1, 9), (1, 4)], [(1, 30)] * 3, [(1, 50)], [(20, 20)], [(70, 90), (1, 3), (1, 4)])):
        for layer in range(2):
            run(attention, layer, make_inputs(lens, seed), None, None)
    assert 0 < counters["stats"]["unique_graphs"] <= 4


@pytest.mark.long
@pytest.mark.parametrize(("sliding_window", "softcap"), [(None, None), (6, 2.0)])
def test_compiled_equals_the_oracle(
    sliding_window: int | None, softcap: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel for each shape: torch's kernels for CPUs of whatever shape do not always compile."""
    past = torch.randn(2, 2, NUM_BLOCKS * BLOCK_SIZE, HEAD_DIM, generator=torch.Generator().manual_seed(1))
    pools = make_pool(), make_pool()
    for pool in pools:
        pool.write(1, torch.arange(NUM_BLOCKS * BLOCK_SIZE), past[0], past[1])
    fast = FlexAttention(pools[1])
    torch.compiler.reset()
    monkeypatch.setattr(fast, "_attend", torch.compile(flex_attention, dynamic=False, fullgraph=True))
    for inputs in (long_prompt(2), make_inputs([(1, 17), (1, 64), (1, 2)], 3)):
        want, got = (run(b, 1, inputs, sliding_window, softcap) for b in (ReferenceAttention(pools[0]), fast))
        torch.testing.assert_close(got, want, atol=2e-6, rtol=1e-5)


def run(
    attention: AttentionBackend, layer: int, inputs: AttentionInputs, window: int | None, softcap: float | None
) -> torch.Tensor:
    """Six query heads, two key heads, random rows."""
    generator = torch.Generator().manual_seed(7)
    query = torch.randn(6, inputs.query_starts[-1], HEAD_DIM, generator=generator)
    key, value = torch.randn(2, 2, inputs.query_starts[-1], HEAD_DIM, generator=generator)
    with torch.inference_mode():
        plan = attention.plan(inputs)
        return attention.run(layer, query, key, value, plan, scale=0.3, sliding_window=window, softcap=softcap)
