"""What the tests ask of `backend.selftest`: prompts, limits, and a judgement in fp32 without mercy."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import torch

from backend.models.adapter import ModelAdapter
from backend.runtime.graphs import Recorder
from backend.runtime.runner import build_runner
from backend.selftest.compare import differences
from backend.selftest.drive import Outcome, drive
from backend.selftest.prompts import Prompt
from backend.selftest.prompts import noise as picture
from backend.selftest.reference import Expected, Reference
from backend.types.request import Request, SamplingParams
from backend.types.scheduler import SchedulerLimits
from tests.fuzz.machine import Machine

Adapters = Callable[[str], ModelAdapter]
"""The fixture `adapter`: a family's model."""
Answers = Callable[[str], dict[str, Expected]]
"""The fixture `answers`: what transformers' `generate` makes of a family's prompts."""
NUM_TOKENS = 24
MIN_DISTINCT = 8
"""A model stuck on a few tokens would agree with anything."""
TIE_MARGIN = 1e-4
"""Two best logits closer than this may change places by rounding alone."""


TEXT_PROMPTS = (
    Prompt("short", ("Hi",)),
    Prompt("medium", ("Describe the image, where a dog waits beside a bicycle.",)),
    Prompt("long", ("The engine spends a budget of tokens in every step: 0 1 2 3 4 5 6 7 8 9. " * 4,)),
    Prompt("umlauts", ("Große Bäume stehen neben der Straße. 日本語の短い文。",)),
)
IMAGE_PROMPTS = (
    Prompt("no image", ("What do you see?",)),
    Prompt("image first", (picture(1, 90, 60), "Describe the image.")),
    Prompt("two images", ("Compare this", picture(2, 40, 100), "and that", picture(3, 64, 64), ". Which has a dog?")),
    Prompt("image last", ("Two people walk along a street; a red car stops. What is here? ", picture(4, 96, 96))),
)
TEXT_FAMILIES = ("llama", "qwen3", "gemma3_text", "phi3")
FRAMES = Prompt("frames", (*(picture(seed, 72, 48) for seed in (5, 6, 7)), "What happens in this video?"))
"""A video as its frames: pictures of one size, one after the other."""
ATOMIC_FAMILIES = ("gemma3",)
"""Those whose image tokens see one another."""
IMAGE_FAMILIES = (
    "fast_vlm",
    "smolvlm",
    "idefics3",
    "qwen2_5_vl",
    "qwen3_vl",
    "llava",
    "llava_onevision",
    "internvl",
    *ATOMIC_FAMILIES,
)
FAMILIES = (*TEXT_FAMILIES, *IMAGE_FAMILIES)
TILE_FAMILIES = ("idefics3", "llava", "llava_onevision", "internvl")
"""Those that differ from others only in how a picture becomes rows."""
TEXT_MODELS = tuple(family for family in FAMILIES if family not in TILE_FAMILIES)
"""One family for each text model: enough where pictures make no difference."""
NATIVE_FAMILIES = ("llama", "qwen3", "fast_vlm", "smolvlm")
"""Those whose text models the compiled loops compute."""


def prompts_of(family: str) -> tuple[Prompt, ...]:
    return IMAGE_PROMPTS if family in IMAGE_FAMILIES else TEXT_PROMPTS


def limits(budget: int = 64, **changes: Any) -> SchedulerLimits:
    """Limits that nothing but the token budget presses on, unless changed."""
    values: dict[str, Any] = {
        "max_num_batched_tokens": budget,
        "hard_num_batched_tokens": 1024,
        "max_num_seqs": min(budget, 4),
        "max_model_len": 512,
        "num_blocks": 256,
        "block_size": 4,
        "encoder_cache_embeds": 256,
        "enable_prefix_caching": False,
    }
    return SchedulerLimits(**(values | changes))


def tight_limits(requests: Iterable[Request], **changes: Any) -> SchedulerLimits:
    """A pool with room for every prompt and for a quarter of the answers; images fast enough for all to run at once."""
    prompt_blocks = sum(-(-len(r.prompt.token_ids) // 4) for r in requests)
    fast = {"max_encoder_slices_per_step": 1024, "idle_encoder_slices_per_step": 1024}
    return limits(64, num_blocks=prompt_blocks + NUM_TOKENS // 4, **fast, **changes)


def request_of(adapter: ModelAdapter, prompt: Prompt, name: str | None = None, **sampling: Any) -> Request:
    params = SamplingParams(**({"max_tokens": NUM_TOKENS, "temperature": 0.0} | sampling))
    return Request(name or prompt.name, adapter.prepare(prompt.messages, prompt.images), params)


def generate(
    adapter: ModelAdapter,
    requests: Iterable[Request],
    scheduler_limits: SchedulerLimits,
    *,
    attention: str = "sdpa",
    recorder: Recorder | None = None,
    mate_share: float = 1.0,
    **options: Any,
) -> Outcome:
    """`drive` with a runner of its own and times that are noisy."""
    machine = Machine(noise=0.2, mate_share=mate_share)
    runner = build_runner(
        adapter,
        num_blocks=scheduler_limits.num_blocks,
        block_size=scheduler_limits.block_size,
        attention=attention,
        recorder=recorder,
    )
    return drive(adapter, runner, requests, scheduler_limits, step_s=machine.time_s, **options)


def assert_matches(expected: dict[str, Expected], actual: dict[str, list[int]]) -> None:
    """Every answer equals the expected one, up to a tie; and the answers are such that this means something."""
    for name, want in expected.items():
        assert len(set(want.token_ids)) >= MIN_DISTINCT, f"{name}: {want.token_ids} proves nothing"
        assert len(actual[name]) == len(want.token_ids), f"{name}: {len(actual[name])} tokens"
    for found in differences(expected, actual):
        if found.margin >= TIE_MARGIN:
            raise AssertionError(f"{found.prompt}: diverges at token {found.index}: {found}")
        warnings.warn(f"{found.prompt}: token {found.index} is a tie (margin {found.margin:.1e})", stacklevel=2)


@cache
def expected_of(directory: Path, prompts: tuple[Prompt, ...]) -> dict[str, Expected]:
    """Greedy answers by transformers, one prompt at a time, in fp32."""
    with_images = any(prompt.images for prompt in prompts)
    device = torch.device("cpu")
    reference = Reference(str(directory), with_images=with_images, device=device, dtype=torch.float32)
    return dict(reference.answers(prompts, NUM_TOKENS))
