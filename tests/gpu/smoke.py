"""The engine on a GPU, in two minutes: `python -m tests.gpu.smoke`. Needs torch, transformers, safetensors (images:
greenlet).

Random models of the Llama and SmolVLM kinds go through the real Scheduler and Runner on CUDA. In float32 they must give
transformers' tokens of the CPU; in bfloat16 every token must be one that the CPU's float32 logits put at the top, or so
near that bfloat16 cannot tell. Steps must not wait for the device except for their sampled ids.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, SmolVLMConfig, SmolVLMForConditionalGeneration

from backend.models.adapter import ModelAdapter
from backend.models.checkpoint import Checkpoint
from backend.models.smolvlm import SmolVlm
from backend.models.text_decoder import TextDecoder
from backend.runtime.runner import Runner, build_runner
from backend.sched.policy import make_policy
from backend.sched.scheduler import Scheduler
from backend.types import ImageInput, ImageSpan, Prepared, Request, SamplingParams, SchedulerLimits
from tests.weights import randomize

NUM_TOKENS = 48
TEXT = {
    "vocab_size": 4096,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}
IMAGE_TOKEN_ID, ROWS_PER_TILE, NUM_TILES, SIDE = 4095, 16, 5, 128
LIMITS = SchedulerLimits(
    max_num_batched_tokens=96,
    hard_num_batched_tokens=1024,
    max_num_seqs=6,
    max_model_len=1024,
    num_blocks=256,
    enable_prefix_caching=False,
)
MAX_REGRET = {torch.float32: 1e-3, torch.bfloat16: 0.25}
"""How far below the best logit (of CPU float32) a chosen token may lie, in standard deviations of the logits."""


@dataclass
class Row:
    """One line of the table."""

    model: str
    dtype: str
    tokens: int
    agree: float
    regret: float
    steps: int
    ms_per_step: float
    syncs: str
    verdict: str


def build_llama() -> LlamaForCausalLM:
    return LlamaForCausalLM(LlamaConfig(**TEXT))


def build_smolvlm() -> SmolVLMForConditionalGeneration:
    vision = {"hidden_size": 192, "intermediate_size": 384, "num_hidden_layers": 4, "num_attention_heads": 3}
    config = SmolVLMConfig(
        vision_config={**vision, "image_size": SIDE, "patch_size": 16},
        text_config={**TEXT, "model_type": "llama", "pad_token_id": 0},
        image_token_id=IMAGE_TOKEN_ID,
        scale_factor=2,
    )
    return SmolVLMForConditionalGeneration(config)


BUILDERS: dict[str, Any] = {"llama": build_llama, "smolvlm": build_smolvlm}


def build(kind: str) -> Any:
    """A model in fp32 whose weights are exact in bfloat16 too, so that both dtypes run the same model."""
    model = BUILDERS[kind]().eval()
    randomize(model, seed=9)
    return model.bfloat16().float()


def adapt(kind: str, model: Any, device: str, dtype: torch.dtype) -> ModelAdapter:
    """The family's adapter over a model that never was a checkpoint; what only `prepare` needs is left out."""
    checkpoint = Checkpoint("smoke", model.config, torch.device(device), dtype, local_files_only=True)
    tokenizer: Any = SimpleNamespace(
        eos_token_id=None, chat_template=None, convert_tokens_to_ids=lambda _: IMAGE_TOKEN_ID
    )
    if kind == "llama":
        return TextDecoder(checkpoint, model.to(device, dtype), tokenizer)
    processor = SimpleNamespace(
        tokenizer=tokenizer,
        image_token="<image>",
        chat_template=None,
        image_seq_len=ROWS_PER_TILE,
        image_processor=SimpleNamespace(do_image_splitting=False),
    )
    return SmolVlm(checkpoint, model.to(device, dtype), processor)


def make_prompts(kind: str) -> list[Prepared]:
    """Six prompts of very different lengths; images at the start, in the middle, and none."""
    generator = torch.Generator().manual_seed(3)
    prompts = []
    for index, length in enumerate((5, 40, 130, 17, 260, 75)):
        ids = torch.randint(0, IMAGE_TOKEN_ID, (length,), generator=generator).tolist()
        images: tuple[ImageInput, ...] = ()
        spans: tuple[ImageSpan, ...] = ()
        if kind == "smolvlm" and index % 2:
            start, num_embeds = index * 3, NUM_TILES * ROWS_PER_TILE
            pixels = torch.randn(NUM_TILES, 3, SIDE, SIDE, generator=generator).bfloat16().float()
            ids[start:start] = [IMAGE_TOKEN_ID] * num_embeds
            images = (ImageInput(f"image {index}", num_embeds, NUM_TILES * 4, pixels),)
            spans = (ImageSpan(start, num_embeds, f"image {index}"),)
        prompts.append(Prepared(tuple(ids), images, spans, (range(len(ids)),)))
    return prompts


