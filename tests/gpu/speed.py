"""Decode steps against the memory's rate, a prompt against the rate of products, a picture and its slices."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from typing import TypeVar

import torch

from backend.models.adapter import encoded
from backend.runtime.closeness import MAX_ERROR, relative_error
from backend.runtime.runner import Runner
from backend.types.request import SamplingParams
from backend.types.step import Chunk, Step
from tests.gpu.made_models import Made
from tests.gpu.prompts import picture_prompt, random_ids
from tests.gpu.rates import Rates, percentile, settle, timed
from tests.gpu.runners import BLOCK_SIZE, runner_of
from tests.gpu.table import OK, Row

T = TypeVar("T")

GREEDY = SamplingParams(max_tokens=1, temperature=0.0)


def decode_rows(
    made: Made, backend: str, rates: Rates, widths: tuple[int, ...], context: int, repeats: int
) -> Iterator[Row]:
    """Steps of so many sequences of `context` tokens each, their ids waited for; the floor is what must be read."""
    blocks_each = -(-(context + 1) // BLOCK_SIZE)
    runner = runner_of(made, backend, max(widths) * blocks_each)
    for width in widths:
        step = Step(0, tuple(_chunk(made, i, context, 1, blocks_each) for i in range(width)))
        taken_s = percentile(timed(made.adapter.device.type, lambda step=step: _execute(runner, step), repeats), 50)
        read = made.num_weight_bytes + width * (context + 1) * _kv_bytes_per_token(made)
        floor_s = read / rates.bytes_per_s
        figures = f"{taken_s * 1e3:.2f} ms, floor {floor_s * 1e3:.3f} ms, {taken_s / floor_s:.1f} times it"
        yield Row("decode", made.name, f"{backend}, {width} x {context}", figures)


def prefill_rows(made: Made, backend: str, rates: Rates, num_tokens: int, repeats: int) -> Iterator[Row]:
    """A prompt in one chunk; the share of the measured rate of products that its layers come to."""
    num_blocks = -(-num_tokens // BLOCK_SIZE)
    runner = runner_of(made, backend, num_blocks)
    step = Step(0, (_chunk(made, 0, 0, num_tokens, num_blocks),))
    taken_s = percentile(timed(made.adapter.device.type, lambda: _execute(runner, step), repeats), 50)
    spec = made.adapter.spec
    attention = 2 * spec.num_layers * made.num_heads * spec.head_dim * num_tokens**2  # half of it is masked
    flops = 2 * made.num_layer_weights * num_tokens + attention
    share = flops / taken_s / rates.flops_per_s
    figures = f"{taken_s * 1e3:.2f} ms, {num_tokens / taken_s:,.0f} tokens/s, {share:.1%} of the products' rate"
    yield Row("prefill", made.name, f"{backend}, {num_tokens} tokens", figures)


def picture_rows(made: Made, repeats: int) -> Iterator[Row]:
    """One frame, encoded in slices, the device waited for after each, and without waiting between them."""
    device = made.adapter.device.type
    image = picture_prompt(made, "frame", 1, 1, torch.Generator().manual_seed(5)).images[0]

    def encode() -> list[float]:
        slices = []
        with torch.inference_mode():
            encoding = made.adapter.encode(image)
            while True:
                started = time.perf_counter()
                done = next(encoding, "done") is not None
                settle(device)
                slices.append(time.perf_counter() - started)
                if done:
                    return slices

    def encode_at_once() -> None:
        with torch.inference_mode():
            for _ in made.adapter.encode(image):
                pass

    slices = min((encode() for _ in range(repeats)), key=sum)
    assert len(slices) == image.num_slices, f"{len(slices)} slices instead of {image.num_slices}"
    whole_s = percentile(timed(device, encode_at_once, repeats), 50)
    figures = (
        f"{whole_s * 1e3:.2f} ms; {len(slices)} slices, median {percentile(slices, 50) * 1e3:.2f} ms, "
        f"longest {max(slices) * 1e3:.2f} ms"
    )
    yield Row("picture", made.name, f"one frame, {image.num_embeds} rows", figures)


def together_rows(made: Made, lengths: tuple[int, ...], repeats: int) -> Iterator[Row]:
    """Frames encoded in batches of these lengths: what each takes of what it takes alone, and whether its rows are."""
    device, dtype = made.adapter.device.type, made.adapter.dtype
    generator = torch.Generator().manual_seed(6)
    frames = [picture_prompt(made, str(i), 1, 1, generator).images[0] for i in range(max(lengths))]
    alone = [_run(made.adapter.encode(frame)) for frame in frames]
    alone_s = percentile(timed(device, lambda: _run(made.adapter.encode(frames[0])), repeats), 50)
    for length in lengths:
        batch = frames[:length]
        error = max(map(relative_error, _run(made.adapter.encode_together(batch)), alone[:length]))
        taken_s = percentile(timed(device, lambda b=batch: _run(made.adapter.encode_together(b)), repeats), 50)
        figures = f"{taken_s * 1e3:.2f} ms, each {taken_s / length / alone_s:.2f} of one alone; off by {error:.1%}"
        verdict = OK if error <= MAX_ERROR[dtype] else "not the rows of one alone"
        yield Row("picture", made.name, f"{length} frames together", figures, verdict)


@torch.inference_mode()
def _run(encoder: Generator[None, None, T]) -> T:
    return encoded(encoder)


def _chunk(made: Made, index: int, start: int, num_tokens: int, blocks_each: int) -> Chunk:
    generator = torch.Generator().manual_seed(index)
    ids = tuple(random_ids(made, num_tokens, generator))
    positions = tuple(range(start, start + num_tokens) for _ in range(made.adapter.spec.num_position_rows))
    blocks = tuple(range(index * blocks_each, (index + 1) * blocks_each))
    return Chunk(str(index), start, ids, positions, blocks, (), True, 0, GREEDY, is_decode=num_tokens == 1)


def _execute(runner: Runner, step: Step) -> None:
    result = runner.execute(step)
    if result.failed_requests:
        raise ArithmeticError(next(iter(result.failed_requests.values())))


def _kv_bytes_per_token(made: Made) -> int:
    spec = made.adapter.spec
    return 2 * spec.num_layers * spec.num_kv_heads * spec.head_dim * made.adapter.dtype.itemsize
