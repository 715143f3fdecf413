"""Small requests and a world to play them in: a real scheduler and the runner that believes nothing."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any

from backend.sched.blocks import BlockPool, BlockTable
from backend.sched.policy import Policy, make_policy
from backend.sched.scheduler import Scheduler
from backend.sched.sequence import Sequence
from backend.types.request import ImageInput, ImageSpan, Prepared, Request, RequestClass, SamplingParams
from backend.types.result import FinishReason, TokenEvent
from backend.types.scheduler import SchedulerLimits
from backend.types.step import Step
from tests.fuzz.contract_runner import ContractRunner

INTERACTIVE, BACKGROUND = RequestClass.INTERACTIVE, RequestClass.BACKGROUND
LIMITS = SchedulerLimits(
    max_num_batched_tokens=16,
    hard_num_batched_tokens=64,
    max_num_seqs=4,
    max_model_len=200,
    num_blocks=100,
    block_size=4,
    encoder_cache_embeds=100,
    max_encoder_slices_per_step=1,
    idle_encoder_slices_per_step=4,
)


def image(key: str, num_embeds: int = 6, num_slices: int = 1) -> ImageInput:
    return ImageInput(key, num_embeds, num_slices)


def request(
    request_id: str,
    *pieces: int | Seq[int] | ImageInput,
    max_tokens: int = 3,
    request_class: RequestClass = INTERACTIVE,
    atomic: bool = False,
    stop: frozenset[int] = frozenset(),
) -> Request:
    """A prompt of pieces: a number of tokens (unlike any other request's), given tokens, or an image's placeholders."""
    token_ids: list[int] = []
    spans: list[ImageSpan] = []
    for piece in pieces:
        if isinstance(piece, ImageInput):
            spans.append(ImageSpan(len(token_ids), piece.num_embeds, piece.key, atomic=atomic))
            token_ids += [99] * piece.num_embeds
        elif isinstance(piece, int):
            token_ids += [1000 + 7 * i + sum(request_id.encode()) for i in range(piece)]
        else:
            token_ids += piece
    images = tuple(dict.fromkeys(piece for piece in pieces if isinstance(piece, ImageInput)))
    prompt = Prepared(tuple(token_ids), images, tuple(spans), (range(len(token_ids)),))
    return Request(request_id, prompt, SamplingParams(max_tokens, stop_token_ids=stop), request_class)


def sequence(made: Request, *, computed: int = 0, arrival: int = 0, pool: BlockPool | None = None) -> Sequence:
    """A sequence of its own, with its first tokens computed."""
    seq = Sequence(made, arrival=arrival, step_id=0, table=BlockTable(pool or BlockPool(100, 4)))
    seq.table.grow_to(computed)
    seq.computed = computed
    return seq


class World:
    """A scheduler, checked after every call, and a contract runner."""

    def __init__(self, policy: str | Policy = "stall-free", **limits: Any) -> None:
        self.limits = replace(LIMITS, **limits)
        chosen = make_policy(policy) if isinstance(policy, str) else policy
        self.scheduler = Scheduler(self.limits, chosen)
        self.runner = ContractRunner(self.limits)
        self.events: list[TokenEvent] = []

    def submit(self, *requests: Request) -> None:
        for made in requests:
            self.scheduler.submit(made)
            self.runner.admit(made)
        self.scheduler.check()

    def cancel(self, request_id: str) -> None:
        assert self.scheduler.cancel(request_id)
        self.runner.forget(request_id)
        self.scheduler.check()

    def step(self, failed_requests: Seq[str] = (), failed_images: Seq[str] = ()) -> Step:
        """One whole step; its events are added to `events`."""
        step = self.scheduler.schedule()
        assert step is not None, "nothing to run"
        self.scheduler.check()
        result = self.runner.execute(step, failed_requests, failed_images)
        events = self.scheduler.apply(result)
        self.runner.take_events(events, result)
        self.scheduler.check()
        self.events += events
        return step

    def run(self, max_steps: int = 1000) -> list[Step]:
        """Steps until nobody is alive."""
        steps: list[Step] = []
        while self.scheduler.has_work():
            assert len(steps) < max_steps, "no end in sight"
            steps.append(self.step())
        assert self.scheduler.schedule() is None
        return steps

    def answer(self, request_id: str) -> tuple[list[int], FinishReason | None]:
        truth = self.runner.truths[request_id]
        return truth.outputs, truth.finish_reason


def booked(step: Step) -> dict[str, int]:
    """Tokens by request."""
    return {chunk.request_id: chunk.num_tokens for chunk in step.chunks}


def encoded(step: Step) -> dict[str, int]:
    """Encoder slices by image."""
    return {encode.image.key: encode.num_slices for encode in step.encodes}
