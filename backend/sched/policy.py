"""In which order a step's tokens are given out, and how many: the only thing that differs between scheduling policies.

A policy reads a `View` and answers with `Lane`s and a number of encoder slices; the scheduler books them in order. It
books nothing itself, so that blocks, images, hard bounds and admission are the same under every policy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from backend.errors import ConfigError
from backend.sched.cost import CostModel, Work
from backend.sched.latency_target import LatencyTarget
from backend.sched.room import Share, divide, drafts_within, has_need
from backend.sched.sequence import Sequence
from backend.sched.view import Lane, View
from backend.types.step import Step

BUSY_ROOM_S = 0.010
"""Time in a step beside decodes, where those take less: for encoder slices, and for prompts whose budget is by time."""

IDLE_ENCODER_S = 0.2
"""The same while nobody waits for a next token: what comes meanwhile waits so long at most."""

_TOKENS_PER_STEP_UNSERVED = 16
"""How much shorter a prompt counts under split-fuse for each step that left it out."""


class Policy(Protocol):
    """An order of work. `cost` is what it learns into, to be handed on to the policy that comes after."""

    name: str
    cost: CostModel

    def lanes(self, view: View) -> tuple[Lane, ...]:
        """The lanes of the next step. Pure: the same view (and the same past `observe` calls) give the same lanes."""
        ...

    def slices(self, view: View) -> int | None:
        """How many encoder slices the next step may have; None leaves it to the operator's limits. Pure, as `lanes` is.

        A step that would be empty otherwise gets one all the same.
        """
        ...

    def drafts(self, view: View) -> int:
        """How many guesses the next step may have; they count in its lanes. Pure, as `lanes` is."""
        ...

    def observe(self, step: Step, elapsed_s: float) -> None:
        """Learn how long a step took. The only way in for time, and the only place where a policy may change."""
        ...


class FixedBudget:
    """What policies have in common whose bounds are the operator's. They learn for whichever policy comes after."""

    def __init__(self, cost: CostModel | None = None) -> None:
        self.cost = cost or CostModel()

    def slices(self, view: View) -> int | None:
        """As many as end in the time of the step's own decodes, but never less than 10 ms; in 0.2 s without decodes.

        So running answers keep at least half of their pace, and a machine that is fast enough takes a whole picture in
        one step. Until a slice was timed, and for an image that only now gets a place, the operator's limits decide.
        """
        if not view.images:
            return None
        return self.cost.slices.num_within(view.images, self._room_s(view) if view.decodes else IDLE_ENCODER_S)

    def drafts(self, view: View) -> int:
        """What is left of the budget after every decode got its token; half of it where prompts want some."""
        room = view.token_budget - len(view.decodes)
        return min(view.num_drafts, room // 2 if view.prefills or view.waiting else room)

    def observe(self, step: Step, elapsed_s: float) -> None:
        """Keep the cost model up to date."""
        self.cost.observe(step, elapsed_s)

    def _room_s(self, view: View) -> float:
        """What a step may take beyond its decodes: as long as those, or 10 ms."""
        work = Work.of_decodes(seq.total for seq in view.decodes)
        return max(BUSY_ROOM_S, self.cost.coefficients.forward_s(work))


class StallFree(FixedBudget):
    """Every running decode first, then prompts by class, until the token budget is full (Sarathi-Serve).

    A budget that nobody chose is full sooner, beside decodes: prompts and encoder slices then share the time that
    slices have elsewhere, whatever a token costs on this machine. Guesses get as much where there are neither, and half
    of it on top of them.
    """

    name = "stall-free"

    def lanes(self, view: View) -> tuple[Lane, ...]:
        """Decodes, then running prompts and admission, interactive before background."""
        prompts = view.prompts
        share = self._share(view, prompts)
        tokens = view.token_budget
        if share is not None:
            tokens = min(tokens, len(view.decodes) + self.drafts(view) + share.tokens)
        return (Lane(view.decodes, tokens), Lane(prompts, tokens))

    def slices(self, view: View) -> int | None:
        """As under any budget of the operator's; one by time leaves slices what prompts leave of their common room.

        Under that one, an image that only now gets a place begins in the next step.
        """
        share = self._share(view, view.prompts)
        return super().slices(view) if share is None else share.slices

    def drafts(self, view: View) -> int:
        """As under any budget of the operator's; under one by time they end in time, too."""
        drafts = super().drafts(view)
        if not drafts or not self._goes_by_time(view):
            return drafts
        room_s = self._room_s(view)
        has_other_work = view.images or has_need(view, view.prompts)
        return min(drafts, drafts_within(view, room_s / 2 if has_other_work else room_s, self.cost.coefficients)[0])

    def _goes_by_time(self, view: View) -> bool:
        """Whether the step is bounded in seconds: somebody decodes, nobody chose the budget, and costs are known."""
        return not view.is_budget_exact and bool(view.decodes) and self.cost.num_observed > 0

    def _share(self, view: View, prompts: tuple[Sequence, ...]) -> Share | None:
        """The room beside decodes, divided; None where there is no such bound."""
        if not self._goes_by_time(view):
            return None
        return divide(view, prompts, self._room_s(view), self.cost.coefficients, self.cost.slices)


class PrefillFirst(FixedBudget):
    """Whole prompts before decodes, in steps of their own (Orca, early vLLM): the baseline to compare with."""

    name = "prefill-first"

    def lanes(self, view: View) -> tuple[Lane, ...]:
        """Prompts as far as memory allows; decodes only in steps without any."""
        prompts = Lane(view.prompts, view.hard_num_tokens, exclusive=True)
        return (prompts, Lane(view.decodes, view.token_budget))


class SplitFuse(FixedBudget):
    """A constant total of tokens, the shortest remainder first (DeepSpeed-FastGen): short prompts overtake long ones.

    Within a class, that is; and a prompt that is left out counts as shorter from step to step, so that an endless
    stream of short ones cannot starve it.
    """

    name = "split-fuse"

    def lanes(self, view: View) -> tuple[Lane, ...]:
        """One lane: decodes have one token left and lead, then prompts, running or queued alike."""

        def remainder(seq: Sequence) -> tuple[bool, int, int]:
            age = max(0, view.step_id - seq.served_step)
            return (seq.is_background, seq.remaining - age * _TOKENS_PER_STEP_UNSERVED, seq.arrival)

        prompts = sorted(view.prefills + view.waiting, key=remainder)
        return (Lane((*view.decodes, *prompts), view.token_budget),)


POLICIES: dict[str, Callable[[CostModel | None], Policy]] = {
    policy.name: policy for policy in (StallFree, PrefillFirst, SplitFuse, LatencyTarget)
}


def make_policy(name: str, cost: CostModel | None = None, target_s: float | None = None) -> Policy:
    """A fresh policy by name, which learns into `cost` and plans by what is known there.

    `target_s` is for latency-target (None: twice a bare decode step). Raises ConfigError with the choices for an
    unknown name, and for a target that the policy does not know or cannot reach.
    """
    if name not in POLICIES:
        raise ConfigError(f"Unknown step policy {name!r}: choose one of {', '.join(POLICIES)}.")
    if target_s is None:
        return POLICIES[name](cost)
    if name != LatencyTarget.name:
        raise ConfigError(f"A latency target is for the step policy {LatencyTarget.name}, not for {name}.")
    return LatencyTarget(cost, target_s)
