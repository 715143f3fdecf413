"""Service: one loaded model with everything that answers requests to it, and how it is put together from a config.

The one place where settings, adapter, runner, scheduler and engine meet. Torch is imported inside `build_service`, not
with this module: the number of threads is settled in the environment first. Knows nothing of HTTP.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tokenizers import Tokenizer

from backend.config import EngineConfig
from backend.dtype_choice import choose_dtype
from backend.engine import Engine
from backend.errors import ConfigError, EngineError, ModelLoadError
from backend.generation_config import read_defaults
from backend.hardware import probe
from backend.image_fetch import ImageFetcher
from backend.profile import Profile
from backend.readings import DISTURBED, OtherWork
from backend.request_builder import RequestBuilder
from backend.sched.cost import CostModel
from backend.sched.latency_target import DEFAULT_STRETCH, LatencyTarget
from backend.sched.policy import StallFree, make_policy
from backend.sched.scheduler import Scheduler
from backend.setting import listed
from backend.startup import Enter, Phase, Say
from backend.step_runner import StepRunner
from backend.types import FinishReason, Request, SamplingParams, SchedulerLimits

if TYPE_CHECKING:
    from backend.models.adapter import ModelAdapter, ModelSpec

BLOCK_SIZE = 16
ENCODER_CACHE_BYTES = 128 * 2**20
"""So much may images take that are encoded, or half so; more only where two of the largest need it."""

BUSY_ENCODER_SLICES = 2
IDLE_ENCODER_SLICES = 32
"""Slices of a step with and without decodes until one was timed; then policies give them time, not a number."""


@dataclass(frozen=True, slots=True)
class Service:
    """What HTTP needs of the engine's side: a resolved config, the engine, and text on both ends of it."""

    config: EngineConfig
    engine: Engine
    builder: RequestBuilder
    tokenizer: Tokenizer
    created: int

    @property
    def model_name(self) -> str:
        """The name that requests use."""
        return self.config.served_model_name or self.config.model

    def close(self, drain_s: float = 0.0) -> None:
        """Stop: running requests get `drain_s` to end, the rest are cancelled. Blocks."""
        self.engine.drain(drain_s)
        self.builder.close()


def build_service(config: EngineConfig, path: str, say: Say, enter: Enter = lambda phase: None) -> Service:
    """Load the model at `path` (HF id or directory; `config.model` is its name) and set everything up, warm but idle.

    `say` gets lines for a person, `enter` each part of the work as it begins.

    Raises ConfigError for settings that do not fit the machine or the model, ModelLoadError for the model itself.
    """
    from backend.models.registry import load
    from backend.runtime.graphs import CudaRecorder
    from backend.runtime.image_batches import largest_batch
    from backend.runtime.kv_pool import bytes_per_block, spare_bytes
    from backend.runtime.native.choice import choose_text
    from backend.runtime.native.encoder_choice import choose_encoder
    from backend.runtime.runner import build_runner

    device = probe(config.device).device
    enter(Phase.WEIGHTS)
    say(f"Loading {config.model} …")
    dtype = config.dtype
    if dtype == "auto" and device == "cpu":
        dtype = choose_dtype(path, config.quantization, config.cache_dir, say)
    adapter = load(path, device=device, dtype=dtype)
    tokenizer = _fast_tokenizer(adapter, config.model)
    hardware, is_on_cpu = probe(device), adapter.device.type == "cpu"
    resolved = config.resolve(hardware, adapter.spec)
    if config.max_num_seqs is None and resolved.max_num_seqs == config.max_num_batched_tokens:
        say(f"--max-num-seqs is {resolved.max_num_seqs}: each running request needs a token of the budget")
    block_bytes = bytes_per_block(adapter.spec, BLOCK_SIZE, adapter.dtype)
    limits = limits_of(
        resolved,
        adapter.spec,
        block_bytes,
        spare_bytes=spare_bytes(adapter.dtype) + (0 if is_on_cpu else block_bytes),  # graphs take one block
        may_shrink=config.max_model_len is None,
        itemsize=adapter.dtype.itemsize,
    )
    if adapter.spec.takes_images:
        cache_bytes = limits.encoder_cache_embeds * adapter.spec.image_row_size * adapter.dtype.itemsize
        say(f"Encoder cache: {limits.encoder_cache_embeds} image tokens, {cache_bytes / 2**20:.0f} MiB at most")
    limits = replace(limits, is_token_budget_exact=config.max_num_batched_tokens is not None)
    resolved = replace(resolved, max_model_len=limits.max_model_len)
    enter(Phase.KERNELS)
    text = choose_text(adapter, resolved.quantization, resolved.cache_dir, say)
    choose_encoder(adapter, resolved.quantization, resolved.cache_dir, say)
    if not is_on_cpu:
        limits = replace(limits, max_encoder_batch=largest_batch(adapter, say))
    runner = build_runner(
        adapter,
        num_blocks=limits.num_blocks,
        block_size=limits.block_size,
        attention=resolved.attention_backend,
        text=text,
        # On a CPU images gain nothing from one another, and there is nothing to record.
        recorder=None if is_on_cpu else CudaRecorder(),
        say=say,
    )
    scheduler = Scheduler(limits, StallFree())
    enter(Phase.WARM_UP)
    say(f"Computing on {hardware.name} in {str(adapter.dtype).removeprefix('torch.')}; warming up …")
    resolved = _first_steps(resolved, limits, adapter, scheduler, runner, say, enter)
    scheduler.policy = make_policy(resolved.step_policy, scheduler.policy.cost, _seconds(resolved.target_itl_ms))
    return Service(
        config=resolved,
        # A CPU computes a step at its launch: one made ahead of it would only make its tokens late.
        engine=Engine(scheduler, runner, limits, async_scheduling=resolved.async_scheduling and not is_on_cpu),
        builder=RequestBuilder(
            adapter,
            max_model_len=limits.max_model_len,
            max_image_pixels=resolved.max_image_pixels,
            defaults=read_defaults(path, resolved.generation_config),
            fetcher=_fetcher(resolved),
        ),
        tokenizer=tokenizer,
        created=int(time.time()),
    )


