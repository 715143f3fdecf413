"""Times steps of the text model by text backends: `python -m tests.bench.step_time MODEL_DIR [BACKEND …]`.

Decode steps with 200 tokens of context a sequence, prompt chunks from an empty pool; the shortest of many runs, and CPU
time of all threads, which says more than wall time on a machine that others use. The last column is the time that one
step of the runner takes outside the text model.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch

from backend.models.registry import load
from backend.runtime.batch import build_step_tensors
from backend.runtime.kv_pool import KvPool
from backend.runtime.text_backend import TEXT_BACKENDS, make_text
from backend.types.request import SamplingParams
from backend.types.step import Chunk

BLOCK_SIZE, CONTEXT = 16, 200
SHAPES = (("decode 1", 1, 1), ("decode 2", 2, 1), ("decode 8", 8, 1), ("prefill 64", 1, 64), ("prefill 256", 1, 256))


def chunks_of(num_seqs: int, num_tokens: int) -> list[Chunk]:
    start = CONTEXT if num_tokens == 1 else 0
    blocks = -(-(start + num_tokens) // BLOCK_SIZE)
    return [
        Chunk(
            request_id=str(seq),
            token_ids=tuple(range(100, 100 + num_tokens)),
            start=start,
            positions=(range(start, start + num_tokens),),
            block_ids=tuple(range(seq * blocks, (seq + 1) * blocks)),
            embeds=(),
            samples=True,
            sample_index=0,
            sampling=SamplingParams(max_tokens=1, temperature=0.0),
            is_decode=num_tokens == 1,
        )
        for seq in range(num_seqs)
    ]


def shortest(call: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Milliseconds of wall and of CPU time."""
    call()
    wall, cpu = [], []
    for _ in range(repeats):
        t, c = time.perf_counter(), time.process_time()
        call()
        wall.append(time.perf_counter() - t)
        cpu.append(time.process_time() - c)
    return min(wall) * 1e3, min(cpu) * 1e3


def main(model: str, *names: str) -> None:
    adapter = load(model, device="cpu", dtype="float32")
    print(f"{'backend':<12} {'step':<12} {'wall ms':>8} {'CPU ms':>8} {'tokens/s':>9} {'layout us':>10}")
    for name in names or TEXT_BACKENDS:
        pool = KvPool(adapter.spec, num_blocks=256, block_size=BLOCK_SIZE, dtype=torch.float32, device=adapter.device)
        text = make_text(name, adapter, pool, attention="sdpa")
        for title, num_seqs, num_tokens in SHAPES:
            chunks = chunks_of(num_seqs, num_tokens)

            def lay_out(chunks: list[Chunk] = chunks) -> object:
                return build_step_tensors(chunks, block_size=BLOCK_SIZE, num_position_rows=1, device=adapter.device)

            tensors = build_step_tensors(chunks, block_size=BLOCK_SIZE, num_position_rows=1, device=adapter.device)

            def step(tensors=tensors, text=text) -> object:  # noqa: ANN001
                hidden = text.forward(adapter.embed(tensors.token_ids), tensors.positions, tensors.attention)
                return text.logits(hidden.index_select(0, tensors.sample_rows)).max(-1)

            with torch.inference_mode():
                wall, cpu = shortest(step, 30 if num_tokens == 1 else 8)
                layout, _ = shortest(lay_out, 30)
            rate = num_seqs * num_tokens / wall * 1e3
            print(f"{name:<12} {title:<12} {wall:8.2f} {cpu:8.2f} {rate:9.0f} {layout * 1e3:10.0f}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
