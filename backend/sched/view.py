"""What the scheduler and a policy say to each other before a step: a View of what there is, Lanes of what to book."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from backend.sched.sequence import Sequence
from backend.types.step import EncodeSlice


@dataclass(frozen=True, slots=True)
class View:
    """The scheduler before a step. Each tuple is in order of priority; sequences are to be read, never changed.

    It is good until the step is booked: the sequences in it move on then.

    `decodes` need only their newest token computed, `prefills` run with more than that left, `waiting` are queued.
    `images` is what is left to encode of each image that the running need. `token_budget` is the operator's soft
    budget, or with `is_budget_exact` false a default one, which is for the policy to go below; `hard_num_tokens` is
    what the step's memory can hold. `num_drafts` counts guesses at tokens of `decodes` that are worth their price.
    """

    step_id: int
    decodes: tuple[Sequence, ...]
    prefills: tuple[Sequence, ...]
    waiting: tuple[Sequence, ...]
    token_budget: int
    hard_num_tokens: int
    images: tuple[EncodeSlice, ...] = ()
    num_drafts: int = 0
    is_budget_exact: bool = True

    @property
    def prompts(self) -> tuple[Sequence, ...]:
        """Running prompts and queued ones, by class; within a class those begun go first, then by arrival."""
        begun, queued = self.prefills, self.waiting
        i, j = _num_interactive(begun), _num_interactive(queued)
        return (*begun[:i], *queued[:j], *begun[i:], *queued[j:])


def _num_interactive(seqs: tuple[Sequence, ...]) -> int:
    """How many of `seqs`, in order of priority, are interactive: all of those come first."""
    return bisect_left(seqs, True, key=lambda seq: seq.is_background)


@dataclass(frozen=True, slots=True)
class Lane:
    """Sequences to book in this order, until the whole step holds `tokens` tokens (earlier lanes' included).

    If an `exclusive` lane books anything, later lanes get nothing in this step.
    """

    seqs: tuple[Sequence, ...]
    tokens: int
    exclusive: bool = False
