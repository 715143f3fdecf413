"""A checkpoint's own wishes for sampling, from its `generation_config.json`. Knows the file; requests win over it."""

from __future__ import annotations

from typing import Any

from backend.conversation import SamplingDefaults

_NAMES = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def read_defaults(path: str, source: str) -> SamplingDefaults:
    """What holds where a request says nothing.

    `source` is `auto`, for the file of the checkpoint at `path` (where it is silent or missing, the OpenAI API's
    defaults), or `vllm`, for the API's alone; both as vLLM means its flag of this name. `do_sample` is not asked, as
    there: whoever wants the likeliest token says so with a temperature of 0.
    """
    if source == "vllm":
        return SamplingDefaults()
    from transformers import GenerationConfig

    try:
        said: dict[str, Any] = GenerationConfig.from_pretrained(path).to_diff_dict()
    except OSError:
        return SamplingDefaults()
    known = {name: said[name] for name in _NAMES if said.get(name) is not None}
    return SamplingDefaults(**known, max_tokens=said.get("max_new_tokens"))