def _fetcher(config: EngineConfig) -> ImageFetcher | None:
    domains = listed(config.allowed_media_domains)
    return ImageFetcher(domains, max_bytes=config.max_request_bytes) if domains else None


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


def settle_target(config: EngineConfig, cost: CostModel, say: Say, beside: str = "") -> EngineConfig:
    """`config` with a latency target that this machine can meet: the given one, or twice the bare decode step measured.

    `beside` says in words what disturbed the measuring, if anything did. Then a target that nobody gave is left open:
    the policy follows the steps it sees, so that a busy start does not set a slow machine's target for good.

    Raises ConfigError, naming the step that was measured, for a given one that it cannot.
    """
    bare_ms, target_ms = cost.coefficients.bare_decode_s * 1e3, config.target_itl_ms
    if target_ms is None and beside:
        say(f"Latency target: twice a bare decode step, as steps turn out; now {DEFAULT_STRETCH * bare_ms:.1f} ms")
        return config
    if target_ms is None:
        target_ms = max(0.1, round(DEFAULT_STRETCH * bare_ms, 1))
    elif target_ms <= bare_ms:
        remedy = f" ({beside}); start it in a quieter moment, or raise it" if beside else "; raise it above that"
        raise ConfigError(
            f"--target-itl-ms {target_ms:g} cannot be met: a bare decode step takes {bare_ms:.1f} ms on this machine"
            + remedy
        )
    say(f"Latency target: {target_ms:g} ms a step; a bare decode step takes {bare_ms:.1f} ms")
    return replace(config, target_itl_ms=target_ms)


def say_profile(cost: CostModel, share: float, say: Say) -> str:
    """Say what steps cost; returns in words what disturbed the measuring: others' `share` of the processors."""
    beside = f"other programs had {share:.0%} of the processors" if share >= DISTURBED else ""
    say(f"Profile: {cost.coefficients}" + (f"; {beside}, so serving corrects it" if beside else ""))
    return beside


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1e3


def _fast_tokenizer(adapter: ModelAdapter, model: str) -> Tokenizer:
    tokenizer = getattr(adapter.tokenizer, "backend_tokenizer", None)
    if not isinstance(tokenizer, Tokenizer):
        raise ModelLoadError(f"{model} has no tokenizer.json: its tokenizer cannot turn single tokens into text")
    return tokenizer


def _warm_up(adapter: ModelAdapter, scheduler: Scheduler, runner: StepRunner) -> None:
    """Run one small request, an image in it where the model takes them, so that the first user does not pay for it."""
    from PIL import Image

    parts = [{"type": "text", "text": "Hello"}]
    images = []
    if adapter.spec.takes_images:
        parts.insert(0, {"type": "image"})
        images.append(Image.new("RGB", (64, 64), "grey"))
    prompt = adapter.prepare([{"role": "user", "content": parts}], images)
    scheduler.submit(Request("warm-up", prompt, SamplingParams(max_tokens=2, temperature=0.0)))
    while (step := scheduler.schedule()) is not None:
        for event in scheduler.apply(runner.execute(step)):
            if event.finish_reason is FinishReason.ERROR:
                raise ModelLoadError(
                    f"the model cannot be used: its first answer failed ({event.error}); check its weights, and --dtype"
                )


def _first_steps(
    config: EngineConfig,
    limits: SchedulerLimits,
    adapter: ModelAdapter,
    scheduler: Scheduler,
    runner: StepRunner,
    say: Say,
    enter: Enter,
) -> EngineConfig:
    """Run what makes everything ready, and what the policy must know before anybody waits; its latency target settled.

    Whatever goes wrong here is the model's fault, and makes a start impossible.
    """
    cost = scheduler.policy.cost
    try:
        _warm_up(adapter, scheduler, runner)
        if config.step_policy == LatencyTarget.name:
            enter(Phase.PROFILE)
            others = OtherWork()
            Profile(adapter, scheduler, runner, limits).run(say)
            return settle_target(config, cost, say, say_profile(cost, others.share(), say))
        if not limits.is_token_budget_exact:
            enter(Phase.PROFILE)
            others = OtherWork()
            Profile(adapter, scheduler, runner, limits).run_text()
            say_profile(cost, others.share(), say)
    except EngineError:
        raise
    except Exception as error:
        raise ModelLoadError(f"the model fails on its first request: {type(error).__name__}: {error}") from error
    return config
