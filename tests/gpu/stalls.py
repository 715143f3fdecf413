"""What cameras do to chats: gaps between a chat's tokens with and without pictures coming in, as ratios in one run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from backend.runtime.runner import Runner
from backend.sched.policy import make_policy
from backend.sched.scheduler import Scheduler
from backend.types.request import Prepared, Request, RequestClass, SamplingParams
from backend.types.scheduler import SchedulerLimits
from tests.gpu.made_models import Made
from tests.gpu.prompts import picture_prompt, text_prompt
from tests.gpu.rates import percentile
from tests.gpu.runners import GRAPHS, runner_of
from tests.gpu.table import Row

NUM_CHATS, CHAT_PROMPT_LEN, CHAT_TOKENS, CAPTION_TOKENS = 2, 64, 256, 24
LIMITS = SchedulerLimits(
    max_num_batched_tokens=2048,
    hard_num_batched_tokens=8192,
    max_num_seqs=64,
    max_model_len=1024,
    num_blocks=1024,
    max_encoder_slices_per_step=2,
    idle_encoder_slices_per_step=32,
    enable_prefix_caching=False,
    max_encoder_batch=8,
)
"""The product's own on a GPU, where they matter here."""


@dataclass(frozen=True, slots=True)
class Gaps:
    """Seconds between tokens of the chats, captions that ended, and how long it all took."""

    seconds: list[float]
    num_captions: int
    elapsed_s: float


class Load:
    """Two chats that never end, and cameras that send the next picture when its caption is done."""

    def __init__(self, made: Made, runner: Runner, policy: str, num_cameras: int) -> None:
        generator = torch.Generator().manual_seed(11)
        self._runner = runner
        self._scheduler = Scheduler(LIMITS, make_policy(policy))
        self._chat = text_prompt(made, CHAT_PROMPT_LEN, generator)
        self._made = made
        self._generator = generator
        self._num_requests = 0
        self._last: dict[str, float] = {}
        for _ in range(NUM_CHATS):
            self._submit("chat", self._chat, CHAT_TOKENS, RequestClass.INTERACTIVE)
        for _ in range(num_cameras):
            self._send_picture()

    def run(self, num_gaps: int, limit_s: float) -> Gaps:
        """Steps until there are `num_gaps` gaps, or `limit_s` seconds are over."""
        gaps: list[float] = []
        num_captions = 0
        started = time.perf_counter()
        while len(gaps) < num_gaps and time.perf_counter() - started < limit_s:
            step = self._scheduler.schedule()
            assert step is not None, "chats always have a next token"
            begun = time.perf_counter()
            result = self._runner.execute(step)
            now = time.perf_counter()
            self._scheduler.policy.observe(step, now - begun)
            if result.failed_requests or result.failed_images:
                raise ArithmeticError(next(iter((result.failed_requests | result.failed_images).values())))
            for event in self._scheduler.apply(result):
                is_chat = event.request_id.startswith("chat")
                if is_chat and event.request_id in self._last:
                    gaps.append(now - self._last[event.request_id])
                self._last[event.request_id] = now
                if event.finish_reason is not None:
                    del self._last[event.request_id]
                    num_captions += not is_chat
                    self._go_on(is_chat)
        return Gaps(gaps, num_captions, time.perf_counter() - started)

    def _go_on(self, is_chat: bool) -> None:
        if is_chat:
            self._submit("chat", self._chat, CHAT_TOKENS, RequestClass.INTERACTIVE)
        else:
            self._send_picture()

    def _send_picture(self) -> None:
        prompt = picture_prompt(self._made, f"frame {self._num_requests}", 12, 20, self._generator)
        self._submit("caption", prompt, CAPTION_TOKENS, RequestClass.BACKGROUND)

    def _submit(self, kind: str, prompt: Prepared, num_tokens: int, request_class: RequestClass) -> None:
        params = SamplingParams(max_tokens=num_tokens, temperature=0.0)
        self._scheduler.submit(Request(f"{kind} {self._num_requests}", prompt, params, request_class))
        self._num_requests += 1


def stall_rows(made: Made, num_gaps: int, limit_s: float) -> Iterator[Row]:
    """For each policy: quiet, then one and eight cameras. `limit_s` bounds each of them.

    As the product does it: by graphs, if they are right, else without.
    """
    way = GRAPHS
    try:
        runner = runner_of(made, GRAPHS, LIMITS.num_blocks)
    except ArithmeticError:
        way = "sdpa"
        runner = runner_of(made, way, LIMITS.num_blocks)
    for policy in ("stall-free", "latency-target"):
        quiet_s = 0.0
        for num_cameras in (0, 1, 8):
            load = Load(made, runner, policy, num_cameras)
            # The policy learns, and kernels are compiled, before it counts.
            load.run(num_gaps // 4, limit_s / 2)
            gaps = load.run(num_gaps, limit_s)
            p50_s, p99_s, longest_s = (percentile(gaps.seconds, p) for p in (50, 99, 100))
            quiet_s = quiet_s or p50_s
            figures = (
                f"{p50_s * 1e3:.2f} ms; of the quiet p50: p50 {p50_s / quiet_s:.2f}, p99 {p99_s / quiet_s:.2f}, "
                f"longest {longest_s / quiet_s:.2f} ({len(gaps.seconds)} gaps)"
            )
            if num_cameras:
                figures += f"; {gaps.num_captions / gaps.elapsed_s:.1f} captions/s"
            case = f"{way}, {policy}, {num_cameras} camera{'s' if num_cameras != 1 else ''}"
            yield Row("stalls", made.name, case, figures)
            # Pictures half encoded belong to this load alone.
            runner.close()
