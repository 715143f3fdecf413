"""The source article's example: one layer, 8 heads of 64, 1,000 tokens in chunks of 256 equal one pass."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

from backend.models.adapter import ModelSpec
from backend.runtime.attention.base import AttentionInputs
from backend.runtime.attention.registry import make_attention
from backend.runtime.kv_pool import KvPool

NUM_HEADS, HEAD_DIM, NUM_TOKENS, BLOCK_SIZE = 8, 64, 1000, 16
BORDERS = (0, 256, 512, 768, 1000)

SPEC = ModelSpec(
    family="article",
    num_layers=1,
    num_kv_heads=NUM_HEADS,
    head_dim=HEAD_DIM,
    hidden_size=NUM_HEADS * HEAD_DIM,
    vocab_size=1,
    max_model_len=NUM_TOKENS,
    num_position_rows=1,
    eos_token_ids=frozenset(),
    image_token_id=None,
    max_embeds_per_image=0,
)


@pytest.mark.parametrize("backend", ["sdpa", "reference"])
def test_four_chunks_same_result_as_one_pass(backend: str) -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, NUM_HEADS, NUM_TOKENS, HEAD_DIM, generator=generator)
    one_pass = F.scaled_dot_product_attention(query[None], key[None], value[None], is_causal=True)[0].transpose(0, 1)

    num_blocks = -(-NUM_TOKENS // BLOCK_SIZE)
    table = tuple(torch.randperm(num_blocks, generator=generator).tolist())
    pool = KvPool(SPEC, num_blocks=num_blocks, block_size=BLOCK_SIZE, dtype=torch.float32, device=torch.device("cpu"))
    attention = make_attention(backend, pool)
    chunks = []
    for start, end in pairwise(BORDERS):
        slots = [table[i // BLOCK_SIZE] * BLOCK_SIZE + i % BLOCK_SIZE for i in range(start, end)]
        plan = attention.plan(AttentionInputs((0, end - start), (end,), (table,), torch.tensor(slots)))
        q, k, v = (t[:, start:end] for t in (query, key, value))
        chunks.append(attention.run(0, q, k, v, plan, scale=HEAD_DIM**-0.5))

    assert [len(chunk) for chunk in chunks] == [256, 256, 256, 232]
    torch.testing.assert_close(torch.cat(chunks), one_pass, atol=1e-5, rtol=0)
