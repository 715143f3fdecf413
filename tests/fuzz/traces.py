"""Random worlds for the scheduler, each from one seed: bounds, requests, and the odds of trouble."""

from __future__ import annotations

import random
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

from backend.sched.policy import POLICIES
from backend.types.request import ImageInput, ImageSpan, Prepared, Request, RequestClass, SamplingParams
from backend.types.scheduler import SchedulerLimits
from tests.fuzz.contract_runner import COPIES, IMAGE_TOKEN, VOCAB_SIZE
from tests.fuzz.machine import Machine


@dataclass(frozen=True)
class Trace:
    """One random world: limits, policy, requests and the odds of trouble. `target_s` is for latency-target.

    `ahead_odds` are those of a step being made before the one in flight is applied. `has_wild_guesses` has guesses made
    without sense or price, the first of them often right.
    """

    seed: int
    policy: str
    target_s: float | None
    limits: SchedulerLimits
    requests: tuple[Request, ...]
    cancel_odds: float
    failure_odds: float
    budget_odds: float
    arrival_odds: float
    switch_odds: float
    has_wild_guesses: bool = False
    ahead_odds: float = 0.0

    def machine(self) -> Machine:
        """The machine that this world runs on: fast or slow, noisy, with hiccups."""
        rng = random.Random(self.seed + 2)
        return Machine(
            base_s=rng.choice((0.0, 0.001, 0.02)),
            token_s=rng.choice((1e-5, 1e-3)),
            slice_s=tuple(rng.choice((1e-4, 0.01, 0.1)) for _ in range(3)),
            noise=rng.choice((0.0, 0.1, 0.5)),
            hiccup_odds=rng.choice((0.0, 0.05)),
            mate_share=rng.choice((0.1, 0.5, 1.0)),
            seed=self.seed,
        )


def make_trace(seed: int) -> Trace:
    """The world of `seed`: bounds are tight around its requests, and now and then too tight for some of them."""
    rng = random.Random(seed)
    together = random.Random(seed + 5)
    requests = _make_requests(rng, together)
    squeeze = rng.choice((0.5, 1.0, 1.0, 1.0, 1.0, 1.0))
    longest = int(squeeze * max(len(request.prompt.token_ids) for request in requests)) + 1
    images = [image for request in requests for image in request.prompt.images]
    largest = int(squeeze * max((image.num_embeds for image in images), default=0)) + 1
    block_size = rng.choice((1, 2, 4, 8, 16))
    max_num_seqs = rng.choice((1, 2, 3, 4, 6))
    budget = max_num_seqs + rng.choice((0, 1, 5, 16, 64))
    guessing = random.Random(seed + 3)
    num_speculative_tokens = guessing.choice((0, 1, 4, 9))
    if num_speculative_tokens:
        requests = tuple(_made_guessable(guessing, request) for request in requests)
    limits = SchedulerLimits(
        max_num_batched_tokens=budget,
        hard_num_batched_tokens=budget + rng.choice((0, 1, largest, largest + 40)),
        max_num_seqs=max_num_seqs,
        max_model_len=longest + rng.choice((1, 4, 30)),
        num_blocks=1 + int(longest * rng.choice((1.0, 1.2, 1.5, 2, 3))) // block_size,
        block_size=block_size,
        encoder_cache_embeds=int(largest * rng.choice((1.0, 1.5, 3, 10))),
        max_encoder_slices_per_step=rng.randint(1, 2),
        idle_encoder_slices_per_step=rng.randint(1, 4),
        enable_prefix_caching=rng.random() < 0.8,
        max_num_waiting=rng.choice((3, 1024, 1024, 1024)),
        background_aging_steps=rng.choice((1, 10, 256)),
        num_speculative_tokens=num_speculative_tokens,
        is_token_budget_exact=random.Random(seed + 4).random() < 0.7,
        max_encoder_batch=together.choice((1, 2, 4)),
    )
    rush = random.Random(seed + 6)
    if rush.random() < 0.1:
        requests, limits = _make_rush(rush, requests, limits)
    return Trace(
        seed=seed,
        policy=rng.choice(tuple(POLICIES)),
        target_s=rng.choice((None, 1e-4, 0.005, 0.03, 1.0)),
        limits=limits,
        requests=requests,
        cancel_odds=rng.choice((0.0, 0.0, 0.03, 0.2)),
        failure_odds=rng.choice((0.0, 0.0, 0.05)),
        budget_odds=rng.choice((0.0, 0.1)),
        arrival_odds=rng.choice((0.1, 0.5, 1.0)),
        switch_odds=rng.choice((0.0, 0.0, 0.05)),
        has_wild_guesses=guessing.random() < 0.5,
        ahead_odds=random.Random(seed + 7).choice((0.0, 0.5, 1.0)),
    )


