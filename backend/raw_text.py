"""Text without a chat template: to token ids and back, as the model's own tokenizer has it.

Here, unlike in messages, control tokens that a text spells are control tokens: whoever sends a raw prompt writes the
template by hand. Knows nothing of HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence

from backend.errors import Rejected
from backend.models.adapter import ModelAdapter
from backend.types.request import Prepared


def encode_text(adapter: ModelAdapter, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
    """Token ids of `text`; with `add_special_tokens` what the tokenizer puts around a text, such as a first BOS."""
    return tuple(adapter.tokenizer.encode(text, add_special_tokens=add_special_tokens))


def decode_ids(adapter: ModelAdapter, token_ids: Sequence[int], *, param: str) -> str:
    """The text of token ids, control tokens spelled out; raises Rejected for an id that is none."""
    _check_ids(adapter, token_ids, param)
    return str(adapter.tokenizer.decode(list(token_ids), skip_special_tokens=False))


def token_strings(adapter: ModelAdapter, token_ids: Sequence[int]) -> list[str]:
    """Each token as the vocabulary spells it."""
    return [str(token) for token in adapter.tokenizer.convert_ids_to_tokens(list(token_ids))]


def raw_prompt(adapter: ModelAdapter, token_ids: Sequence[int], *, param: str) -> Prepared:
    """A prompt of these tokens and no image; raises Rejected for an empty one and for an id that is none."""
    if not token_ids:
        raise Rejected(f"{param} is empty", param=param, code="invalid_value")
    _check_ids(adapter, token_ids, param)
    spec = adapter.spec
    if spec.image_token_id in token_ids:
        raise Rejected(f"{param} holds the image token, and no image comes with it", param=param, code="invalid_value")
    return Prepared(tuple(token_ids), (), (), (range(len(token_ids)),) * spec.num_position_rows)


def _check_ids(adapter: ModelAdapter, token_ids: Sequence[int], param: str) -> None:
    limit = adapter.spec.vocab_size
    for i, token_id in enumerate(token_ids):
        if not 0 <= token_id < limit:
            raise Rejected(
                f"{param}[{i}] is no token id: this model has 0 to {limit - 1}",
                param=f"{param}[{i}]",
                code="invalid_value",
            )
