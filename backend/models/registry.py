"""Model families by HF `model_type`, and the one way to load a model. A family is imported when it is needed."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from backend.models.checkpoint import open_checkpoint
from backend.models.hf_adapter import TEXT_FAMILIES

if TYPE_CHECKING:
    from backend.models.adapter import ModelAdapter

FAMILIES = {
    **dict.fromkeys(TEXT_FAMILIES, "backend.models.text_decoder:TextDecoder"),
    "fast_vlm": "backend.models.fast_vlm:FastVlm",
    "gemma3": "backend.models.gemma3:Gemma3",
    "idefics3": "backend.models.smolvlm:SmolVlm",
    "internvl": "backend.models.internvl:InternVl",
    "llava": "backend.models.llava:Llava",
    "llava_onevision": "backend.models.llava_onevision:LlavaOnevision",
    "qwen2_5_vl": "backend.models.qwen_vl:QwenVl",
    "qwen3_vl": "backend.models.qwen_vl:QwenVl",
    "smolvlm": "backend.models.smolvlm:SmolVlm",
}


def load(model: str, *, device: str, dtype: str) -> ModelAdapter:
    """Load an HF id or directory onto `device` ("cpu" or "cuda") in `dtype` ("auto": float32 on cpu, bfloat16 on cuda).

    Raises `ModelLoadError`, one line that names the model and what is wrong: no such directory or id, a family that is
    not supported (supported ones listed), missing weights, rotary scalings that depend on the batch.
    """
    checkpoint = open_checkpoint(model, device=device, dtype=dtype, families=tuple(FAMILIES))
    module, _, attribute = FAMILIES[checkpoint.config.model_type].partition(":")
    return getattr(import_module(module), attribute).load(checkpoint)
