"""Executes Steps: drops and advances image encoders, runs the flattened forward pass, samples.

It owns the KV pool, the encoder cache and the text backend, and runs on the engine thread alone. It knows nothing
of sequences, queues or policies: a Step is complete in itself. On a GPU it waits for the sampled ids, or else once at
the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from backend.runtime.batch import StepTensors, build_step_tensors
from backend.runtime.choosing import Choice, choose, is_greedy
from backend.runtime.encoder_cache import EncoderCache
from backend.runtime.graph_check import with_graphs
from backend.runtime.kv_pool import KvPool
from backend.runtime.prompt_logprobs import score_prompts
from backend.runtime.sampler import INVALID_TOKEN_ID
from backend.runtime.text_backend import make_text
from backend.types import Chunk, PromptLogprobs, Step, StepResult, TokenLogprobs

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
    """One model, one pool, one step at a time."""

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

    def execute(self, step: Step) -> StepResult:
        """Compute one step. Failures of single images or requests are in the result; anything raised is fatal."""
        # Entered here, around every resumption of a paused encoder: the mode belongs to the thread, and an encoder that
        # entered it by itself would leave it switched on, or end it under another, whenever it pauses.
        with torch.inference_mode():
            for key in step.evictions:
                self._encoders.drop(key)
            # Chunks use embeddings of earlier steps, so what this step encodes is not looked at before the next one.
            failed_images = self._advance_encoders(step)
            ready, failed = self._split_ready(step.chunks)
            chosen, choice, told = self._compute(ready) if ready else ((), Choice([]), {})
            if not chosen and self._adapter.device.type == "cuda":
                # Nothing was waited for yet, and the time of a step is measured around it.
                torch.cuda.current_stream(self._adapter.device).synchronize()
        failed |= choice.failed
        sampled: dict[str, tuple[int, ...]] = {}
        logprobs: dict[str, tuple[TokenLogprobs, ...]] = {}
        is_plain = not failed and not choice.logprobs and INVALID_TOKEN_ID not in choice.token_ids
        if is_plain and len(choice.token_ids) == len(chosen):
            # A token each and nothing to be told with it, as in most steps.
            sampled = {chunk.request_id: (id_,) for chunk, id_ in zip(chosen, choice.token_ids, strict=True)}
            return StepResult(step.step_id, sampled, failed, failed_images, logprobs, told)
        end = 0
        for chunk in chosen:
            first, end = end, end + chunk.num_drafts + 1
            token_ids = tuple(choice.token_ids[first : first + num_kept(chunk.drafts, choice.token_ids[first:end])])
            if chunk.request_id in failed:
                continue
            if INVALID_TOKEN_ID in token_ids:
                failed[chunk.request_id] = "the model's logits are not finite numbers"
                if self._pool is not None:
                    self._pool.spoil(chunk.block_ids)
                continue
            sampled[chunk.request_id] = token_ids
            if first in choice.logprobs:
                logprobs[chunk.request_id] = tuple(choice.logprobs[first + row] for row in range(len(token_ids)))
        return StepResult(step.step_id, sampled, failed, failed_images, logprobs, told)

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

    def _compute(self, chunks: list[Chunk]) -> tuple[Sequence[Chunk], Choice, dict[str, PromptLogprobs]]:
        """Run the model; what was chosen, a row for each token that a sampling chunk may come to, and what prompts
        came to that are asked about."""
        tensors = build_step_tensors(
            chunks,
            block_size=self._block_size,
            num_position_rows=self._adapter.spec.num_position_rows,
            device=self._adapter.device,
        )
        if self._pool is not None:
            self._pool.heal(chunks)
        hidden = self._text.forward(self._embed(tensors), tensors.positions, tensors.attention)
        told = score_prompts(chunks, tensors.attention.query_starts, hidden, self._text.logits)
        chosen = tensors.sampling_chunks
        if not chosen:
            return (), Choice([]), told
        hidden = hidden.index_select(0, tensors.sample_rows)
        if all(is_greedy(chunk.sampling) for chunk in chosen):
            return chosen, Choice(self._text.likeliest(hidden)), told
        rows = [(chunk, row) for chunk in chosen for row in range(chunk.num_drafts + 1)]
        indices = [chunk.sample_index + row for chunk, row in rows]
        return chosen, choose(self._text.logits(hidden), [chunk for chunk, _ in rows], indices), told

    def _embed(self, tensors: StepTensors) -> torch.Tensor:
        """Embeddings [T, H]: the table's rows, and image rows where images are."""
        embeds = self._adapter.embed(tensors.token_ids)
        for e in tensors.embeds:
            rows = self._encoders.find_rows(e.key)
            assert rows is not None, "checked before the step was laid out"
            embeds[e.dest : e.dest + e.length] = rows[e.row : e.row + e.length]
        return embeds


def num_kept(drafts: Sequence[int], token_ids: Sequence[int]) -> int:
    """How many rows of a chunk count: token i follows the guesses before it, so it does while those came true.

    Every token is drawn for its own place in the answer, so what is kept is what would have come without any guess.
    """
    pairs = enumerate(zip(drafts, token_ids, strict=False))
    return next((index + 1 for index, (guess, token_id) in pairs if guess != token_id), len(drafts) + 1)
