"""Small models through the real Scheduler and Runner on the device: right tokens, and no wait but for them.

In float32 every attention backend must give the tokens of `reference`; in bfloat16, every token must be one that the
CPU's float32 puts at the top, or so near that bfloat16 cannot tell.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from backend.models.adapter import ModelAdapter, encoded
from backend.runtime.attention.base import AttentionInputs
from backend.runtime.kv_pool import KvPool
from backend.runtime.runner import Runner
from backend.runtime.text_backend import make_text
from backend.sched.policy import make_policy
from backend.sched.scheduler import Scheduler
from backend.types.request import Prepared, Request, SamplingParams
from backend.types.scheduler import SchedulerLimits
from tests.gpu.flights import landings
from tests.gpu.made_models import Made, Shape, make_exact
from tests.gpu.prompts import mixed_prompts
from tests.gpu.runners import AHEAD, runner_of
from tests.gpu.table import OK, Row, attempt

LIMITS = SchedulerLimits(
    max_num_batched_tokens=96,
    hard_num_batched_tokens=1024,
    max_num_seqs=6,
    max_model_len=1024,
    num_blocks=128,
    enable_prefix_caching=False,
    max_encoder_batch=4,
)
MAX_REGRET = {torch.float32: 1e-3, torch.bfloat16: 0.25}
"""How far below the best logit (of CPU float32) a chosen token may lie, in standard deviations of the logits."""
TIE = 1e-4
"""Float32's own rounding may decide between logits nearer than this, in the same measure."""


@dataclass(frozen=True, slots=True)
class Answers:
    """Tokens per prompt, and what the steps took; `extra_waits` are waits beside those for a step's end."""

    tokens: list[list[int]]
    num_steps: int
    elapsed_s: float
    extra_waits: int


def equality_rows(
    shape: Shape, device: str, backends: tuple[str, ...], lengths: tuple[int, ...], num_tokens: int
) -> Iterator[Row]:
    """One row for each dtype and backend: prompts of these `lengths`, `num_tokens` tokens of answer each."""
    oracle = make_exact(shape, "cpu", torch.float32)
    for dtype in MAX_REGRET:
        made = make_exact(shape, device, dtype)
        prompts = mixed_prompts(made, lengths)
        expected = _answers(made, "reference", prompts, num_tokens).tokens
        for name in backends:
            row = lambda n=name, m=made, p=prompts, e=expected: [  # noqa: E731
                _row(m, oracle, n, p, _answers(m, n, p, num_tokens), e)
            ]
            yield from attempt("equality", made.name, _case(name, dtype), row)


def _case(backend: str, dtype: torch.dtype) -> str:
    return f"{backend}, {str(dtype).removeprefix('torch.')}"


def _row(
    made: Made, oracle: Made, backend: str, prompts: list[Prepared], got: Answers, expected: list[list[int]]
) -> Row:
    dtype = made.adapter.dtype
    regrets = torch.cat([_regrets(oracle.adapter, p, t) for p, t in zip(prompts, got.tokens, strict=True)])
    regret = float(regrets.max())
    num_equal = sum(a == b for g, e in zip(got.tokens, expected, strict=True) for a, b in zip(g, e, strict=True))
    num_tokens = len(regrets)
    faults = [
        *(["wrong tokens"] if not regret <= MAX_REGRET[dtype] else []),
        *(["not reference's tokens"] if dtype == torch.float32 and num_equal < num_tokens and regret > TIE else []),
        *(["waits for the device"] if got.extra_waits else []),
        *(["proves nothing"] if len({t for tokens in got.tokens for t in tokens}) < 8 else []),
    ]
    figures = (
        f"{num_equal}/{num_tokens} tokens as reference, {float((regrets == 0).float().mean()):.1%} the CPU's best, "
        f"regret {regret:.4f}, {1e3 * got.elapsed_s / got.num_steps:.2f} ms a step"
    )
    return Row("equality", made.name, _case(backend, dtype), figures, ", ".join(faults) or OK)


def _answers(made: Made, backend: str, prompts: list[Prepared], num_tokens: int) -> Answers:
    """Run twice: the first run compiles and fills caches, and must give the same tokens."""
    is_fast = backend != "reference"
    runner = runner_of(made, backend, LIMITS.num_blocks)
    ahead = backend == AHEAD
    first = _generate(runner, prompts, num_tokens, count_waits=False, ahead=ahead)
    if not is_fast:
        return first
    on_gpu = made.adapter.device.type == "cuda"
    if on_gpu:
        torch.cuda.set_sync_debug_mode("warn")
    try:
        second = _generate(runner, prompts, num_tokens, count_waits=on_gpu, ahead=ahead)
    finally:
        if on_gpu:
            torch.cuda.set_sync_debug_mode("default")
        runner.close()
    if second.tokens != first.tokens:
        raise ArithmeticError("two runs of the same requests gave different tokens")
    return second


def _generate(runner: Runner, prompts: list[Prepared], num_tokens: int, *, count_waits: bool, ahead: bool) -> Answers:
    scheduler = Scheduler(LIMITS, make_policy("stall-free"))
    for index, prompt in enumerate(prompts):
        scheduler.submit(Request(str(index), prompt, SamplingParams(max_tokens=num_tokens, temperature=0.0)))
    tokens: list[list[int]] = [[] for _ in prompts]
    num_steps = extra_waits = 0
    started = time.perf_counter()
    steps = landings(scheduler, runner, ahead=ahead)
    while True:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            _, result = next(steps, (None, None))
        if result is None:
            break
        num_steps += 1
        if count_waits:
            # The end of a step is waited for by an event, of which nobody warns.
            extra_waits += sum("synchroniz" in str(w.message) for w in caught)
        assert not result.failed_images, result.failed_images
        assert not result.failed_requests, result.failed_requests
        for event in scheduler.apply(result):
            assert event.token_id is not None
            tokens[int(event.request_id)].append(event.token_id)
    return Answers(tokens, num_steps, time.perf_counter() - started, extra_waits)


def _regrets(adapter: ModelAdapter, prompt: Prepared, answer: list[int]) -> torch.Tensor:
    """How far each token of `answer` lies below the best one, for the text read at once by the oracle [n]."""
    ids = torch.tensor([*prompt.token_ids, *answer[:-1]])
    total, num_prompt = len(ids), len(prompt.token_ids)
    size = LIMITS.block_size
    num_blocks = -(-total // size)
    pool = KvPool(adapter.spec, num_blocks=num_blocks, block_size=size, dtype=adapter.dtype, device=adapter.device)
    inputs = AttentionInputs((0, total), (total,), (tuple(range(num_blocks)),), torch.arange(total))
    later = range(num_prompt + prompt.decode_delta, total + prompt.decode_delta)
    positions = torch.tensor([[*row, *later] for row in prompt.positions])
    text = make_text("torch", adapter, pool, attention="reference")
    with torch.inference_mode():
        embeds = adapter.embed(ids.where(ids < adapter.spec.vocab_size - 1, 0) if prompt.images else ids)
        for image, span in zip(prompt.images, prompt.spans, strict=True):
            embeds[span.start : span.end] = encoded(adapter.encode(image))
        logits = text.logits(text.forward(embeds, positions, inputs)[num_prompt - 1 :])
    chosen = logits.gather(1, torch.tensor(answer)[:, None])[:, 0]
    return (logits.max(dim=1).values - chosen) / logits.std(dim=1)
