"""A short profile of this machine with this model: what a step costs, measured before the first request comes.

Small requests of random words run through the real scheduler and runner, and the policy's cost model sees every step:
decodes of a few widths, prompts of a few lengths, a picture in slices. Knows nothing of tensors.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from backend.errors import Rejected
from backend.sched.cost import CostModel
from backend.sched.scheduler import Scheduler
from backend.step_runner import StepRunner
from backend.types.request import Prepared, Request, SamplingParams
from backend.types.scheduler import SchedulerLimits

if TYPE_CHECKING:
    from PIL import Image

    from backend.models.adapter import ModelAdapter

PROFILE_S = 10.0
"""No further part begins after this long, on however slow a machine."""

_WIDTHS = (1, 2, 4, 8)
_DECODE_STEPS = 6
"""Steps that all of a width run together; they join one by one."""
_PROMPT_TOKENS = (16, 48, 128, 320)
_PICTURE_SIZE = (512, 512)
_NUM_PICTURES = 2

Say = Callable[[str], None]


class Profile:
    """Runs the parts of the profile on an idle scheduler, whose policy must be one with the operator's bounds."""

    def __init__(
        self, adapter: ModelAdapter, scheduler: Scheduler, runner: StepRunner, limits: SchedulerLimits
    ) -> None:
        self._adapter = adapter
        self._scheduler = scheduler
        self._runner = runner
        self._limits = limits
        self._rng = random.Random(0)
        self._num_requests = 0

    def run(self, say: Say) -> CostModel:
        """Everything there is time for, each part announced; returns the cost model. Raises what the runner raises."""
        deadline = time.monotonic() + PROFILE_S
        # A process's first steps take longer than any later ones; nothing is to be learned from them.
        self._run_out([self._text(1, 2)], is_timed=False)
        for title, requests in self._parts():
            if time.monotonic() > deadline:
                say("Profile: this machine is slow; the rest is learned while serving")
                break
            say(f"Profile: {title} …")
            self._run_out(requests)
        self._end()
        return self._scheduler.policy.cost

    def run_text(self) -> CostModel:
        """The parts without pictures, silently: what a token budget by time has to know before the first request."""
        deadline = time.monotonic() + PROFILE_S
        self._run_out([self._text(1, 2)], is_timed=False)
        for _, requests in self._text_parts():
            if time.monotonic() > deadline:
                break
            self._run_out(requests)
        self._end()
        return self._scheduler.policy.cost

    def _end(self) -> None:
        """Give the scheduler its own budget back."""
        limits = self._limits
        self._scheduler.set_token_budget(limits.max_num_batched_tokens if limits.is_token_budget_exact else None)

    def _parts(self) -> Iterator[tuple[str, list[Request]]]:
        """Text, then pictures where the model takes them."""
        yield from self._text_parts()
        if self._adapter.spec.takes_images and self._limits.max_num_seqs > 1:
            for number in range(1, _NUM_PICTURES + 1):
                yield f"picture {number} of {_NUM_PICTURES}", self._picture_beside_a_decode()

    def _text_parts(self) -> Iterator[tuple[str, list[Request]]]:
        """Decodes first: without them nothing can be promised. The widest budget keeps prompts in one piece."""
        self._scheduler.set_token_budget(self._limits.hard_num_batched_tokens)
        widths = [width for width in _WIDTHS if width <= self._limits.max_num_seqs]
        for width in widths:
            yield f"{width} running at once", [self._text(1, _DECODE_STEPS + width) for _ in range(width)]
        longest = min(self._limits.max_model_len - _DECODE_STEPS, self._limits.hard_num_batched_tokens)
        for num_tokens in _PROMPT_TOKENS:
            if num_tokens <= longest:
                yield f"a prompt of {num_tokens} tokens", [self._text(num_tokens, 2)]

    def _run_out(self, requests: list[Request], *, is_timed: bool = True) -> None:
        """One more request with each step, until the last of them has ended; that ends the others, too."""
        queue = list(requests)
        while queue or self._scheduler.has_work():
            if queue and not self._try_submit(queue.pop(0)):
                continue
            step = self._scheduler.schedule()
            if step is None:
                continue
            t_begin = time.monotonic()
            events = self._scheduler.apply(self._runner.execute(step))
            if is_timed:
                self._scheduler.policy.observe(step, time.monotonic() - t_begin)
            if any(event.finish_reason and event.request_id == requests[-1].request_id for event in events):
                for request in requests:
                    self._scheduler.cancel(request.request_id)

    def _try_submit(self, request: Request) -> bool:
        """A small context or cache may have no room for what the profile would like to see."""
        try:
            self._scheduler.submit(request)
        except Rejected:
            return False
        return True

    def _text(self, num_tokens: int, max_tokens: int) -> Request:
        """A prompt of words that no other one begins with, so that its KV is computed; cut to `num_tokens`."""
        words = " ".join(str(self._rng.randrange(10_000)) for _ in range(num_tokens))
        prompt = self._adapter.prepare([{"role": "user", "content": [{"type": "text", "text": words}]}], [])
        cut = Prepared(prompt.token_ids[-num_tokens:], (), (), tuple(row[:num_tokens] for row in prompt.positions))
        return self._request(cut, max_tokens)

    def _picture_beside_a_decode(self) -> list[Request]:
        """A picture of its own noise, and an answer that runs beside it: then there is one slice to each step."""
        content = [{"type": "image"}, {"type": "text", "text": "Describe the image."}]
        prompt = self._adapter.prepare([{"role": "user", "content": content}], [self._picture()])
        return [self._text(1, self._limits.max_model_len), self._request(prompt, 1)]

    def _picture(self) -> Image.Image:
        from PIL import Image

        noise = Image.frombytes("RGB", (8, 8), self._rng.randbytes(8 * 8 * 3))
        return noise.resize(_PICTURE_SIZE)

    def _request(self, prompt: Prepared, max_tokens: int) -> Request:
        self._num_requests += 1
        sampling = SamplingParams(max_tokens, temperature=0.0, ignore_eos=True)
        return Request(f"profile-{self._num_requests}", prompt, sampling)
