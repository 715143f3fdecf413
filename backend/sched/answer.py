"""Where an answer ends: at a stop token, at its own length, or at the end of the context; and what is told of it."""

from __future__ import annotations

from collections.abc import Iterable

from backend.sched.sequence import Sequence
from backend.types.result import FinishReason, TokenEvent, TokenLogprobs


def num_open(seq: Sequence, context_len: int) -> int:
    """How many tokens more than those known a sequence can be given, awaited ones included."""
    num_known = seq.num_known
    return min(seq.request.sampling.max_tokens - (num_known - seq.prompt_len), context_len - num_known)


def cut_answer(
    seq: Sequence, token_ids: tuple[int, ...], context_len: int
) -> tuple[tuple[int, ...], FinishReason | None]:
    """What of newly sampled tokens belongs to the answer, and its end if they reach it; a stop token is no part of it.

    `seq` awaits the first of them.
    """
    room = num_open(seq, context_len)
    for index, token_id in enumerate(token_ids[:room]):
        if token_id in seq.request.sampling.stop_token_ids:
            return token_ids[:index], FinishReason.STOP
    return token_ids[:room], FinishReason.LENGTH if len(token_ids) >= room else None


def goes_on_with(seq: Sequence, token_ids: tuple[int, ...], context_len: int) -> bool:
    """Whether newly sampled tokens are just one more of an answer that has begun, as `cut_answer` nearly always finds.

    `seq` awaits it.
    """
    sampling, num_known = seq.request.sampling, seq.num_known
    num_outputs = num_known - seq.prompt_len
    return (
        len(token_ids) == 1
        and 0 < num_outputs < sampling.max_tokens - 1
        and num_known < context_len - 1
        and token_ids[0] not in sampling.stop_token_ids
    )


def events_of(
    request_id: str,
    token_ids: tuple[int, ...],
    reason: FinishReason | None,
    logprobs: Iterable[TokenLogprobs] | None = None,
    num_cached_tokens: int | None = None,
) -> list[TokenEvent]:
    """An event for each new token; the last one carries the end, unless a stop token, which is not told, is the end.

    `num_cached_tokens`, of an answer that begins, goes with the first.
    """
    told = iter(logprobs or ())
    events = [TokenEvent(request_id, token_id, logprobs=next(told, None)) for token_id in token_ids]
    if reason is FinishReason.STOP:
        events.append(TokenEvent(request_id, None, reason))
    elif reason:
        events[-1] = events[-1]._replace(finish_reason=reason)
    if num_cached_tokens is not None:
        events[0] = events[0]._replace(num_cached_tokens=num_cached_tokens)
    return events
