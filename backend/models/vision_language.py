"""What all vision-language families share: images into placeholders, spans and content keys; tiles into embeddings.

A family says how one image becomes tiles and prompt text, and how its tower encodes one tile. Which rows of which image
replace which tokens is worked out here, from the token ids themselves.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import torch

from backend.errors import ModelLoadError, Rejected
from backend.models import chat_template
from backend.models.hf_adapter import HfAdapter
from backend.models.prompt_text import PromptText
from backend.types import ImageInput, ImageSpan, Prepared

if TYPE_CHECKING:
    from PIL import Image
    from transformers import PreTrainedModel

    from backend.models.adapter import Message
    from backend.models.checkpoint import Checkpoint
    from backend.models.sliced import SlicedTower


@dataclass(frozen=True, slots=True)
class ProcessedImage:
    """One image after its processor: `tiles` fp32 [n, 3, S, S] on the CPU, and the prompt text that stands for it."""

    tiles: torch.Tensor
    placeholder: str


class VisionLanguageAdapter(HfAdapter):
    """`ModelAdapter` of a model that takes images, up to what differs between families.

    A family sets itself up before it calls this constructor, which runs its tower once, on a small grey image.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        model: PreTrainedModel,
        processor: Any,
        *,
        tower: SlicedTower,
        max_embeds_per_image: int,
        min_embeds_per_image: int,
        max_image_side: int,
    ) -> None:
        image_token_id = model.config.image_token_id
        if processor.tokenizer.convert_tokens_to_ids(processor.image_token) != image_token_id:
            raise ModelLoadError(
                f"model {checkpoint.source!r}: its tokenizer's {processor.image_token!r} is not its image token"
            )
        super().__init__(
            checkpoint,
            model,
            processor.tokenizer,
            image_token_id=image_token_id,
            max_embeds_per_image=max_embeds_per_image,
        )
        self.spec = replace(self.spec, min_embeds_per_image=min_embeds_per_image, max_image_side=max_image_side)
        self._prompt_text = PromptText(processor.tokenizer)
        self._image_token: str = processor.image_token
        self._image_token_id: int = image_token_id
        self._template = processor.chat_template or processor.tokenizer.chat_template
        self._tower = tower
        self._slices_per_tile = self._count_slices()

    @abstractmethod
    def process(self, image: Image.Image) -> ProcessedImage:
        """Run the family's image processor on one RGB image. Pure; thread-safe."""

    @abstractmethod
    def encode_tile(self, tile: torch.Tensor) -> torch.Tensor:
        """Rows [m, H] of one tile [1, 3, S, S], in one call of the tower."""

    def prepare(self, messages: Sequence[Message], images: Sequence[Image.Image]) -> Prepared:
        """See `ModelAdapter.prepare`. Raises `Rejected` also for text that contains the image placeholder."""
        self._check_messages(messages, len(images))
        marked = self._prompt_text.mark(chat_template.as_parts(messages))
        prompt = chat_template.render(self.tokenizer, self._template, marked)
        pieces = prompt.split(self._image_token)
        if len(pieces) != len(images) + 1:
            raise Rejected(
                f"the model's chat template places {len(pieces) - 1} of {len(images)} images", param="messages"
            )
        # By index, so that no name here keeps an image while the next is made.
        processed = [self._process_or_reject(i, images[i]) for i in range(len(images))]
        inputs = [self._to_input(p) for p in processed]
        expanded = pieces[0] + "".join(p.placeholder + rest for p, rest in zip(processed, pieces[1:], strict=True))
        token_ids = self._prompt_text.encode(expanded)
        return Prepared(
            token_ids=token_ids,
            images=tuple({i.key: i for i in inputs}.values()),
            spans=self._find_spans(token_ids, inputs),
            positions=(range(len(token_ids)),),
        )

    def encode(self, image: ImageInput) -> Generator[None, None, torch.Tensor]:
        """See `ModelAdapter.encode`: tile after tile, each paused where the tower pauses.

        A tile is encoded by itself, whatever its pixels: in a batch, HF takes an all-zero tile for padding and drops
        its rows.
        """
        tiles = image.pixels
        assert isinstance(tiles, torch.Tensor), "an image of this adapter's own making"
        rows: list[torch.Tensor] = []
        for index in range(len(tiles)):
            if rows:
                yield
            tile = self._to_device(tiles[index : index + 1])
            rows.append((yield from self._tower.run(lambda tile=tile: self.encode_tile(tile))))
        return torch.cat(rows)

    def _count_slices(self) -> int:
        """Slices of one tile: all of a family's tiles are of one shape, and where a tower pauses follows from it."""
        from PIL import Image

        tile = self._to_device(self.process(Image.new("RGB", (64, 64), "grey")).tiles[:1])
        with torch.inference_mode():
            return self._tower.count(lambda: self.encode_tile(tile))

    def _check_messages(self, messages: Sequence[Message], num_images: int) -> None:
        if chat_template.num_image_parts(messages) != num_images:
            raise Rejected(
                f"the messages refer to {chat_template.num_image_parts(messages)} images, {num_images} were given",
                param="messages",
            )
        if any(self._image_token in text for text in chat_template.texts_of(messages)):
            raise Rejected(
                f"the text contains {self._image_token!r}, which this model keeps for images; reword it",
                param="messages",
            )

    def _process_or_reject(self, index: int, image: Image.Image) -> ProcessedImage:
        try:
            return self.process(image)
        except Exception as error:  # whatever a processor trips over is a property of this image, never of the engine
            width, height = image.size
            raise Rejected(
                f"image {index + 1} ({width}x{height}) cannot be processed by this model: {error}", param="messages"
            ) from error

    def _to_input(self, processed: ProcessedImage) -> ImageInput:
        tiles = processed.tiles.contiguous()
        digest = blake2b(digest_size=16)
        # The tiles are what is encoded; with the family and the placeholder they hold all that processing decided.
        digest.update(repr((self.spec.family, tuple(tiles.shape), tiles.dtype, processed.placeholder)).encode())
        digest.update(tiles.numpy().data)
        return ImageInput(
            key=digest.hexdigest(),
            num_embeds=processed.placeholder.count(self._image_token),
            num_slices=len(tiles) * self._slices_per_tile,
            pixels=tiles,
        )

    def _find_spans(self, token_ids: tuple[int, ...], images: Sequence[ImageInput]) -> tuple[ImageSpan, ...]:
        """The runs of placeholders, handed to the images in order; no run reaches from one image into the next."""
        places = [i for i, token_id in enumerate(token_ids) if token_id == self._image_token_id]
        if len(places) != sum(i.num_embeds for i in images):
            raise Rejected(
                f"the prompt has {len(places)} image placeholders for {sum(i.num_embeds for i in images)} image rows",
                param="messages",
            )
        spans: list[ImageSpan] = []
        first = 0
        for image in images:
            own = places[first : first + image.num_embeds]
            starts = [n for n in range(len(own)) if n == 0 or own[n] != own[n - 1] + 1]
            for n, end in zip(starts, [*starts[1:], len(own)], strict=True):
                spans.append(ImageSpan(start=own[n], length=end - n, key=image.key, offset=n))
            first += image.num_embeds
        return tuple(spans)

    def _to_device(self, tile: torch.Tensor) -> torch.Tensor:
        if self.device.type == "cpu":
            return tile.to(self.dtype)
        return tile.pin_memory().to(self.device, non_blocking=True).to(self.dtype)
