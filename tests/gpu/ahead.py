"""Steps made while one is in flight, beside the same steps one by one: the same tokens, and what a step takes."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch

from backend.runtime.runner import Runner
from backend.sched.policy import make_policy
from backend.sched.scheduler import Scheduler
from backend.types.request import Prepared, Request, SamplingParams
from backend.types.scheduler import SchedulerLimits
from tests.gpu.flights import landings
from tests.gpu.made_models import Made
from tests.gpu.prompts import text_prompt
from tests.gpu.rates import percentile
from tests.gpu.runners import BLOCK_SIZE, runner_of
from tests.gpu.table import OK, Row


def ahead_rows(
    made: Made, way: str, widths: tuple[int, ...], prompt_len: int, num_tokens: int, repeats: int
) -> Iterator[Row]:
    """One row for each width: so many answers of `num_tokens`, the median of `repeats` runs' times of a decode step."""
    blocks_each = -(-(prompt_len + num_tokens) // BLOCK_SIZE)
    runner = runner_of(made, way, max(widths) * blocks_each)
    generator = torch.Generator().manual_seed(8)
    for width in widths:
        prompts = [text_prompt(made, prompt_len, generator) for _ in range(width)]
        limits = SchedulerLimits(
            max_num_batched_tokens=width * prompt_len,
            hard_num_batched_tokens=width * prompt_len,
            max_num_seqs=width,
            max_model_len=prompt_len + num_tokens,
            num_blocks=width * blocks_each,
            block_size=BLOCK_SIZE,
            enable_prefix_caching=False,
        )
        tokens, step_s = [], []
        for ahead in (False, True):
            # What comes first compiles, and counts no more than the rest.
            runs = [_run(runner, limits, prompts, num_tokens, ahead) for _ in range(1 + repeats)]
            tokens.append(runs[0][0])
            step_s.append(percentile([seconds for _, gaps in runs[1:] for seconds in gaps], 50))
        figures = (
            f"{step_s[1] * 1e3:.2f} ms a step, {step_s[0] * 1e3:.2f} one by one, {step_s[1] / step_s[0]:.2f} of it"
        )
        verdict = OK if tokens[0] == tokens[1] else "not the tokens of steps one by one"
        yield Row("ahead", made.name, f"{way}, {width} x {prompt_len}", figures, verdict)


def _run(
    runner: Runner, limits: SchedulerLimits, prompts: list[Prepared], num_tokens: int, ahead: bool
) -> tuple[list[list[int]], list[float]]:
    """Tokens by prompt, and the seconds between the ends of steps of decodes alone."""
    scheduler = Scheduler(limits, make_policy("stall-free"))
    for index, prompt in enumerate(prompts):
        scheduler.submit(Request(str(index), prompt, SamplingParams(max_tokens=num_tokens, temperature=0.0)))
    tokens: list[list[int]] = [[] for _ in prompts]
    gaps = []
    was_decodes, then = False, 0.0
    for step, result in landings(scheduler, runner, ahead=ahead):
        now = time.perf_counter()
        if result.failed_requests:
            raise ArithmeticError(next(iter(result.failed_requests.values())))
        for event in scheduler.apply(result):
            if event.token_id is not None:
                tokens[int(event.request_id)].append(event.token_id)
        is_decodes = not step.num_prefill_tokens
        if was_decodes and is_decodes:
            gaps.append(now - then)
        was_decodes, then = is_decodes, now
    return tokens, gaps
