"""Routes the attention of an HF text model to this engine's backends.

One function is registered with transformers; it finds the step's backend in the `plan` keyword that the text model
passes down to its layers. No mask function is registered: for a name without one, transformers builds no mask at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers import AttentionInterface

from backend.errors import ModelLoadError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from backend.runtime.attention.base import StepAttention

ATTENTION_NAME = "paged_engine"


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    *,
    plan: StepAttention,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """query [1, Hq, T, D], key and value [1, Hkv, T, D] -> [1, T, Hq, D]; `plan` is this step's.

    `attention_mask` is None and `dropout` 0 in every call; they are named because transformers passes them by place.
    """
    attended = plan.backend.run(
        module.layer_idx,  # type: ignore[arg-type]  # an int on every HF attention layer
        query[0],
        key[0],
        value[0],
        plan.plan,
        scale=scaling,
        sliding_window=sliding_window,
        softcap=softcap,
    )
    return attended[None], None


def route_text_attention(model: PreTrainedModel) -> None:
    """Select `paged_attention` for the text model inside `model`, and only for it.

    A vision tower keeps its own attention: it gets no plan. Raises `ModelLoadError` when transformers did not take the
    choice (for a class that is not ready for it, it only warns).
    """
    AttentionInterface.register(ATTENTION_NAME, paged_attention)
    text_config = model.get_decoder().config
    is_text_only = text_config is model.config
    model.set_attn_implementation(ATTENTION_NAME if is_text_only else {"text_config": ATTENTION_NAME})
    if text_config._attn_implementation != ATTENTION_NAME:
        raise ModelLoadError(f"{type(model).__name__}: transformers cannot replace this model's attention")
