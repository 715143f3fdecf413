"""Executes Steps: drops and advances image encoders, runs the flattened forward pass, samples.

It owns the KV pool, the encoder cache and the text backend, and runs on the engine thread alone. It knows nothing
of sequences, queues or policies: a Step is complete in itself, but for tokens that the one before it samples, which
need not leave the device in between. On a GPU nothing is waited for until a step lands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from backend.runtime.batch import StepTensors, build_step_tensors
from backend.runtime.choosing import Draw, draw, is_greedy
from backend.runtime.encoder_cache import EncoderCache
from backend.runtime.flight import Computed, LaunchedStep
from backend.runtime.graph_check import with_graphs
from backend.runtime.kv_pool import KvPool
from backend.runtime.prompt_logprobs import score_prompts
from backend.runtime.text_backend import make_text
from backend.runtime.upload import upload
from backend.types.result import StepResult
from backend.types.step import AWAITED_TOKEN_ID, Chunk, Step

if TYPE_CHECKING:
    from backend.models.adapter import ModelAdapter
    from backend.runtime.graphs import Recorder
    from backend.runtime.text_backend import TextBackend


def build_runner(
    adapter: ModelAdapter,
    *,
    num_blocks: int,
    block_size: int,
    attention: str = "sdpa",
    text: str = "torch",
    recorder: Recorder | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Runner:
    """A runner with a pool of its own, on the adapter's device and in its dtype.

    `text` names what computes the text model (see `text_backend`), `attention` what "torch" attends with. With a
    `recorder` its decode steps become graphs, in a pool of one block more, if they pass their check: `say` is told.
    Raises `ConfigError` for an unknown name and for a text backend that cannot compute this model here.
    """
    is_graphed = recorder is not None and text == "torch"
    pool = KvPool(
        adapter.spec,
        num_blocks=num_blocks + is_graphed,
        block_size=block_size,
        dtype=adapter.dtype,
        device=adapter.device,
    )
    backend = make_text(text, adapter, pool, attention=attention)
    if recorder is not None and is_graphed:
        backend = with_graphs(backend, adapter, pool, recorder, say)
    return Runner(adapter, backend, EncoderCache(adapter), block_size=block_size, pool=pool)


class Runner:
    """One model, one pool, one step after the other."""

    def __init__(
        self,
        adapter: ModelAdapter,
        text: TextBackend,
        encoders: EncoderCache,
        *,
        block_size: int,
        pool: KvPool | None = None,
    ) -> None:
        """`pool` is where `text` keeps keys and values, if it keeps any."""
        self._adapter = adapter
        self._text = text
        self._encoders = encoders
        self._block_size = block_size
        self._pool = pool
        self._newest: LaunchedStep | None = None

    def execute(self, step: Step) -> StepResult:
        """Compute one step. Failures of single images or requests are in the result; anything raised is fatal."""
        return self.launch(step).land()

    def launch(self, step: Step) -> LaunchedStep:
        """Compute one step, or on a GPU queue it; see `StepRunner.launch`."""
        # Entered here, around every resumption of a paused encoder: the mode belongs to the thread, and an encoder that
        # entered it by itself would leave it switched on, or end it under another, whenever it pauses.
        with torch.inference_mode():
            for key in step.evictions:
                self._encoders.drop(key)
            # Chunks use embeddings of earlier steps, so what this step encodes is not looked at before the next one.
            failed_images = self._advance_encoders(step)
            ready, failed = self._split_ready(step.chunks)
            computed = self._compute(ready) if ready else Computed()
            self._newest = LaunchedStep(step, computed, failed, failed_images, self._adapter.device, self._pool)
        return self._newest

    def close(self) -> None:
        """End paused encoders. Call it on the thread that executed the steps."""
        self._encoders.close()

    def _advance_encoders(self, step: Step) -> dict[str, str]:
        failed: dict[str, str] = {}
        for piece in step.encodes:
            failed |= self._encoders.advance(piece)
        return failed

    def _split_ready(self, chunks: tuple[Chunk, ...]) -> tuple[list[Chunk], dict[str, str]]:
        """Chunks whose image rows are all here, and the reason for each request whose are not."""
        ready: list[Chunk] = []
        failed: dict[str, str] = {}
        for chunk in chunks:
            if not chunk.embeds or all(self._encoders.find_rows(e.key) is not None for e in chunk.embeds):
                ready.append(chunk)
            else:
                failed[chunk.request_id] = "an image's embeddings are not resident"
        return ready, failed

    def _compute(self, chunks: list[Chunk]) -> Computed:
        tensors = build_step_tensors(
            chunks,
            block_size=self._block_size,
            num_position_rows=self._adapter.spec.num_position_rows,
            device=self._adapter.device,
        )
        self._fill_awaited(chunks, tensors)
        if self._pool is not None:
            self._pool.heal(chunks)
        hidden = self._text.forward(self._embed(tensors), tensors.positions, tensors.attention)
        told = score_prompts(chunks, tensors.attention.query_starts, hidden, self._text.logits)
        chosen = tensors.sampling_chunks
        if not chosen:
            return Computed(told=told)
        hidden = hidden.index_select(0, tensors.sample_rows)
        if all(is_greedy(chunk.sampling) for chunk in chosen):
            return Computed(chosen, Draw(self._text.likeliest(hidden)), told)
        rows = [(chunk, row) for chunk in chosen for row in range(chunk.num_drafts + 1)]
        indices = [chunk.sample_index + row for chunk, row in rows]
        return Computed(chosen, draw(self._text.logits(hidden), [chunk for chunk, _ in rows], indices), told)

    def _fill_awaited(self, chunks: list[Chunk], tensors: StepTensors) -> None:
        """Put tokens that the step before this one sampled where a step made ahead could not name them."""
        starts = tensors.attention.query_starts
        placed = zip(starts, chunks, strict=False)
        awaited = [(row, chunk.request_id) for row, chunk in placed if chunk.token_ids[0] == AWAITED_TOKEN_ID]
        if awaited:
            assert self._newest is not None, "a first step awaits nothing"
            rows = upload([row for row, _ in awaited], torch.int64, self._adapter.device)
            tensors.token_ids.index_copy_(0, rows, self._newest.tokens_of([request_id for _, request_id in awaited]))

    def _embed(self, tensors: StepTensors) -> torch.Tensor:
        """Embeddings [T, H]: the table's rows, and image rows where images are."""
        embeds = self._adapter.embed(tensors.token_ids)
        for e in tensors.embeds:
            rows = self._encoders.find_rows(e.key)
            assert rows is not None, "checked before the step was laid out"
            embeds[e.dest : e.dest + e.length] = rows[e.row : e.row + e.length]
        return embeds
