"""latency-target: stall-free, with a budget that is what the learned cost of a step says fits the target.

Every running decode is booked. The time that then is left of the target is divided between guesses, the next encoder
slice and prompt tokens. Knows nothing of blocks or admission, and no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from backend.errors import ConfigError
from backend.sched.cost import CostModel, StepCost, Work, work_of
from backend.sched.sequence import Sequence
from backend.sched.view import Lane, View
from backend.types import Step

FLOOR_TOKENS = 16
"""Prompt tokens in a step whatever the target says, so that prompts get on beside ever so many decodes."""

IDLE_STRETCH = 4.0
"""How many targets a step may take while nobody waits for a next token; not more, for a chat may arrive."""

DEFAULT_STRETCH = 2.0
"""The target in bare decode steps, where none is given."""

_TRUST = 2
"""How far beyond the largest step ever timed (or the operator's budget) a prediction is believed."""

_DEADBAND = 0.05
"""The plan is made with the same costs until they are off by this much: so the budget does not follow noise."""

_SPREAD_DEADBAND = 0.02

_MARGIN_SPREADS = 2.0
_MAX_MARGIN = 0.3

_LEAST_TOKEN_S = 1e-9


@dataclass(frozen=True, slots=True)
class Plan:
    """Tokens in the step, decodes and guesses included, and encoder slices (None: as many as the operator says)."""

    tokens: int
    slices: int | None
    drafts: int = 0


class LatencyTarget:
    """Stall-free within `target_s` per step, as far as decodes and the floor let it.

    Raises ConfigError for a target below a bare decode step, once one was measured. A `target_s` of None is twice that
    step; while nothing was measured at all, the operator's bounds hold.
    """

    name = "latency-target"

    def __init__(self, cost: CostModel | None = None, target_s: float | None = None) -> None:
        self.cost = cost or CostModel()
        self._planned = self.cost.coefficients
        self._given_s = target_s
        bare_s = self._planned.bare_decode_s
        if target_s is not None and target_s <= bare_s:
            raise ConfigError(
                f"A latency target of {target_s * 1e3:g} ms cannot be met: a bare decode step takes "
                f"{bare_s * 1e3:.1f} ms on this machine. Choose a target above that."
            )

    @property
    def target_s(self) -> float:
        """Seconds that a step with running decodes should take at most; 0 while it is not known."""
        return DEFAULT_STRETCH * self._planned.bare_decode_s if self._given_s is None else self._given_s

    def lanes(self, view: View) -> tuple[Lane, ...]:
        """Decodes, then running prompts and admission, until the planned number of tokens."""
        prompts = view.prompts
        tokens = self._plan(view, prompts).tokens
        return (Lane(view.decodes, tokens), Lane(prompts, tokens))

    def slices(self, view: View) -> int | None:
        """The planned number; an image that only now gets a place begins in the next step."""
        return self._plan(view, view.prompts).slices if view.images else 0

    def drafts(self, view: View) -> int:
        """The planned number."""
        return self._plan(view, view.prompts).drafts if view.num_drafts else 0

    def observe(self, step: Step, elapsed_s: float) -> None:
        """Learn, and plan with what was learned as soon as it makes a difference."""
        self.cost.observe(step, elapsed_s)
        fresh, planned, work = self.cost.coefficients, self._planned, work_of(step.chunks)
        planned_s = planned.forward_s(work)
        is_off = abs(fresh.forward_s(work) - planned_s) > _DEADBAND * planned_s
        if is_off or abs(fresh.spread - planned.spread) > _SPREAD_DEADBAND:
            self._planned = fresh

    def _plan(self, view: View, prompts: tuple[Sequence, ...]) -> Plan:
        """Divide the step's time. Pure.

        An image's next slice goes before prompt tokens if both fit. If the slice does not fit beside the floor, the two
        take turns, so that neither makes the other's step longer and neither starves.
        """
        cost = self._planned
        if not self.cost.num_observed:
            return Plan(view.token_budget, None)
        needs = _needs(view, prompts)
        first_need = next(needs, None)
        room_s, slice_s = self._room_s(view), self._next_slice_s(view)
        drafts, drafts_s = self._drafts_within(view, room_s / 2 if first_need or view.images else room_s)
        room_s -= drafts_s
        booked = len(view.decodes) + drafts
        floor_s = cost.sequence_s + FLOOR_TOKENS * cost.token_s
        takes_turns = bool(view.images and view.decodes and first_need) and slice_s + floor_s > room_s
        if takes_turns and view.step_id % 2 == 0:
            return Plan(booked, 1, drafts)
        wanted = () if first_need is None else chain((first_need,), needs)
        fitting, wanted_s = _fill(wanted, room_s if takes_turns else room_s - slice_s, cost)
        tokens = booked + max(FLOOR_TOKENS, fitting)
        trusted = max(view.token_budget, _TRUST * self.cost.max_tokens)
        spare_s = room_s - wanted_s
        if not view.decodes and prompts and not prompts[0].is_background:
            # No first token of a chat waits longer for pictures than its next ones will.
            spare_s = min(spare_s, self.target_s)
        slices = 0 if takes_turns else self.cost.slices.num_within(view.images, spare_s)
        return Plan(min(tokens, trusted, view.hard_num_tokens), slices, drafts)

    def _room_s(self, view: View) -> float:
        """Seconds left for prompts and slices, a margin for noise kept back."""
        cost, num_decodes = self._planned, len(view.decodes)
        allowed_s = self.target_s / (1.0 + min(_MAX_MARGIN, _MARGIN_SPREADS * cost.spread))
        if not num_decodes:
            return allowed_s * IDLE_STRETCH - cost.base_s
        return allowed_s - cost.forward_s(Work(num_decodes, num_decodes, sum(seq.total for seq in view.decodes)))

    def _drafts_within(self, view: View, room_s: float) -> tuple[int, float]:
        """How many guesses end within `room_s`, and their seconds; each is priced as the longest decode would be."""
        if not view.num_drafts:
            return 0, 0.0
        cost = self._planned
        draft_s = cost.sequence_s + cost.token_s + cost.kv_token_s * max(seq.total for seq in view.decodes)
        fitting = max(0, int(room_s / max(_LEAST_TOKEN_S, draft_s)))
        number = min(view.num_drafts, fitting, max(0, view.token_budget - len(view.decodes)))
        return number, number * draft_s

    def _next_slice_s(self, view: View) -> float:
        """Seconds of the slice that is due; 0 if none is, or none was ever timed."""
        if not view.images:
            return 0.0
        return self.cost.slices.slice_s(view.images[0].image, view.images[0].first_slice) or 0.0


def _needs(view: View, prompts: Iterable[Sequence]) -> Iterator[tuple[int, int]]:
    """(tokens computed, tokens that could be computed now) of each prompt that need not wait for an image first."""
    missing = {encode.image.key for encode in view.images}
    for seq in prompts:
        spans = (span for span in seq.pending_spans() if seq.is_queued or span.key in missing)
        end = next((max(span.start, seq.computed) for span in spans), seq.total)
        if end > seq.computed:
            yield seq.computed, end - seq.computed


def _fill(needs: Iterable[tuple[int, int]], room_s: float, cost: StepCost) -> tuple[int, float]:
    """How many tokens fit into `room_s`, were there ever more of them, and the seconds of those that there are."""
    token_s = max(_LEAST_TOKEN_S, cost.token_s + cost.kv_token_s)
    num_fitting, used_s = 0, 0.0
    for computed, missing in needs:
        used_s += cost.sequence_s + cost.kv_token_s * computed
        fitting = max(0, int((room_s - used_s) / token_s))
        if fitting < missing:
            return num_fitting + fitting, room_s
        num_fitting += missing
        used_s += missing * token_s
    return num_fitting + max(0, int((room_s - used_s) / token_s)), used_s
