"""Service: one loaded model with everything that answers requests to it, and how it is put together from a config.

The one place where settings, adapter, runner, scheduler and engine meet. Torch is imported inside `build_service`, not
with this module: the number of threads is settled in the environment first. Knows nothing of HTTP.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tokenizers import Tokenizer

from backend.bounds import BLOCK_SIZE, limits_of
from backend.config import EngineConfig
from backend.dtype_choice import choose_dtype
from backend.engine import Engine
from backend.errors import ModelLoadError
from backend.first_steps import take_first_steps
from backend.generation_config import read_defaults
from backend.hardware import probe
from backend.image_fetch import ImageFetcher
from backend.request_builder import RequestBuilder
from backend.sched.policy import StallFree, make_policy
from backend.sched.scheduler import Scheduler
from backend.setting import listed
from backend.startup import Enter, Phase, Say

if TYPE_CHECKING:
    from backend.models.adapter import ModelAdapter


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
    resolved = take_first_steps(resolved, limits, adapter, scheduler, runner, say, enter)
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


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1e3


def _fast_tokenizer(adapter: ModelAdapter, model: str) -> Tokenizer:
    tokenizer = getattr(adapter.tokenizer, "backend_tokenizer", None)
    if not isinstance(tokenizer, Tokenizer):
        raise ModelLoadError(f"{model} has no tokenizer.json: its tokenizer cannot turn single tokens into text")
    return tokenizer
