"""Runs requests through the real Scheduler and Runner, and says whether they gave the tokens they must give.

The judge is transformers' own `generate` on the same checkpoint, one prompt at a time, with its own processor: nothing
of this engine takes part in making the expected answers.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoProcessor, AutoTokenizer

from backend.models.adapter import ModelAdapter
from backend.runtime.runner import build_runner
from backend.sched.policy import make_policy
from backend.sched.scheduler import Scheduler
from backend.types import FinishReason, Request, SamplingParams, SchedulerLimits, SchedulerStats, Step
from tests.fuzz.machine import Machine
from tests.fuzz.wild import WildSpeculator

NUM_TOKENS = 24
NUM_GUESSES = 5
MIN_DISTINCT = 8
"""A model stuck on a few tokens would agree with anything."""
TIE_MARGIN = 1e-4
"""Two best logits closer than this may change places by rounding alone."""


@dataclass(frozen=True, eq=False)
class Prompt:
    """One conversation: text pieces and images in the order they are written."""

    name: str
    parts: tuple[str | Image.Image, ...]

    @property
    def images(self) -> list[Image.Image]:
        return [part for part in self.parts if not isinstance(part, str)]

    @property
    def messages(self) -> list[dict[str, Any]]:
        content = [{"type": "text", "text": p} if isinstance(p, str) else {"type": "image"} for p in self.parts]
        return [{"role": "user", "content": content}]


@dataclass(frozen=True)
class Expected:
    """What transformers says: tokens, and by how much each one led the runner-up."""

    token_ids: tuple[int, ...]
    margins: tuple[float, ...]


@dataclass
class Outcome:
    """What the engine did."""

    tokens: dict[str, list[int]]
    steps: list[Step] = field(default_factory=list)
    stats: SchedulerStats | None = None
    num_accepted: int = 0

    @property
    def num_drafts(self) -> int:
        """Tokens guessed."""
        return sum(step.num_draft_tokens for step in self.steps)

    @property
    def num_encodings(self) -> int:
        """How often an image was begun."""
        return sum(e.first_slice == 0 for step in self.steps for e in step.encodes)


def picture(seed: int, width: int, height: int) -> Image.Image:
    """Coarse coloured noise: tiles and rows all differ."""
    pixels = np.random.default_rng(seed).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    return Image.fromarray(pixels).resize((width, height))


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
TEXT_FAMILIES = ("llama", "qwen3")
ATOMIC_FAMILIES = ("gemma3",)
"""Those whose image tokens see one another."""
IMAGE_FAMILIES = ("fast_vlm", "smolvlm", "qwen2_5_vl", "qwen3_vl", *ATOMIC_FAMILIES)
FAMILIES = (*TEXT_FAMILIES, *IMAGE_FAMILIES)
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
    fast = {"max_encoder_slices_per_step": 64, "idle_encoder_slices_per_step": 64}
    return limits(64, num_blocks=prompt_blocks + NUM_TOKENS // 4, **fast, **changes)


def request_of(adapter: ModelAdapter, prompt: Prompt, name: str | None = None, **sampling: Any) -> Request:
    params = SamplingParams(**({"max_tokens": NUM_TOKENS, "temperature": 0.0} | sampling))
    return Request(name or prompt.name, adapter.prepare(prompt.messages, prompt.images), params)


def generate(
    adapter: ModelAdapter,
    requests: Iterable[Request],
    scheduler_limits: SchedulerLimits,
    *,
    policy: str = "stall-free",
    attention: str = "sdpa",
    arrivals: Sequence[int] = (),
    truth: Mapping[str, Sequence[int]] | None = None,
) -> Outcome:
    """Run `requests` to their end, the i-th submitted at step `arrivals[i]` (missing: at once).

    With their answers in `truth`, up to `NUM_GUESSES` tokens of each are guessed in a step, right and wrong ones.
    """
    if truth is not None:
        scheduler_limits = replace(scheduler_limits, num_speculative_tokens=NUM_GUESSES)
    scheduler = Scheduler(scheduler_limits, make_policy(policy))
    if truth is not None:
        known = truth
        scheduler._speculator = WildSpeculator(
            NUM_GUESSES,
            adapter.spec.vocab_size,
            len(known),
            lambda seq, guesses: known[seq.request_id][seq.num_outputs + len(guesses)],
        )
    machine = Machine(noise=0.2)
    runner = build_runner(
        adapter,
        num_blocks=scheduler_limits.num_blocks,
        block_size=scheduler_limits.block_size,
        attention=attention,
    )
    queue = [(arrivals[i] if i < len(arrivals) else 0, request) for i, request in enumerate(requests)]
    outcome = Outcome({request.request_id: [] for _, request in queue})
    clock = 0
    while queue or scheduler.has_work():
        for due in [entry for entry in queue if entry[0] <= clock]:
            scheduler.submit(due[1])
            queue.remove(due)
        clock += 1
        step = scheduler.schedule()
        if step is None:
            continue
        outcome.steps.append(step)
        result = runner.execute(step)
        outcome.num_accepted += result.num_accepted_tokens
        for event in scheduler.apply(result):
            assert event.finish_reason in (None, FinishReason.LENGTH), event
            if event.token_id is not None:
                outcome.tokens[event.request_id].append(event.token_id)
        # Times are made up, so that a policy which learns from them repeats itself.
        scheduler.policy.observe(step, machine.time_s(step))
        scheduler.check()
    runner.close()
    outcome.stats = scheduler.stats()
    return outcome


def assert_matches(expected: dict[str, Expected], actual: dict[str, list[int]]) -> None:
    """Every answer equals the expected one, up to a tie; and the answers are such that this means something."""
    for name, want in expected.items():
        got = actual[name]
        assert len(set(want.token_ids)) >= MIN_DISTINCT, f"{name}: {want.token_ids} proves nothing"
        assert len(got) == len(want.token_ids), f"{name}: {len(got)} tokens instead of {len(want.token_ids)}"
        for index, (a, b) in enumerate(zip(got, want.token_ids, strict=True)):
            if a == b:
                continue
            if want.margins[index] < TIE_MARGIN:
                warnings.warn(f"{name}: token {index} is a tie (margin {want.margins[index]:.1e})", stacklevel=2)
                break
            raise AssertionError(f"{name}: diverges at token {index}: {a} instead of {b}")


@cache
def expected_of(directory: Path, prompts: tuple[Prompt, ...]) -> dict[str, Expected]:
    """Greedy answers by transformers, one prompt at a time, in fp32."""
    with_images = any(prompt.images for prompt in prompts)
    model = (AutoModelForImageTextToText if with_images else AutoModelForCausalLM).from_pretrained(directory)
    return {prompt.name: _expect(model, _inputs(directory, prompt, with_images)) for prompt in prompts}


def _inputs(directory: Path, prompt: Prompt, with_images: bool) -> dict[str, torch.Tensor]:
    if not with_images:
        tokenizer = AutoTokenizer.from_pretrained(directory)
        messages = [{**m, "content": m["content"][0]["text"]} for m in prompt.messages]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return {"input_ids": tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]}
    processor = AutoProcessor.from_pretrained(directory)
    text = processor.apply_chat_template(prompt.messages, add_generation_prompt=True)
    return processor(text=[text], images=prompt.images or None, return_tensors="pt", add_special_tokens=False)


def _expect(model: Any, inputs: dict[str, torch.Tensor]) -> Expected:
    with torch.inference_mode():
        answer = model.generate(
            **inputs,
            max_new_tokens=NUM_TOKENS,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
    best = [logits[0].topk(2).values for logits in answer.logits]
    return Expected(
        token_ids=tuple(answer.sequences[0, -NUM_TOKENS:].tolist()),
        margins=tuple((pair[0] - pair[1]).item() for pair in best),
    )
