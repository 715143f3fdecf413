"""The scheduler's bounds, and a reading of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """The scheduler's bounds, all decided before it starts.

    `max_num_batched_tokens` is the policy's soft token budget per step (it may be changed while running);
    `hard_num_batched_tokens` the activation memory's bound, which an atomic image may reach and nothing may exceed.
    Encoder capacity is counted in embeddings, encoder work per step in slices: `max_encoder_slices_per_step` while
    somebody decodes, `idle_encoder_slices_per_step` while nobody does. `background_aging_steps` is how many steps a
    waiting background request needs to count as interactive. `num_speculative_tokens` is how many tokens of a running
    answer may be guessed in a step; 0 is none. `is_token_budget_exact` is false where nobody chose the token budget: a
    policy may then give prompts less by what tokens cost. `max_encoder_batch` images may be encoded as one batch, where
    that pays.
    """

    max_num_batched_tokens: int
    hard_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    num_blocks: int
    block_size: int = 16
    encoder_cache_embeds: int = 16384
    max_encoder_slices_per_step: int = 1
    idle_encoder_slices_per_step: int = 4
    enable_prefix_caching: bool = True
    max_num_waiting: int = 1024
    background_aging_steps: int = 256
    num_speculative_tokens: int = 0
    is_token_budget_exact: bool = True
    max_encoder_batch: int = 1


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """A reading of the scheduler at one moment; counters (`num_*_total`) only grow.

    `step_token_budget` is what the policy allowed the latest step, decodes included.
    """

    num_running: int
    num_waiting: int
    num_blocks_used: int
    num_blocks_total: int
    encoder_embeds_used: int
    encoder_embeds_total: int
    num_preemptions_total: int
    prefix_queries_total: int
    prefix_hits_total: int
    step_token_budget: int = 0