def generate(runner: Runner, prompts: list[Prepared], count_syncs: bool) -> tuple[list[list[int]], int, float, int]:
    """Tokens per prompt, number of steps, seconds, and waits for the device beyond one per step that samples."""
    scheduler = Scheduler(LIMITS, make_policy("stall-free"))
    for index, prompt in enumerate(prompts):
        params = SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0)
        scheduler.submit(Request(str(index), prompt, params))
    tokens: list[list[int]] = [[] for _ in prompts]
    num_steps = excess = 0
    started = time.perf_counter()
    while (step := scheduler.schedule()) is not None:
        num_steps += 1
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = runner.execute(step)
        if count_syncs:
            num_syncs = sum("synchroniz" in str(w.message) for w in caught)
            excess += max(0, num_syncs - any(c.samples for c in step.chunks))
        assert not result.failed_images, result.failed_images
        assert not result.failed_requests, result.failed_requests
        for event in scheduler.apply(result):
            assert event.token_id is not None
            tokens[int(event.request_id)].append(event.token_id)
    return tokens, num_steps, time.perf_counter() - started, excess


def judge(model: Any, prompt: Prepared, tokens: list[int]) -> tuple[int, float]:
    """Against CPU float32 logits of the same text: tokens that are the best, and the worst distance from the best."""
    ids = torch.tensor([[*prompt.token_ids, *tokens]])
    pixels = {"pixel_values": prompt.images[0].pixels.pixels[None]} if prompt.images else {}  # type: ignore[attr-defined]
    with torch.inference_mode():
        logits = model(input_ids=ids, **pixels).logits[0, len(prompt.token_ids) - 1 : -1]
    chosen = logits.gather(1, torch.tensor(tokens)[:, None])[:, 0]
    regret = (logits.max(dim=1).values - chosen) / logits.std(dim=1)
    return int((regret == 0).sum()), regret.max().item()


def check(kind: str, device: str, dtype: torch.dtype) -> Row:
    """Run one model in one dtype, twice: the second run is the one measured."""
    prompts = make_prompts(kind)
    adapter = adapt(kind, build(kind), device, dtype)
    runner = build_runner(adapter, num_blocks=LIMITS.num_blocks, block_size=LIMITS.block_size)
    first = generate(runner, prompts, count_syncs=False)[0]
    on_gpu = device == "cuda"
    if on_gpu:
        torch.cuda.set_sync_debug_mode("warn")
    tokens, num_steps, elapsed_s, excess = generate(runner, prompts, count_syncs=on_gpu)
    if on_gpu:
        torch.cuda.set_sync_debug_mode("default")
    runner.close()
    oracle = build(kind)
    verdicts = [judge(oracle, prompt, answer) for prompt, answer in zip(prompts, tokens, strict=True)]
    num_tokens = sum(len(answer) for answer in tokens)
    regret = max(r for _, r in verdicts)
    num_distinct = len({token for answer in tokens for token in answer})
    faults = [
        *(["differs from itself"] if first != tokens else []),
        *(["wrong tokens"] if regret > MAX_REGRET[dtype] else []),
        *(["waits for the device"] if excess else []),
        *(["proves nothing"] if num_distinct < 8 else []),
    ]
    return Row(
        model=kind,
        dtype=str(dtype).removeprefix("torch."),
        tokens=num_tokens,
        agree=sum(n for n, _ in verdicts) / num_tokens,
        regret=regret,
        steps=num_steps,
        ms_per_step=1e3 * elapsed_s / num_steps,
        syncs=str(excess) if on_gpu else "-",
        verdict=", ".join(faults) or "ok",
    )


def main() -> int:
    """Print one table; 0 if all is well or there is no GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu tries the script itself")
    device = parser.parse_args().device
    if device == "cuda" and not torch.cuda.is_available():
        print("skipped: no CUDA")
        return 0
    kinds = ["llama", "smolvlm"]
    try:
        import greenlet  # noqa: F401
    except ImportError:
        print("without greenlet: text only")
        kinds.remove("smolvlm")
    rows = [check(kind, device, dtype) for kind in kinds for dtype in MAX_REGRET]
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}")
    print("model    dtype     tokens  agree  regret  steps  ms/step  extra syncs  verdict")
    for r in rows:
        print(
            f"{r.model:8} {r.dtype:9} {r.tokens:6} {r.agree:6.1%} {r.regret:7.4f} {r.steps:6} {r.ms_per_step:8.2f} "
            f"{r.syncs:>12}  {r.verdict}"
        )
    return 0 if all(r.verdict == "ok" for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
