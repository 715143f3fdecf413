"""latency-target: stall-free, with a budget that is what the learned cost of a step says fits the target.

Every running decode is booked. The time that then is left of the target is divided between guesses, the next encoder
slice and prompt tokens. Knows nothing of blocks or admission, and no clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from backend.errors import ConfigError
from backend.sched.cost import CostModel, Work, work_of
from backend.sched.room import divide, drafts_within, has_need
from backend.sched.sequence import Sequence
from backend.sched.view import Lane, View
from backend.types.step import Step

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
        """Divide the step's time: guesses first, which take half of it at most where anybody else wants some. Pure."""
        if not self.cost.num_observed:
            return Plan(view.token_budget, None)
        room_s = self._room_s(view)
        wants_room = view.images or has_need(view, prompts)
        drafts, drafts_s = drafts_within(view, room_s / 2 if wants_room else room_s, self._planned)
        # No first token of a chat waits longer for pictures than its next ones will.
        is_chat_first = not view.decodes and prompts and not prompts[0].is_background
        share = divide(
            view,
            prompts,
            room_s - drafts_s,
            self._planned,
            self.cost.slices,
            most_for_slices_s=self.target_s if is_chat_first else math.inf,
        )
        tokens = len(view.decodes) + drafts + share.tokens
        trusted = max(view.token_budget, _TRUST * self.cost.max_tokens)
        return Plan(min(tokens, trusted, view.hard_num_tokens), share.slices, drafts)

    def _room_s(self, view: View) -> float:
        """Seconds left for prompts and slices, a margin for noise kept back."""
        cost = self._planned
        allowed_s = self.target_s / (1.0 + min(_MAX_MARGIN, _MARGIN_SPREADS * cost.spread))
        if not view.decodes:
            return allowed_s * IDLE_STRETCH - cost.base_s
        return allowed_s - cost.forward_s(Work.of_decodes(seq.total for seq in view.decodes))
