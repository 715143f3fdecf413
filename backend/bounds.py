"""The scheduler's bounds for a config, a model and the memory that there is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backend.config import EngineConfig
from backend.errors import ConfigError
from backend.types.scheduler import SchedulerLimits

if TYPE_CHECKING:
    from backend.models.adapter import ModelSpec

BLOCK_SIZE = 16
ENCODER_CACHE_BYTES = 128 * 2**20
"""So much may images take that are encoded, or half so; more only where two of the largest need it."""

BUSY_ENCODER_SLICES = 2
IDLE_ENCODER_SLICES = 32
"""Slices of a step with and without decodes until one was timed; then policies give them time, not a number."""


def limits_of(
    config: EngineConfig,
    spec: ModelSpec,
    block_bytes: int,
    *,
    spare_bytes: int = 0,
    may_shrink: bool,
    itemsize: int = 4,
) -> SchedulerLimits:
    """The scheduler's bounds for a resolved config: as many blocks as the memory holds and the requests can use.

    `spare_bytes` of that memory are not for blocks. An image's rows are of numbers of `itemsize` bytes.

    Where the KV cache is smaller than one whole context, the context shrinks to it if it may, else a ConfigError says
    how much memory it takes.
    """
    seqs, budget = config.max_num_seqs, config.max_num_batched_tokens
    context, kv_bytes = config.max_model_len, config.kv_cache_memory_bytes
    assert seqs is not None
    assert budget is not None
    assert context is not None
    assert kv_bytes is not None
    blocks_per_seq = -(-context // BLOCK_SIZE)
    num_blocks = min((kv_bytes - spare_bytes) // block_bytes, blocks_per_seq * seqs)
    if num_blocks < (1 if may_shrink else blocks_per_seq):
        tokens = BLOCK_SIZE if may_shrink else context
        raise ConfigError(
            f"the KV cache of {kv_bytes} bytes is too small: {tokens} tokens of this model take "
            f"{-(-tokens // BLOCK_SIZE) * block_bytes + spare_bytes}; "
            "raise --kv-cache-memory-bytes or lower --max-model-len"
        )
    return SchedulerLimits(
        max_num_batched_tokens=budget,
        hard_num_batched_tokens=config.hard_num_batched_tokens(spec.max_atomic_len),
        max_num_seqs=seqs,
        max_model_len=min(context, num_blocks * BLOCK_SIZE),
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        encoder_cache_embeds=max(
            ENCODER_CACHE_BYTES // (spec.image_row_size * itemsize), 2 * spec.max_embeds_per_image, 1
        ),
        max_encoder_slices_per_step=BUSY_ENCODER_SLICES,
        idle_encoder_slices_per_step=IDLE_ENCODER_SLICES,
        enable_prefix_caching=config.enable_prefix_caching,
        max_num_waiting=config.max_num_waiting,
        num_speculative_tokens=config.num_speculative_tokens,
    )
