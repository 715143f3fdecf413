"""What all vision-language families share: images into placeholders, spans, positions and content keys.

A family says how one image becomes pixels and prompt text, and how its tower makes rows of them. Which rows of which
image replace which tokens is worked out here, from the token ids themselves.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import torch

from backend.errors import ModelLoadError, Rejected
from backend.models import chat_template
from backend.models.hf_adapter import HfAdapter
from backend.models.prompt_text import PromptText
from backend.types.request import ImageInput, ImageSpan, Prepared

if TYPE_CHECKING:
    from PIL import Image
    from transformers import PreTrainedModel

    from backend.models.adapter import Message
    from backend.models.checkpoint import Checkpoint
    from backend.types.request import PositionRows


@dataclass(frozen=True, slots=True)
class ProcessedImage:
    """One image after its processor: `pixels` fp32 on the CPU, and the prompt text that stands for it.

    `pixels` are tiles [n, 3, S, S] or patches [P, K], as the family's tower wants them. `grid` says how many rows and
    columns the image is, of embeddings for families whose positions follow them, of pixels for LLaVA-OneVision.
    """

    pixels: torch.Tensor
    placeholder: str
    grid: tuple[int, int] = (0, 0)


def processed_of(images: Sequence[ImageInput]) -> list[ProcessedImage]:
    """What an adapter's own `process` made of its images."""
    processed = [pixels for pixels in (image.pixels for image in images) if isinstance(pixels, ProcessedImage)]
    assert len(processed) == len(images), "images of this adapter's own making"
    return processed


