"""What all families share: an HF text model run on flattened steps, its embeddings, its head, its facts.

Families add how messages become tokens and images become rows. Knows nothing of images, scheduling or the KV pool.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from backend.errors import ModelLoadError
from backend.models.adapter import ModelSpec, TextParts
from backend.models.hf_attention import route_text_attention

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from backend.models.adapter import VisionBlocks
    from backend.models.checkpoint import Checkpoint


TEXT_FAMILIES = (
    "gemma2",
    "gemma3_text",
    "granite",
    "llama",
    "mistral",
    "olmo2",
    "phi3",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "smollm3",
)
"""Text models that run unchanged on this engine's attention."""


class HfAdapter:
    """The text side of a `ModelAdapter`. `spec`, `tokenizer`, `device` and `dtype` as the protocol says."""

    vision_blocks: VisionBlocks | None = None

    def __init__(
        self,
        checkpoint: Checkpoint,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        image_token_id: int | None = None,
        max_embeds_per_image: int = 0,
    ) -> None:
        route_text_attention(model)
        self.tokenizer = tokenizer
        self.chat_template: Any = tokenizer.chat_template
        self.device = checkpoint.device
        self.dtype = checkpoint.dtype
        self._text = model.get_decoder()
        self._table = model.get_input_embeddings()
        head = model.get_output_embeddings()
        if head is None:
            raise ModelLoadError(f"model {checkpoint.source!r} has no language-modelling head")
        self._head = head
        config = self._text.config
        self._logit_divisor: float = getattr(config, "logits_scaling", None) or 1.0
        self._logit_cap: float | None = getattr(config, "final_logit_softcapping", None)
        self.spec = ModelSpec(
            family=checkpoint.config.model_type,
            num_layers=config.num_hidden_layers,
            num_kv_heads=config.num_key_value_heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
            hidden_size=config.hidden_size,
            vocab_size=config.vocab_size,
            max_model_len=config.max_position_embeddings,
            num_position_rows=1,
            eos_token_ids=_eos_token_ids(model.generation_config, model.config, config, tokenizer),
            image_token_id=image_token_id,
            max_embeds_per_image=max_embeds_per_image,
        )

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """See `ModelAdapter.embed`."""
        return self._table(token_ids)

    def forward(self, embeds: torch.Tensor, positions: torch.Tensor, plan: object) -> torch.Tensor:
        """See `ModelAdapter.forward`; `plan` is the step's `StepAttention`."""
        # One row is [1, T] to transformers; the three rows of M-RoPE are [3, 1, T].
        position_ids = positions if positions.shape[0] == 1 else positions[:, None]
        # use_cache=False: by default transformers would copy all keys and values into a cache of its own.
        output = self._text(inputs_embeds=embeds[None], position_ids=position_ids, use_cache=False, plan=plan)
        return output.last_hidden_state[0]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `ModelAdapter.logits`. HF's classes too scale (Granite) or cap (Gemma) after the head."""
        logits = self._head(hidden).float() / self._logit_divisor
        if self._logit_cap is None:
            return logits
        return torch.tanh(logits / self._logit_cap) * self._logit_cap

    def text_parts(self) -> TextParts:
        """See `ModelAdapter.text_parts`."""
        return TextParts(self._text, self._head, self._logit_divisor, self._logit_cap)


def require_text_family(checkpoint: Checkpoint) -> None:
    """Raise `ModelLoadError` unless the text model inside a vision-language checkpoint is of a supported family."""
    family = checkpoint.config.get_text_config().model_type
    if family not in TEXT_FAMILIES:
        raise ModelLoadError(
            f"model {checkpoint.source!r} has a text model of family {family!r}; "
            f"supported are: {', '.join(TEXT_FAMILIES)}"
        )


def _eos_token_ids(*sources: PreTrainedConfig | PreTrainedTokenizerBase | Any) -> frozenset[int]:
    """Every id that any of the sources calls end-of-sequence; each says None, one id, or a list."""
    ids: set[int] = set()
    for source in sources:
        value = getattr(source, "eos_token_id", None)
        ids.update(value if isinstance(value, list | tuple) else [] if value is None else [value])
    return frozenset(ids)
