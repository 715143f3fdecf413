"""Memory that is configured is memory that is taken: the KV pool and the encoder cache never hold more."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from backend.bounds import BLOCK_SIZE, ENCODER_CACHE_BYTES, limits_of
from backend.config import EngineConfig
from backend.hardware import Hardware
from backend.runtime.encoder_cache import EncoderCache
from backend.runtime.kv_pool import KvPool, bytes_per_block, spare_bytes
from backend.runtime.runner import Runner
from backend.runtime.text_backend import make_text
from backend.sched.policy import make_policy
from backend.sched.scheduler import Scheduler
from backend.types.request import ImageInput, ImageSpan, Prepared, Request, SamplingParams
from backend.types.scheduler import SchedulerLimits
from tests.unit.runtime.toy import HIDDEN, ToyAdapter, rows

MACHINE = Hardware("cpu", "CPU", 2**34, 2**33, 2)
BLOCK_BYTES = bytes_per_block(ToyAdapter.spec, BLOCK_SIZE, torch.float32)


@pytest.mark.parametrize("num_bytes", [4 * BLOCK_BYTES, 5 * BLOCK_BYTES - 1, 7 * BLOCK_BYTES + 1, 100 * BLOCK_BYTES])
def test_the_pool_takes_no_more_bytes_than_it_may(num_bytes: int) -> None:
    spec = ToyAdapter.spec
    config = EngineConfig(model="m", kv_cache_memory_bytes=num_bytes).resolve(MACHINE, spec)
    limits = limits_of(config, spec, BLOCK_BYTES, spare_bytes=spare_bytes(torch.float32), may_shrink=True)
    pool = KvPool(
        spec,
        num_blocks=limits.num_blocks,
        block_size=limits.block_size,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    taken = sum(tensor.untyped_storage().nbytes() for tensor in (pool.keys, pool.values))
    assert limits.num_blocks * BLOCK_BYTES <= taken <= num_bytes


@pytest.mark.parametrize(("num_extra", "itemsize"), [(0, 4), (3, 4), (3, 2)])
def test_the_encoder_caches_size_follows_the_bytes_of_a_row(num_extra: int, itemsize: int) -> None:
    """Rows for deeper layers (deepstack) make an image four times as large."""
    spec = replace(ToyAdapter.spec, num_extra_rows=num_extra)
    config = EngineConfig(model="m", kv_cache_memory_bytes=100 * BLOCK_BYTES).resolve(MACHINE, spec)
    limits = limits_of(config, spec, BLOCK_BYTES, may_shrink=True, itemsize=itemsize)
    row_bytes = HIDDEN * (1 + num_extra) * itemsize
    assert ENCODER_CACHE_BYTES - row_bytes < limits.encoder_cache_embeds * row_bytes <= ENCODER_CACHE_BYTES


@pytest.mark.parametrize("budget", [4, 16])
def test_the_encoder_cache_takes_no_more_bytes_than_it_may(budget: int) -> None:
    """Ten images of 3 rows in a cache for 8, each alone in its request; some are asked for again."""
    adapter, capacity = ToyAdapter(), 8
    limits = SchedulerLimits(
        max_num_batched_tokens=budget,
        hard_num_batched_tokens=16,
        max_num_seqs=4,
        max_model_len=64,
        num_blocks=32,
        block_size=4,
        encoder_cache_embeds=capacity,
        max_encoder_slices_per_step=2,
    )
    pool = KvPool(adapter.spec, num_blocks=32, block_size=4, dtype=torch.float32, device=torch.device("cpu"))
    encoders = EncoderCache(adapter)
    runner = Runner(adapter, make_text("torch", adapter, pool, attention="sdpa"), encoders, block_size=4)
    scheduler = Scheduler(limits, make_policy("stall-free"))
    keys = [f"image {i % 10}" for i in range(14)]
    for i, key in enumerate(keys):
        picture = ImageInput(key, 3, 3, [None, None, rows(1.0, 2.0, 3.0)])
        tokens = (1, 15, 15, 15, 2)
        prompt = Prepared(tokens, (picture,), (ImageSpan(1, 3, key),), (range(len(tokens)),))
        scheduler.submit(Request(str(i), prompt, SamplingParams(max_tokens=2, temperature=0.0)))
    largest = 0
    while (step := scheduler.schedule()) is not None:
        scheduler.apply(runner.execute(step))
        held = {id(r): r for key in set(keys) if (r := encoders.find_rows(key)) is not None}
        largest = max(largest, sum(r.untyped_storage().nbytes() for r in held.values()))
    assert 0 < largest <= capacity * HIDDEN * torch.float32.itemsize