def _make_requests(rng: random.Random, together: random.Random) -> tuple[Request, ...]:
    """Prompts of shared pieces, so that prefixes and images repeat: some with one image swapped under the same text.

    Some images are alike, others only look so: their layouts differ, or they have none. Now and then a request brings
    an image that nobody else has, as those of a camera do.
    """
    texts = [tuple(rng.randrange(VOCAB_SIZE) for _ in range(rng.choice((1, 3, 7, 16, 33)))) for _ in range(3)]
    images = [ImageInput(f"image-{i}", rng.randint(1, 12), rng.randint(1, 5)) for i in range(4)]
    twin, odds = together.choice(images), together.choice((0.0, 0.7, 1.0))
    for i in range(4):
        like = twin if together.random() < odds else images[i]
        layout = (1,) if together.random() < odds else together.choice(((), (1,), (2,)))
        images[i] = ImageInput(f"image-{i}", like.num_embeds, like.num_slices, layout=layout)
    atomic, with_images = rng.random() < 0.3, rng.random() < 0.7
    layouts: list[list[tuple[int, ...] | ImageInput]] = []
    for _ in range(3):
        pieces: list[tuple[int, ...] | ImageInput] = []
        for _ in range(rng.randint(1, 5)):
            pieces.append(rng.choice(images) if with_images and rng.random() < 0.4 else rng.choice(texts))
        layouts.append(pieces)
    requests: list[Request] = []
    for number in range(rng.randint(1, 14)):
        pieces = list(rng.choice(layouts))
        if rng.random() < 0.4:
            pieces.append(rng.choice(texts))
        twins = [i for i, piece in enumerate(pieces) if isinstance(piece, ImageInput)]
        if twins and rng.random() < 0.5:
            pieces[rng.choice(twins)] = rng.choice(images)
        if with_images and together.random() < odds / 2:
            frame = ImageInput(f"frame-{number}", twin.num_embeds, twin.num_slices, layout=(1,))
            pieces.insert(together.randint(0, len(pieces)), frame)
        requests.append(_make_request(rng, f"r{number}", pieces, atomic))
    return tuple(requests)


def _make_request(
    rng: random.Random, request_id: str, pieces: Seq[tuple[int, ...] | ImageInput], atomic: bool
) -> Request:
    token_ids: list[int] = []
    spans: list[ImageSpan] = []
    for piece in pieces:
        if not isinstance(piece, ImageInput):
            token_ids += piece
            continue
        # Tiled: several runs of placeholders, a separator between them, one key. The layout follows from the image.
        tile = max(1, piece.num_embeds // 2) if piece.num_embeds % 3 == 0 else piece.num_embeds
        for offset in range(0, piece.num_embeds, tile):
            length = min(tile, piece.num_embeds - offset)
            spans.append(ImageSpan(len(token_ids), length, piece.key, offset, atomic))
            token_ids += [IMAGE_TOKEN] * length
            token_ids.append(1)
    num_rows = rng.choice((1, 3))
    positions = tuple(tuple(i - row for i in range(len(token_ids))) for row in range(num_rows))
    return Request(
        request_id=request_id,
        prompt=Prepared(
            token_ids=tuple(token_ids),
            images=tuple(dict.fromkeys(piece for piece in pieces if isinstance(piece, ImageInput))),
            spans=tuple(spans),
            positions=positions,
            decode_delta=rng.choice((0, -3)),
        ),
        sampling=SamplingParams(
            max_tokens=rng.choice((1, 8, 20, 40)),
            seed=rng.choice((None, 1)),
            stop_token_ids=frozenset(rng.sample(range(VOCAB_SIZE), rng.choice((0, 0, 2)))),
        ),
        request_class=rng.choice(tuple(RequestClass)),
    )


def _make_rush(
    rng: random.Random, requests: tuple[Request, ...], limits: SchedulerLimits
) -> tuple[tuple[Request, ...], SchedulerLimits]:
    """Cameras of two layouts instead, each with a frame of its own that is quickly encoded; two or three have room."""
    sizes = {layout: rng.randint(4, 9) for layout in ((1,), (2,))}
    frames: list[Request] = []
    for request in requests:
        layout = rng.choice(tuple(sizes))
        frame = ImageInput(f"{request.request_id}'s", sizes[layout], 1, layout=layout)
        made = _make_request(rng, request.request_id, [frame, (1, 2, 3)], atomic=False)
        frames.append(replace(made, request_class=RequestClass.BACKGROUND))
    return tuple(frames), replace(
        limits,
        encoder_cache_embeds=2 * max(sizes.values()),
        idle_encoder_slices_per_step=4,
        max_encoder_batch=rng.choice((2, 4)),
    )


def _made_guessable(rng: random.Random, request: Request) -> Request:
    """Most answers repeat their prompts, and are longer for it; the others make guesses that are mostly wrong."""
    if rng.random() < 0.3:
        return request
    max_tokens = request.sampling.max_tokens * rng.choice((1, 3))
    return replace(request, sampling=replace(request.sampling, seed=COPIES, max_tokens=max_tokens))


def never_fits(request: Request, limits: SchedulerLimits) -> bool:
    """Whether a request is beyond any of the limits, told independently of the scheduler."""
    prompt = request.prompt
    atomic_len = max((span.length for span in prompt.spans if span.atomic), default=0)
    return (
        len(prompt.token_ids) + 1 > limits.max_model_len
        or len(prompt.token_ids) > limits.num_blocks * limits.block_size
        or any(image.num_embeds > limits.encoder_cache_embeds for image in prompt.images)
        or atomic_len + limits.max_num_seqs - 1 > limits.hard_num_batched_tokens
    )
