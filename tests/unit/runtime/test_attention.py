"""Every backend against the oracle: ragged steps, shuffled pages, grouped queries, windows, soft caps."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, pairwise

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import flex_attention

from backend.errors import ConfigError
from backend.models.adapter import ModelSpec
from backend.runtime.attention.base import AttentionInputs
from backend.runtime.attention.registry import BACKENDS, make_attention
from backend.runtime.kv_pool import KvPool, bytes_per_block

HEAD_DIM, BLOCK_SIZE, NUM_BLOCKS = 8, 4, 128
FAST = ("sdpa", "flex")
SPEC = ModelSpec(
    family="test",
    num_layers=2,
    num_kv_heads=2,
    head_dim=HEAD_DIM,
    hidden_size=48,
    vocab_size=1,
    max_model_len=512,
    num_position_rows=1,
    eos_token_ids=frozenset(),
    image_token_id=None,
    max_embeds_per_image=0,
)


@pytest.fixture(autouse=True)
def _plain_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """FlexAttention's eager form as it is, not traced first, which would take seconds for each kind of step."""
    monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


def make_pool(dtype: torch.dtype = torch.float32) -> KvPool:
    return KvPool(SPEC, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, dtype=dtype, device=torch.device("cpu"))


def make_inputs(lens: list[tuple[int, int]], seed: int) -> AttentionInputs:
    """One sequence per (query_len, kv_len), on blocks in random order."""
    free = torch.randperm(NUM_BLOCKS, generator=torch.Generator().manual_seed(seed)).tolist()
    tables = tuple(tuple(free.pop() for _ in range(-(-kv_len // BLOCK_SIZE))) for _, kv_len in lens)
    slots = [
        table[i // BLOCK_SIZE] * BLOCK_SIZE + i % BLOCK_SIZE
        for table, (query_len, kv_len) in zip(tables, lens, strict=True)
        for i in range(kv_len - query_len, kv_len)
    ]
    starts = tuple(accumulate((query_len for query_len, _ in lens), initial=0))
    return AttentionInputs(starts, tuple(kv_len for _, kv_len in lens), tables, torch.tensor(slots))


STEPS = {
    "one whole prompt": [(13, 13)],
    "one decode": [(1, 30)],
    "first token": [(1, 1)],
    "decodes of very different lengths": [(1, 3), (1, 90), (1, 4), (1, 33), (1, 1)],
    "everything at once": [(1, 17), (5, 5), (7, 40), (1, 64), (9, 9), (1, 2), (2, 60)],
}


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize("num_heads", [2, 6])
@pytest.mark.parametrize("sliding_window", [None, 1, 6])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("lens", STEPS.values(), ids=STEPS.keys())
def test_fast_backends_equal_the_oracle(
    lens: list[tuple[int, int]], softcap: float | None, sliding_window: int | None, num_heads: int, name: str
) -> None:
    generator = torch.Generator().manual_seed(1)
    inputs = make_inputs(lens, seed=2)
    total = inputs.query_starts[-1]
    query = torch.randn(num_heads, total, HEAD_DIM, generator=generator)
    key, value = torch.randn(2, SPEC.num_kv_heads, total, HEAD_DIM, generator=generator)
    past = torch.randn(2, SPEC.num_kv_heads, NUM_BLOCKS * BLOCK_SIZE, HEAD_DIM, generator=generator)
    results = []
    for which in ("reference", name):
        pool = make_pool()
        pool.write(1, torch.arange(NUM_BLOCKS * BLOCK_SIZE), past[0], past[1])
        attention = make_attention(which, pool)
        # Non-contiguous on purpose: HF passes transposed views.
        q, k, v = (t.transpose(0, 1).contiguous().transpose(0, 1) for t in (query, key, value))
        plan = attention.plan(inputs)
        results.append(attention.run(1, q, k, v, plan, scale=0.3, sliding_window=sliding_window, softcap=softcap))
    assert results[0].shape == (total, num_heads, HEAD_DIM)
    torch.testing.assert_close(results[1], results[0], atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("sliding_window", [None, 1, 6])
@pytest.mark.parametrize("name", ["reference", *FAST])
def test_images_see_themselves_in_both_directions(name: str, sliding_window: int | None) -> None:
    """Against the formula as a mask over all tokens: (before or in the same image) and within the window."""
    lens = [(1, 9), (12, 12), (10, 31)]
    inputs = replace(make_inputs(lens, seed=2), atomic_rows=(range(3, 8), range(8, 11), range(13, 23)))
    generator = torch.Generator().manual_seed(1)
    query = torch.randn(2, 23, HEAD_DIM, generator=generator)
    key, value = torch.randn(2, 2, 23, HEAD_DIM, generator=generator)
    pool = make_pool()
    past = torch.randn(2, 2, NUM_BLOCKS * BLOCK_SIZE, HEAD_DIM, generator=generator)
    pool.write(1, torch.arange(NUM_BLOCKS * BLOCK_SIZE), past[0], past[1])
    attention = make_attention(name, pool)
    out = attention.run(1, query, key, value, attention.plan(inputs), scale=0.3, sliding_window=sliding_window)
    for seq, (query_len, kv_len) in enumerate(lens):
        table = inputs.block_tables[seq]
        slots = torch.tensor([table[i // BLOCK_SIZE] * BLOCK_SIZE + i % BLOCK_SIZE for i in range(kv_len)])
        keys, values = pool.gather(1, slots)
        indices, image = torch.arange(kv_len), torch.full((kv_len,), -1)
        start = inputs.query_starts[seq]
        for number, rows in enumerate(inputs.atomic_rows):
            if start <= rows.start < start + query_len:
                image[rows.start - start + kv_len - query_len : rows.stop - start + kv_len - query_len] = number
        visible = (indices <= indices[:, None]) | ((image == image[:, None]) & (image >= 0))
        if sliding_window is not None:
            visible &= indices > indices[:, None] - sliding_window
        own = query[:, start : start + query_len]
        want = F.scaled_dot_product_attention(own, keys, values, visible[-query_len:], scale=0.3)
        torch.testing.assert_close(out[start : start + query_len], want.transpose(0, 1), atol=2e-6, rtol=1e-5)


def test_the_oracle_is_plain_attention() -> None:
    """The oracle itself, on a case small enough to write down: one head, two tokens."""
    attention = make_attention("reference", make_pool())
    query, key, value = torch.randn(3, 2, 2, HEAD_DIM, generator=torch.Generator().manual_seed(3))
    out = attention.run(0, query, key, value, attention.plan(make_inputs([(2, 2)], seed=4)), scale=0.5)
    for head in range(2):
        torch.testing.assert_close(out[0, head], value[head, 0])
        weights = torch.stack([query[head, 1] @ key[head, 0], query[head, 1] @ key[head, 1]]).mul(0.5).softmax(0)
        torch.testing.assert_close(out[1, head], weights[0] * value[head, 0] + weights[1] * value[head, 1])


@pytest.mark.parametrize("name", FAST)
def test_half_precision_stays_close_to_the_oracle(name: str) -> None:
    inputs = make_inputs(STEPS["everything at once"], seed=5)
    total = inputs.query_starts[-1]
    query, key, value = (
        torch.randn(heads, total, HEAD_DIM, generator=torch.Generator().manual_seed(heads)).bfloat16()
        for heads in (6, 2, 2)
    )
    a, b = (
        attention.run(0, query, key, value, attention.plan(inputs), scale=0.3).float()
        for attention in (make_attention(which, make_pool(torch.bfloat16)) for which in ("reference", name))
    )
    torch.testing.assert_close(a, b, atol=0.02, rtol=0.02)


@pytest.mark.parametrize("name", FAST)
def test_sequences_of_a_step_do_not_see_each_other(name: str) -> None:
    """Rewriting one sequence's keys and values leaves the others' results as they are, bit for bit."""
    inputs = make_inputs([(4, 9), (1, 20), (3, 3)], seed=6)
    query = torch.randn(2, 8, HEAD_DIM, generator=torch.Generator().manual_seed(7))
    key, value = torch.randn(2, 2, 8, HEAD_DIM, generator=torch.Generator().manual_seed(8))
    changed = key.clone()
    changed[:, 4:5] += 5.0
    results = []
    for keys in (key, changed):
        attention = make_attention(name, make_pool())
        results.append(attention.run(0, query, keys, value, attention.plan(inputs), scale=0.3))
    rows = [slice(a, b) for a, b in pairwise(inputs.query_starts)]
    assert torch.equal(results[0][rows[0]], results[1][rows[0]])
    assert torch.equal(results[0][rows[2]], results[1][rows[2]])
    assert not torch.equal(results[0][rows[1]], results[1][rows[1]])


@pytest.mark.parametrize("name", ["reference", "sdpa"])
def test_a_sequence_beside_longer_ones_sees_no_block_but_its_own(name: str) -> None:
    """Neither the pool's first nor one that it has ahead. (Flex's eager form computes, and masks, the whole pool.)"""
    inputs = make_inputs([(1, 20), (1, 11)], seed=6)
    long, short = inputs.block_tables
    free = next(block for block in range(1, NUM_BLOCKS) if block not in (*long, *short))
    inputs = replace(inputs, block_tables=(long, (*short, free)))
    query, key, value = torch.randn(3, 2, 2, HEAD_DIM, generator=torch.Generator().manual_seed(7))
    results = []
    for number in (0.0, float("nan")):
        pool = make_pool()
        foreign = torch.ones(NUM_BLOCKS, BLOCK_SIZE, dtype=torch.bool)
        foreign[[*long, *short]] = False
        pool.keys[:, foreign.flatten()] = pool.values[:, foreign.flatten()] = number
        attention = make_attention(name, pool)
        results.append(attention.run(0, query, key, value, attention.plan(inputs), scale=0.3))
    assert torch.equal(*results)


def test_an_unknown_backend_lists_the_choices() -> None:
    with pytest.raises(ConfigError, match=r"'flash'.*flex, reference, sdpa"):
        make_attention("flash", make_pool())
    assert set(BACKENDS) == {"flex", "reference", "sdpa"}


def test_bytes_per_block_is_what_the_pool_allocates() -> None:
    pool = make_pool(torch.bfloat16)
    allocated = sum(t.numel() * t.element_size() for t in (pool.keys, pool.values))
    assert allocated == NUM_BLOCKS * bytes_per_block(SPEC, BLOCK_SIZE, torch.bfloat16)