class VisionLanguageAdapter(HfAdapter):
    """`ModelAdapter` of a model that takes images, up to what differs between families.

    `image_mark` is what the chat template writes where an image goes (default: the placeholder token itself). With
    `atomic` no run of placeholders may be split between two chunks.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        model: PreTrainedModel,
        processor: Any,
        *,
        max_embeds_per_image: int,
        min_embeds_per_image: int,
        max_image_side: int,
        image_token: str | None = None,
        image_mark: str | None = None,
        atomic: bool = False,
    ) -> None:
        image_token_id = model.config.image_token_id
        placeholder: str = image_token or processor.image_token
        if processor.tokenizer.convert_tokens_to_ids(placeholder) != image_token_id:
            raise ModelLoadError(f"model {checkpoint.source!r}: its tokenizer's {placeholder!r} is not its image token")
        super().__init__(
            checkpoint,
            model,
            processor.tokenizer,
            image_token_id=image_token_id,
            max_embeds_per_image=max_embeds_per_image,
        )
        self.spec = replace(self.spec, min_embeds_per_image=min_embeds_per_image, max_image_side=max_image_side)
        self._prompt_text = PromptText(processor.tokenizer)
        self._image_token = placeholder
        self._image_mark = image_mark or placeholder
        self._image_token_id: int = image_token_id
        self._is_atomic = atomic
        self.chat_template = processor.chat_template or processor.tokenizer.chat_template

    @abstractmethod
    def process(self, image: Image.Image) -> ProcessedImage:
        """Run the family's image processor on one RGB image. Pure; thread-safe."""

    def process_beside(self, image: Image.Image, num_images: int) -> ProcessedImage:
        """`process` for one of `num_images` of a prompt: here their number makes no difference. Pure; thread-safe."""
        return self.process(image)

    @abstractmethod
    def num_slices(self, processed: ProcessedImage) -> int:
        """How many slices `encode` will take for the image. Pure; thread-safe."""

    @abstractmethod
    def encode_together(self, images: Sequence[ImageInput]) -> Generator[None, None, tuple[torch.Tensor, ...]]:
        """See `ModelAdapter.encode_together`; `pixels` of each is what `process` made. One image may come, too."""

    def encode(self, image: ImageInput) -> Generator[None, None, torch.Tensor]:
        """See `ModelAdapter.encode`."""
        return (yield from self.encode_together((image,)))[0]

    def layout(self, processed: ProcessedImage) -> tuple[int, ...]:
        """What images have in common that can be encoded together; empty for those that cannot."""
        return (*processed.pixels.shape, *processed.grid)

    def positions(self, num_tokens: int, runs: Sequence[tuple[ImageSpan, ProcessedImage]]) -> tuple[PositionRows, int]:
        """Positions of a prompt with image `runs`, in order of place, and the delta of later tokens: here the index."""
        return (range(num_tokens),), 0

    def prepare(
        self, messages: Sequence[Message], images: Sequence[Image.Image], tools: Sequence[Mapping[str, Any]] = ()
    ) -> Prepared:
        """See `ModelAdapter.prepare`. Raises `Rejected` also for text that contains the image placeholder."""
        self._check_messages(messages, len(images))
        marked = self._prompt_text.mark(chat_template.as_parts(messages))
        marked_tools = self._prompt_text.mark_all(tools)
        prompt = chat_template.render(self.tokenizer, self.chat_template, marked, marked_tools)
        pieces = prompt.split(self._image_mark)
        if len(pieces) != len(images) + 1:
            raise Rejected(
                f"the model's chat template places {len(pieces) - 1} of {len(images)} images", param="messages"
            )
        # By index, so that no name here keeps an image while the next is made.
        processed = [self._process_or_reject(i, images[i], len(images)) for i in range(len(images))]
        inputs = [self._to_input(p) for p in processed]
        expanded = pieces[0] + "".join(p.placeholder + rest for p, rest in zip(processed, pieces[1:], strict=True))
        token_ids = self._prompt_text.encode(expanded)
        runs = self._find_runs(token_ids, inputs)
        rows, delta = self.positions(len(token_ids), [(span, processed[i]) for i, span in runs])
        return Prepared(
            token_ids=token_ids,
            images=tuple({i.key: i for i in inputs}.values()),
            spans=tuple(span for _, span in runs),
            positions=rows,
            decode_delta=delta,
        )

    def _check_messages(self, messages: Sequence[Message], num_images: int) -> None:
        if chat_template.num_image_parts(messages) != num_images:
            raise Rejected(
                f"the messages refer to {chat_template.num_image_parts(messages)} images, {num_images} were given",
                param="messages",
            )
        for word in dict.fromkeys((self._image_token, self._image_mark)):
            if any(word in text for text in chat_template.texts_of(messages)):
                raise Rejected(
                    f"the text contains {word!r}, which this model keeps for images; reword it", param="messages"
                )

    def _process_or_reject(self, index: int, image: Image.Image, num_images: int) -> ProcessedImage:
        try:
            return self.process_beside(image, num_images)
        except Exception as error:  # whatever a processor trips over is a property of this image, never of the engine
            width, height = image.size
            raise Rejected(
                f"image {index + 1} ({width}x{height}) cannot be processed by this model: {error}", param="messages"
            ) from error

    def _to_input(self, processed: ProcessedImage) -> ImageInput:
        pixels = processed.pixels.contiguous()
        digest = blake2b(digest_size=16)
        # The pixels are what is encoded; with the rest they hold all that processing decided.
        rest = (self.spec.family, tuple(pixels.shape), pixels.dtype, processed.placeholder, processed.grid)
        digest.update(repr(rest).encode())
        digest.update(pixels.numpy().data)
        return ImageInput(
            key=digest.hexdigest(),
            num_embeds=processed.placeholder.count(self._image_token),
            num_slices=self.num_slices(processed),
            pixels=replace(processed, pixels=pixels),
            layout=self.layout(processed),
        )

    def _find_runs(self, token_ids: tuple[int, ...], images: Sequence[ImageInput]) -> list[tuple[int, ImageSpan]]:
        """The runs of placeholders, handed to the images in order, each with the number of its image.

        No run reaches from one image into the next.
        """
        places = [i for i, token_id in enumerate(token_ids) if token_id == self._image_token_id]
        if len(places) != sum(i.num_embeds for i in images):
            raise Rejected(
                f"the prompt has {len(places)} image placeholders for {sum(i.num_embeds for i in images)} image rows",
                param="messages",
            )
        runs: list[tuple[int, ImageSpan]] = []
        first = 0
        for number, image in enumerate(images):
            own = places[first : first + image.num_embeds]
            starts = [n for n in range(len(own)) if n == 0 or own[n] != own[n - 1] + 1]
            for n, end in zip(starts, [*starts[1:], len(own)], strict=True):
                runs.append((number, ImageSpan(own[n], end - n, image.key, offset=n, atomic=self._is_atomic)))
            first += image.num_embeds
        return runs

    def _to_device(self, pixels: torch.Tensor) -> torch.Tensor:
        if self.device.type == "cpu":
            return pixels.to(self.dtype)
        return pixels.pin_memory().to(self.device, non_blocking=True).to(self.dtype)
