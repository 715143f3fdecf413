"""How the seconds that a step has beside its decodes are divided between prompt tokens and encoder slices.

Both policies that count in seconds plan with it. Knows nothing of blocks or admission, and no clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from backend.sched.cost import StepCost
from backend.sched.sequence import Sequence
from backend.sched.slice_costs import SliceCosts
from backend.sched.view import View

FLOOR_TOKENS = 16
"""Prompt tokens in a step whatever they cost, so that prompts get on beside ever so many decodes."""

_LEAST_TOKEN_S = 1e-9


@dataclass(frozen=True, slots=True)
class Share:
    """Prompt tokens and encoder slices of a step (None: as many slices as the operator says)."""

    tokens: int
    slices: int | None


def divide(
    view: View,
    prompts: Iterable[Sequence],
    room_s: float,
    cost: StepCost,
    slices: SliceCosts,
    most_for_slices_s: float = math.inf,
) -> Share:
    """Who gets what of `room_s`. Pure.

    Room for an image's next slice is kept, prompts fill the rest, and slices what prompts leave. If the slice does not
    fit beside the floor, the two take turns, so that neither makes the other's step longer and neither starves.
    """
    needs = _needs(view, prompts)
    first_need = next(needs, None)
    slice_s = _next_slice_s(view, slices)
    floor_s = cost.sequence_s + FLOOR_TOKENS * cost.token_s
    takes_turns = bool(view.images and view.decodes and first_need) and slice_s + floor_s > room_s
    if takes_turns and view.step_id % 2 == 0:
        return Share(0, 1)
    wanted = () if first_need is None else chain((first_need,), needs)
    fitting, wanted_s = _fill(wanted, room_s if takes_turns else room_s - slice_s, cost)
    tokens = max(FLOOR_TOKENS, fitting)
    if takes_turns or not view.images:
        return Share(tokens, 0)
    return Share(tokens, slices.num_within(view.images, min(room_s - wanted_s, most_for_slices_s)))


def drafts_within(view: View, room_s: float, cost: StepCost) -> tuple[int, float]:
    """How many guesses end within `room_s`, and their seconds; each is priced as the longest decode would be. Pure."""
    if not view.num_drafts:
        return 0, 0.0
    longest = max(seq.total for seq in view.decodes)
    draft_s = cost.sequence_s + cost.token_s + (cost.kv_token_s + cost.pair_s) * longest
    fitting = max(0, int(room_s / max(_LEAST_TOKEN_S, draft_s)))
    number = min(view.num_drafts, fitting, max(0, view.token_budget - len(view.decodes)))
    return number, number * draft_s


def has_need(view: View, prompts: Iterable[Sequence]) -> bool:
    """Whether any token of `prompts` could be computed now. Pure."""
    return next(_needs(view, prompts), None) is not None


def _next_slice_s(view: View, slices: SliceCosts) -> float:
    """Seconds of the slice that is due; 0 if none is, or none was ever timed."""
    if not view.images:
        return 0.0
    due = view.images[0]
    return slices.slice_s(due.image, due.first_slice, len(due.images)) or 0.0


def _needs(view: View, prompts: Iterable[Sequence]) -> Iterator[tuple[int, int]]:
    """(tokens computed, tokens that could be computed now) of each prompt that need not wait for an image first."""
    missing = {image.key for encode in view.images for image in encode.images}
    for seq in prompts:
        spans = (span for span in seq.pending_spans() if seq.is_queued or span.key in missing)
        end = next((max(span.start, seq.computed) for span in spans), seq.total)
        if end > seq.computed:
            yield seq.computed, end - seq.computed


def _fill(needs: Iterable[tuple[int, int]], room_s: float, cost: StepCost) -> tuple[int, float]:
    """How many tokens fit into `room_s`, were there ever more of them, and the seconds of those that there are."""
    num_fitting, used_s, computed = 0, 0.0, 0
    for computed, missing in needs:
        used_s += cost.sequence_s + cost.kv_token_s * computed
        fitting = _num_tokens_within(room_s - used_s, computed, cost)
        if fitting < missing:
            return num_fitting + fitting, room_s
        num_fitting += missing
        used_s += missing * _token_s(computed, cost) + cost.pair_s * missing * missing / 2
        computed += missing
    return num_fitting + _num_tokens_within(room_s - used_s, computed, cost), used_s


def _num_tokens_within(room_s: float, computed: int, cost: StepCost) -> int:
    """Tokens behind `computed` others that end within `room_s`; each of them attends to those before it, too."""
    if room_s <= 0.0:
        return 0
    # n tokens take n token_s + n² pair_s / 2: the root, in the form that bears a pair_s of zero.
    token_s = _token_s(computed, cost)
    return int(2 * room_s / (token_s + math.sqrt(token_s * token_s + 2 * cost.pair_s * room_s)))


def _token_s(computed: int, cost: StepCost) -> float:
    """Seconds of the first token behind `computed` others."""
    return max(_LEAST_TOKEN_S, cost.token_s + cost.kv_token_s + cost.pair_s * computed)
