"""What is refused at the door: settings that contradict each other, and requests that could never be served (R4, R6).

Whatever passes here can run to its end if it is alone, so that the scheduler never meets a request it cannot finish.
"""

from __future__ import annotations

from backend.errors import ConfigError, Rejected
from backend.types.request import Request
from backend.types.scheduler import SchedulerLimits


def context_len(limits: SchedulerLimits) -> int:
    """Tokens a sequence may have, outputs included: the model's bound, or what the whole pool can hold.

    The last token is sampled from the KV of those before it and needs no room of its own.
    """
    return min(limits.max_model_len, limits.num_blocks * limits.block_size + 1)


def check_limits(limits: SchedulerLimits) -> None:
    """Raise ConfigError unless `limits` leave room for work."""
    for name in ("max_num_seqs", "max_model_len", "num_blocks", "block_size", "max_encoder_slices_per_step"):
        if getattr(limits, name) < 1:
            raise ConfigError(f"{name} is {getattr(limits, name)}; it must be at least 1.")
    if limits.idle_encoder_slices_per_step < 1:
        raise ConfigError(
            f"idle_encoder_slices_per_step is {limits.idle_encoder_slices_per_step}; it must be at least 1."
        )
    check_token_budget(limits.max_num_batched_tokens, limits)


def check_token_budget(num_tokens: int, limits: SchedulerLimits) -> None:
    """Raise ConfigError unless every running decode fits into the budget (R6) and the budget into memory (R5)."""
    if num_tokens < limits.max_num_seqs:
        raise ConfigError(
            f"max_num_batched_tokens is {num_tokens}; it must be at least max_num_seqs ({limits.max_num_seqs}), "
            "so that every running request gets its token in each step."
        )
    if num_tokens > limits.hard_num_batched_tokens:
        raise ConfigError(
            f"max_num_batched_tokens is {num_tokens}; this server's memory allows at most "
            f"{limits.hard_num_batched_tokens} tokens per step."
        )


def check_request(request: Request, limits: SchedulerLimits) -> None:
    """Raise Rejected, naming the limit, if `request` could never be served, even alone."""
    prompt_len = len(request.prompt.token_ids)
    if prompt_len == 0:
        raise Rejected("The prompt is empty.", param="messages", code="empty_prompt")
    if request.num_places > limits.max_num_waiting:
        raise Rejected(
            f"The request asks for {request.num_places} choices, but this server's queue (max_num_waiting) has "
            f"{limits.max_num_waiting} places. Ask for fewer.",
            param="n",
            code="invalid_value",
        )
    if request.sampling.max_tokens < 1:
        raise Rejected("max_tokens must be at least 1.", param="max_tokens", code="invalid_value")
    if prompt_len >= limits.max_model_len:
        raise Rejected(
            f"The prompt has {prompt_len} tokens, but the model's context is {limits.max_model_len} tokens, "
            "answer included. Shorten the messages.",
            param="messages",
            code="context_length_exceeded",
        )
    if prompt_len > limits.num_blocks * limits.block_size:
        raise Rejected(
            f"The prompt has {prompt_len} tokens, but the KV cache holds {limits.num_blocks} blocks of "
            f"{limits.block_size} tokens. Shorten the messages or give the server more KV memory.",
            param="messages",
            code="kv_cache_exceeded",
        )
    _check_images(request, limits)


def _check_images(request: Request, limits: SchedulerLimits) -> None:
    images = {image.key: image for image in request.prompt.images}
    for image in images.values():
        if image.num_embeds > limits.encoder_cache_embeds:
            raise Rejected(
                f"An image needs {image.num_embeds} embeddings, but the encoder cache holds "
                f"{limits.encoder_cache_embeds}. Send a smaller image.",
                param="messages",
                code="image_too_large",
            )
    # All other running requests may be decoding, and a decode is never left out to make room.
    atomic_max = limits.hard_num_batched_tokens - (limits.max_num_seqs - 1)
    for span in request.prompt.spans:
        if span.key not in images:
            raise Rejected("The prompt has placeholders for an image that it does not bring.", param="messages")
        if span.atomic and span.length > atomic_max:
            raise Rejected(
                f"An image takes {span.length} tokens at once, but a step beside {limits.max_num_seqs - 1} running "
                f"requests holds at most {atomic_max}. Send a smaller image.",
                param="messages",
                code="image_too_large",
            )
