"""The judge: transformers' own `generate` on the same checkpoint, one prompt at a time, with its own processor.

Nothing of this engine takes part in making the expected answers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoProcessor, AutoTokenizer

from backend.selftest.prompts import Prompt

NUM_CANDIDATES = 8
"""So many of the likeliest tokens are kept for each token of an answer."""


@dataclass(frozen=True, slots=True)
class Expected:
    """A greedy answer to the tokens of a prompt, and for each of its own the likeliest (id, logit), falling."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    candidates: tuple[tuple[tuple[int, float], ...], ...]

    def lead(self, index: int, token_id: int | None = None) -> float:
        """How far the token chosen at `index` is ahead of `token_id`, by default of the runner-up; in logits.

        Infinite for a token that is not among the likeliest.
        """
        (_, best), (runner_up, _), *_ = self.candidates[index]
        logits = dict(self.candidates[index])
        return best - logits.get(runner_up if token_id is None else token_id, -math.inf)


class Reference:
    """One checkpoint as transformers loads it. `options` are those of every `from_pretrained`."""

    def __init__(
        self, source: str, *, with_images: bool, device: torch.device, dtype: torch.dtype, **options: Any
    ) -> None:
        loader: Any = AutoModelForImageTextToText if with_images else AutoModelForCausalLM
        self._model: Any = loader.from_pretrained(source, dtype=dtype, **options).to(device).eval()
        self._processor: Any = (AutoProcessor if with_images else AutoTokenizer).from_pretrained(source, **options)
        self._with_images = with_images

    def answers(self, prompts: Sequence[Prompt], num_tokens: int) -> Iterator[tuple[str, Expected]]:
        """The answer of `num_tokens` tokens to each prompt; that a model would end earlier does not matter."""
        for prompt in prompts:
            yield prompt.name, self._answer(self._inputs(prompt), num_tokens)

    def _inputs(self, prompt: Prompt) -> Mapping[str, torch.Tensor]:
        messages, options = prompt.messages, {"return_tensors": "pt", "add_special_tokens": False}
        if not self._with_images:
            messages = [{**m, "content": m["content"][0]["text"]} for m in messages]
            text = self._processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            return {"input_ids": self._processor(text, **options)["input_ids"]}
        # A template may come with the tokenizer alone.
        template = self._processor.chat_template or self._processor.tokenizer.chat_template
        text = self._processor.apply_chat_template(messages, chat_template=template, add_generation_prompt=True)
        return self._processor(text=[text], images=[prompt.images] if prompt.images else None, **options)

    def _answer(self, inputs: Mapping[str, torch.Tensor], num_tokens: int) -> Expected:
        given = {name: value.to(self._model.device) for name, value in inputs.items()}
        for name, value in given.items():
            if value.is_floating_point():
                given[name] = value.to(self._model.dtype)
        with torch.inference_mode():
            answer = self._model.generate(
                **given,
                max_new_tokens=num_tokens,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
                repetition_penalty=1.0,  # some checkpoints ask for another: here every token is the likeliest
                output_logits=True,
                return_dict_in_generate=True,
            )
        return Expected(
            prompt_ids=tuple(inputs["input_ids"][0].tolist()),
            token_ids=tuple(answer.sequences[0, -num_tokens:].tolist()),
            candidates=tuple(_likeliest(logits[0].float()) for logits in answer.logits),
        )


def _likeliest(logits: torch.Tensor) -> tuple[tuple[int, float], ...]:
    best = logits.topk(min(NUM_CANDIDATES, len(logits)))
    return tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))
