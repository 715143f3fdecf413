"""A step that the runner has launched: what was chosen is on its way to the host, and is made a result when read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from backend.runtime.choosing import Draw
from backend.runtime.download import Download
from backend.runtime.kv_pool import KvPool
from backend.runtime.sampler import INVALID_TOKEN_ID
from backend.runtime.upload import upload
from backend.types.result import PromptLogprobs, StepResult, TokenLogprobs
from backend.types.step import Chunk, Step


@dataclass(slots=True)
class Computed:
    """What running the model came to: rows for each token that a sampling chunk may come to, and what prompts did."""

    chunks: Sequence[Chunk] = ()
    draw: Draw | None = None
    told: dict[str, PromptLogprobs] = field(default_factory=dict)


class LaunchedStep:
    """`Flight` of the runner's. `pool` is told of blocks that hold what is no finite number."""

    def __init__(
        self,
        step: Step,
        computed: Computed,
        failed_requests: dict[str, str],
        failed_images: dict[str, str],
        device: torch.device,
        pool: KvPool | None,
    ) -> None:
        self._step_id = step.step_id
        self._computed = computed
        self._failed_requests = failed_requests
        self._failed_images = failed_images
        self._pool = pool
        draw = computed.draw
        # Of nothing where nothing is chosen: the time of a step is measured around its landing.
        self._token_ids = Download(torch.empty(0, dtype=torch.int64, device=device) if draw is None else draw.token_ids)

    @property
    def is_smooth(self) -> bool:
        """See `Flight.is_smooth`."""
        return not self._failed_requests and not self._failed_images

    def tokens_of(self, request_ids: Sequence[str]) -> torch.Tensor:
        """The tokens sampled for these requests, int64 [n] on the device: nobody waits for them.

        One that is no token counts as the first of all, for what follows it is thrown away. Without guesses only.
        """
        draw = self._computed.draw
        assert draw is not None, "nothing was sampled that could be awaited"
        row_by_id = {chunk.request_id: row for row, chunk in enumerate(self._computed.chunks)}
        rows = upload([row_by_id[request_id] for request_id in request_ids], torch.int64, draw.token_ids.device)
        return draw.token_ids.index_select(0, rows).clamp_min_(0)

    def land(self) -> StepResult:
        """See `Flight.land`."""
        chunks, draw, told = self._computed.chunks, self._computed.draw, self._computed.told
        token_ids = self._token_ids.read()
        if draw is None:
            return StepResult(self._step_id, {}, self._failed_requests, self._failed_images, {}, told)
        logprobs_by_row = draw.logprobs_of(token_ids)
        failed = self._failed_requests | draw.failed
        sampled: dict[str, tuple[int, ...]] = {}
        logprobs: dict[str, tuple[TokenLogprobs, ...]] = {}
        is_plain = not failed and not logprobs_by_row and INVALID_TOKEN_ID not in token_ids
        if is_plain and len(token_ids) == len(chunks):
            # A token each and nothing to be told with it, as in most steps.
            sampled = {chunk.request_id: (id_,) for chunk, id_ in zip(chunks, token_ids, strict=True)}
            return StepResult(self._step_id, sampled, failed, self._failed_images, logprobs, told)
        end = 0
        for chunk in chunks:
            first, end = end, end + chunk.num_drafts + 1
            kept = tuple(token_ids[first : first + num_kept(chunk.drafts, token_ids[first:end])])
            if chunk.request_id in failed:
                continue
            if INVALID_TOKEN_ID in kept:
                failed[chunk.request_id] = "the model's logits are not finite numbers"
                if self._pool is not None:
                    self._pool.spoil(chunk.block_ids)
                continue
            sampled[chunk.request_id] = kept
            if first in logprobs_by_row:
                logprobs[chunk.request_id] = tuple(logprobs_by_row[first + row] for row in range(len(kept)))
        return StepResult(self._step_id, sampled, failed, self._failed_images, logprobs, told)


def num_kept(drafts: Sequence[int], token_ids: Sequence[int]) -> int:
    """How many rows of a chunk count: token i follows the guesses before it, so it does while those came true.

    Every token is drawn for its own place in the answer, so what is kept is what would have come without any guess.
    """
    pairs = enumerate(zip(drafts, token_ids, strict=False))
    return next((index + 1 for index, (guess, token_id) in pairs if guess != token_id), len(drafts) + 1)
