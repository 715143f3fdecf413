"""A model that says what the test wants, behind the real engine and scheduler: error paths, slow steps, exact texts."""

from __future__ import annotations

import hashlib
import itertools
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from backend.config import EngineConfig
from backend.conversation import SamplingDefaults
from backend.engine import Engine
from backend.errors import Rejected
from backend.image_fetch import ImageFetcher
from backend.models.adapter import Message, ModelSpec, TextParts
from backend.request_builder import RequestBuilder
from backend.sched.policy import make_policy
from backend.sched.scheduler import Scheduler
from backend.service import Service
from backend.types.request import ImageInput, ImageSpan, Prepared
from backend.types.result import StepResult
from backend.types.scheduler import SchedulerLimits
from backend.types.step import Chunk, Step

EOS, IMAGE = "<eos>", "<image>"
NUM_EMBEDS = 4


def byte_tokenizer() -> Tokenizer:
    """One token per UTF-8 byte, so that every character border and every stop string falls between tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([EOS, IMAGE])
    return tokenizer


class ScriptedAdapter:
    """A ModelAdapter whose text side is real and small; nothing is ever computed with it."""

    def __init__(self, *, takes_images: bool = True, max_model_len: int = 256) -> None:
        self.core = byte_tokenizer()
        self.tokenizer: PreTrainedTokenizerBase = PreTrainedTokenizerFast(tokenizer_object=self.core, eos_token=EOS)
        self.chat_template: Any = None
        self.device, self.dtype = torch.device("cpu"), torch.float32
        self.vision_blocks = None
        self.seen_images: list[Image.Image] = []
        self.spec = ModelSpec(
            family="scripted",
            num_layers=1,
            num_kv_heads=1,
            head_dim=8,
            hidden_size=8,
            vocab_size=self.core.get_vocab_size(),
            max_model_len=max_model_len,
            num_position_rows=1,
            eos_token_ids=frozenset({self.id_of(EOS)}),
            image_token_id=self.id_of(IMAGE) if takes_images else None,
            max_embeds_per_image=NUM_EMBEDS if takes_images else 0,
            min_embeds_per_image=NUM_EMBEDS if takes_images else 0,
        )

    def id_of(self, token: str) -> int:
        token_id = self.core.token_to_id(token)
        assert token_id is not None
        return token_id

    def prepare(self, messages: Sequence[Message], images: Sequence[Image.Image], tools: Any = ()) -> Prepared:
        token_ids: list[int] = []
        inputs, spans = [], []
        pictures = iter(images)
        for message in messages:
            content: Any = message["content"]
            if content == "refuse me":
                raise Rejected("the template refuses these messages", param="messages")
            for part in [{"type": "text", "text": content}] if isinstance(content, str) else content:
                if part["type"] == "text":
                    token_ids += self.core.encode(part["text"]).ids
                    continue
                picture = next(pictures)
                self.seen_images.append(picture)
                key = hashlib.sha256(picture.tobytes()).hexdigest()
                inputs.append(ImageInput(key, NUM_EMBEDS, 2))
                spans.append(ImageSpan(len(token_ids), NUM_EMBEDS, key))
                token_ids += [self.id_of(IMAGE)] * NUM_EMBEDS
            token_ids.append(self.id_of(EOS))
        return Prepared(tuple(token_ids), tuple(inputs), tuple(spans), (range(len(token_ids)),))

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        raise AssertionError("nothing is computed here")

    def encode(self, image: ImageInput) -> Any:
        raise AssertionError("nothing is computed here")

    def encode_together(self, images: Sequence[ImageInput]) -> Any:
        raise AssertionError("nothing is computed here")

    def forward(self, embeds: torch.Tensor, positions: torch.Tensor, plan: object) -> torch.Tensor:
        raise AssertionError("nothing is computed here")

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        raise AssertionError("nothing is computed here")

    def text_parts(self) -> TextParts:
        raise AssertionError("nothing is computed here")


@dataclass(frozen=True)
class Landed:
    """A `Flight` whose step was computed when it was launched."""

    result: StepResult

    @property
    def is_smooth(self) -> bool:
        return not self.result.failed_requests and not self.result.failed_images

    def land(self) -> StepResult:
        return self.result


class ScriptedRunner:
    """Answers every request with `reply`, byte by byte, then with the end of the turn, over and over.

    `step_s` is how long a step takes. `hold()` makes the next step wait for `release()`. `fail_with` is raised by the
    next step; `fail_request` maps a substring of nothing: every request of the next step fails with that reason.
    """

    def __init__(self, adapter: ScriptedAdapter, reply: str = "Hello there.", *, step_s: float = 0.0) -> None:
        self.step_s = step_s
        self.fail_with: BaseException | None = None
        self.fail_requests: str | None = None
        self.fail_images: str | None = None
        self.steps: list[Step] = []
        self.num_closed = 0
        self._script = [*adapter.core.encode(reply).ids, adapter.id_of(EOS)]
        self._may_run = threading.Event()
        self._may_run.set()

    def hold(self) -> None:
        self._may_run.clear()

    def release(self) -> None:
        self._may_run.set()

    def launch(self, step: Step) -> Landed:
        return Landed(self.execute(step))

    def execute(self, step: Step) -> StepResult:
        assert self._may_run.wait(30), "the test never released the runner"
        self.steps.append(step)
        if self.fail_with is not None:
            raise self.fail_with
        time.sleep(self.step_s)
        if self.fail_requests:
            return StepResult(step.step_id, {}, failed_requests={c.request_id: self.fail_requests for c in step.chunks})
        if self.fail_images and step.encodes:
            return StepResult(step.step_id, {}, failed_images={e.image.key: self.fail_images for e in step.encodes})
        sampled = {c.request_id: self._say(c) for c in step.chunks if c.samples}
        return StepResult(step.step_id, sampled)

    def _say(self, chunk: Chunk) -> tuple[int, ...]:
        """The script from where the request is, as far as the guesses know it, and one token more."""
        script = [self._script[i % len(self._script)] for i in range(chunk.sample_index, chunk.sample_index + 99)]
        pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(chunk.drafts, script, strict=False))
        return tuple(script[: 1 + sum(1 for _ in pairs)])

    def close(self) -> None:
        self.num_closed += 1


def scripted_limits(**changes: Any) -> SchedulerLimits:
    values: dict[str, Any] = {
        "max_num_batched_tokens": 64,
        "hard_num_batched_tokens": 256,
        "max_num_seqs": 8,
        "max_model_len": 256,
        "num_blocks": 128,
        "block_size": 16,
    }
    return SchedulerLimits(**values | changes)


def scripted_service(
    runner: ScriptedRunner,
    adapter: ScriptedAdapter,
    *,
    limits: SchedulerLimits | None = None,
    defaults: SamplingDefaults | None = None,
    fetcher: ImageFetcher | None = None,
    **settings: Any,
) -> Service:
    """A Service around a scripted model, named `scripted`, its engine not started."""
    limits = limits or scripted_limits(max_model_len=adapter.spec.max_model_len)
    config = EngineConfig(model="scripted", **settings)
    return Service(
        config=config,
        engine=Engine(Scheduler(limits, make_policy("stall-free")), runner, limits),
        builder=RequestBuilder(
            adapter,
            max_model_len=limits.max_model_len,
            max_image_pixels=config.max_image_pixels,
            defaults=defaults,
            fetcher=fetcher,
        ),
        tokenizer=adapter.core,
        created=1,
    )
