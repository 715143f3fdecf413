"""What is checked: each a way to serve the same prompts, and what shows that it really happened.

A check that changes nothing about the order of work proves nothing, so each one says what it did, and is reported as
idle where that is nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from backend.runtime.runner import build_runner
from backend.selftest.drive import Outcome, drive
from backend.types.request import Request
from backend.types.scheduler import SchedulerLimits

if TYPE_CHECKING:
    from backend.models.adapter import ModelAdapter

BLOCK_SIZE = 16
AGAIN = " (again)"
"""Ends the id of a prompt that comes a second time."""
ALL_SLICES = 1 << 20
"""Of an image in one step."""
ARRIVALS = (0, 3, 5, 9)
LAST = 1 << 30
"""The step of an arrival after all else."""
WHOLE = 0
"""A budget as large as all prompts together."""

Truth = Mapping[str, Sequence[int]]


@dataclass(frozen=True, slots=True)
class Served:
    """Answers by request id, and what happened on the way: empty if nothing did that the check is about."""

    tokens: Mapping[str, Sequence[int]]
    what: str


@dataclass(frozen=True)
class Bench:
    """One model, the requests to serve, and what computes its text."""

    adapter: ModelAdapter
    requests: tuple[Request, ...]
    text: str = "torch"

    def limits(self, budget: int = WHOLE, **changes: Any) -> SchedulerLimits:
        """Limits that nothing but the budget presses on, unless changed."""
        lengths = [len(r.prompt.token_ids) for r in self.requests]
        longest = max(r.sampling.max_tokens for r in self.requests)
        everything = sum(lengths) + len(lengths)
        values: dict[str, Any] = {
            "max_num_batched_tokens": budget or everything,
            "hard_num_batched_tokens": max(everything, budget),
            "max_num_seqs": len(lengths),
            "max_model_len": self.adapter.spec.max_model_len,
            "num_blocks": 2 * sum(-(-(n + longest) // BLOCK_SIZE) for n in lengths),
            "block_size": BLOCK_SIZE,
            "encoder_cache_embeds": max(1, 2 * sum(i.num_embeds for r in self.requests for i in r.prompt.images)),
            "enable_prefix_caching": False,
            "max_encoder_slices_per_step": ALL_SLICES,
            "idle_encoder_slices_per_step": ALL_SLICES,
        }
        return SchedulerLimits(**(values | changes))

    def serve(
        self,
        limits: SchedulerLimits,
        *,
        policy: str = "stall-free",
        arrivals: Sequence[int] = (),
        truth: Truth | None = None,
        requests: Sequence[Request] | None = None,
        ahead: bool = False,
    ) -> Outcome:
        """All requests, or these."""
        runner = build_runner(
            self.adapter,
            num_blocks=limits.num_blocks,
            block_size=limits.block_size,
            text=self.text,
        )
        served = self.requests if requests is None else requests
        return drive(self.adapter, runner, served, limits, policy=policy, arrivals=arrivals, truth=truth, ahead=ahead)


Check = Callable[[Bench, Truth], Served]


def whole(bench: Bench, _: Truth) -> Served:
    """Every prompt in one piece."""
    outcome = bench.serve(bench.limits())
    longest = max(chunk.num_tokens for step in outcome.steps for chunk in step.chunks)
    return Served(outcome.tokens, f"chunks up to {longest} tokens")


def chunked(budget: int) -> Check:
    """Prompts in pieces, answers between them."""

    def check(bench: Bench, _: Truth) -> Served:
        # Slices of pictures in small numbers, as a server takes them.
        limits = bench.limits(budget, max_encoder_slices_per_step=2, idle_encoder_slices_per_step=32)
        outcome = bench.serve(limits)
        num_chunks = sum(not c.is_decode for step in outcome.steps for c in step.chunks)
        borders = _borders_in_images(bench.requests, outcome)
        inside = f", {borders} of their borders inside pictures" if borders else ""
        return Served(outcome.tokens, f"{num_chunks} chunks{inside}")

    return check


def alone(bench: Bench, _: Truth) -> Served:
    """One request after the other."""
    tokens: dict[str, Sequence[int]] = {}
    for request in bench.requests:
        tokens |= bench.serve(bench.limits(64), requests=[request]).tokens
    return Served(tokens, "one at a time")


def together(bench: Bench, _: Truth) -> Served:
    """Late ones join answers that are running."""
    outcome = bench.serve(bench.limits(16), arrivals=ARRIVALS)
    num_mixed = sum(bool(s.num_decode_tokens and s.num_prefill_tokens) for s in outcome.steps)
    return Served(outcome.tokens, f"{num_mixed} steps with answers and prompts" if num_mixed else "")


def cached(bench: Bench, _: Truth) -> Served:
    """Every prompt twice: the second time most of it is there already. Both answers count."""
    again = [replace(r, request_id=f"{r.request_id}{AGAIN}") for r in bench.requests]
    late = (0,) * len(again) + (LAST,) * len(again)
    limits = bench.limits(64, enable_prefix_caching=True)
    outcome = bench.serve(limits, requests=[*bench.requests, *again], arrivals=late)
    assert outcome.stats is not None
    hits = outcome.stats.prefix_hits_total
    return Served(outcome.tokens, f"{hits} tokens from the cache" if hits else "")


def preempted(bench: Bench, _: Truth) -> Served:
    """A cache with room for the prompts but not for the answers: some are thrown out and computed again."""
    prompts = sum(-(-len(r.prompt.token_ids) // BLOCK_SIZE) for r in bench.requests)
    outcome = bench.serve(bench.limits(num_blocks=prompts + 1))
    assert outcome.stats is not None
    num = outcome.stats.num_preemptions_total
    return Served(outcome.tokens, f"preempted {num} times" if num else "")


def ordered_by(policy: str) -> Check:
    """Another order of work."""

    def check(bench: Bench, _: Truth) -> Served:
        outcome = bench.serve(bench.limits(64), policy=policy, arrivals=ARRIVALS)
        return Served(outcome.tokens, f"{len(outcome.steps)} steps")

    return check


def guessed(bench: Bench, truth: Truth) -> Served:
    """Tokens guessed, rightly and wrongly."""
    outcome = bench.serve(bench.limits(64), truth=truth, arrivals=ARRIVALS)
    what = f"{outcome.num_accepted} of {outcome.num_drafts} guesses right" if outcome.num_drafts else ""
    return Served(outcome.tokens, what)


def ahead(bench: Bench, _: Truth) -> Served:
    """Each step made before the one in flight has landed."""
    outcome = bench.serve(bench.limits(64), arrivals=ARRIVALS, ahead=True)
    return Served(outcome.tokens, f"{outcome.num_ahead} of {len(outcome.steps)} steps" if outcome.num_ahead else "")


def crowded_pictures(bench: Bench, _: Truth) -> Served:
    """Room for the embeddings of one picture: they push one another out."""
    largest = max(image.num_embeds for r in bench.requests for image in r.prompt.images)
    outcome = bench.serve(bench.limits(64, encoder_cache_embeds=largest))
    num = sum(len(step.evictions) for step in outcome.steps)
    return Served(outcome.tokens, f"pictures pushed out: {num}" if num else "")


def _borders_in_images(requests: Sequence[Request], outcome: Outcome) -> int:
    """How many chunks end inside a picture."""
    ends = {(c.request_id, c.start + c.num_tokens) for step in outcome.steps for c in step.chunks}
    spans = {request.request_id: request.prompt.spans for request in requests}
    return sum(span.start < end < span.end for name, end in ends for span in spans[name])
