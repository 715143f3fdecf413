"""Plain text decoders: Llama and the families that differ from it only inside their layers."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from transformers import AutoModelForCausalLM, AutoTokenizer

from backend.errors import Rejected
from backend.models import chat_template
from backend.models.hf_adapter import HfAdapter
from backend.models.prompt_text import PromptText
from backend.types.request import ImageInput, Prepared

if TYPE_CHECKING:
    import torch
    from PIL import Image
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from backend.models.adapter import Message
    from backend.models.checkpoint import Checkpoint


class TextDecoder(HfAdapter):
    """`ModelAdapter` of a text-only checkpoint."""

    def __init__(self, checkpoint: Checkpoint, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__(checkpoint, model, tokenizer)
        self._prompt_text = PromptText(tokenizer)

    @classmethod
    def load(cls, checkpoint: Checkpoint) -> TextDecoder:
        """Read tokenizer and weights. Raises `ModelLoadError`."""
        tokenizer = checkpoint.load_part(AutoTokenizer.from_pretrained)
        return cls(checkpoint, checkpoint.load_model(AutoModelForCausalLM.from_pretrained), tokenizer)

    def prepare(
        self, messages: Sequence[Message], images: Sequence[Image.Image], tools: Sequence[Mapping[str, Any]] = ()
    ) -> Prepared:
        """See `ModelAdapter.prepare`. Raises `Rejected` for image parts: they are never dropped silently."""
        if images:
            raise Rejected("this model takes text only, not images", param="messages")
        marked = self._prompt_text.mark(chat_template.as_text(messages))
        marked_tools = self._prompt_text.mark_all(tools)
        prompt = chat_template.render(self.tokenizer, self.chat_template, marked, marked_tools)
        token_ids = self._prompt_text.encode(prompt)
        return Prepared(token_ids, images=(), spans=(), positions=(range(len(token_ids)),))

    def encode(self, image: ImageInput) -> Generator[None, None, torch.Tensor]:
        """Never called with an image of this model's: `prepare` makes none."""
        raise Rejected(f"this model takes text only, not images (image {image.key})")

    def encode_together(self, images: Sequence[ImageInput]) -> Generator[None, None, tuple[torch.Tensor, ...]]:
        """Never called, either."""
        raise Rejected(f"this model takes text only, not images ({len(images)} of them)")
