"""In which order a step's tokens are given out: the only thing that differs between scheduling policies.

A policy reads a `View` and answers with `Lane`s; the scheduler books them in order. It books nothing itself, so that
blocks, images, hard bounds and admission are the same under every policy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from backend.errors import ConfigError
from backend.sched.sequence import Sequence
from backend.types import Step


@dataclass(frozen=True, slots=True)
class View:
    """The scheduler before a step. Each tuple is in order of priority; sequences are to be read, never changed.

    `decodes` need only their newest token computed, `prefills` run with more than that left, `waiting` are queued.
    `token_budget` is the operator's soft budget, `hard_num_tokens` what the step's memory can hold.
    """

    step_id: int
    decodes: tuple[Sequence, ...]
    prefills: tuple[Sequence, ...]
    waiting: tuple[Sequence, ...]
    token_budget: int
    hard_num_tokens: int


@dataclass(frozen=True, slots=True)
class Lane:
    """Sequences to book in this order, until the whole step holds `tokens` tokens (earlier lanes' included).

    If an `exclusive` lane books anything, later lanes get nothing in this step.
    """

    seqs: tuple[Sequence, ...]
    tokens: int
    exclusive: bool = False


class Policy(Protocol):
    """An order of work."""

    name: str

    def lanes(self, view: View) -> tuple[Lane, ...]:
        """The lanes of the next step. Pure: the same view (and the same past `observe` calls) give the same lanes."""
        ...

    def observe(self, step: Step, elapsed_s: float) -> None:
        """Learn how long a step took. The only way in for time, and the only place where a policy may change."""
        ...


class StallFree:
    """Every running decode first, then prompts by class, until the token budget is full (Sarathi-Serve)."""

    name = "stall-free"

    def lanes(self, view: View) -> tuple[Lane, ...]:
        """Decodes, then running prompts and admission, interactive before background."""
        return (Lane(view.decodes, view.token_budget), Lane(_prompts(view), view.token_budget))

    def observe(self, step: Step, elapsed_s: float) -> None:
        """Nothing to learn: the budget is the operator's."""


class PrefillFirst:
    """Whole prompts before decodes, in steps of their own (Orca, early vLLM): the baseline to compare with."""

    name = "prefill-first"

    def lanes(self, view: View) -> tuple[Lane, ...]:
        """Prompts as far as memory allows; decodes only in steps without any."""
        prompts = Lane(_prompts(view), view.hard_num_tokens, exclusive=True)
        return (prompts, Lane(view.decodes, view.token_budget))

    def observe(self, step: Step, elapsed_s: float) -> None:
        """Nothing to learn."""


POLICIES: dict[str, Callable[[], Policy]] = {policy.name: policy for policy in (StallFree, PrefillFirst)}


def make_policy(name: str) -> Policy:
    """A fresh policy by name; raises ConfigError with the choices for an unknown one."""
    if name not in POLICIES:
        raise ConfigError(f"Unknown step policy {name!r}: choose one of {', '.join(POLICIES)}.")
    return POLICIES[name]()


def _prompts(view: View) -> tuple[Sequence, ...]:
    """Running prompts and queued ones, by class; within a class those begun go first, then by arrival."""
    return tuple(sorted(view.prefills + view.waiting, key=lambda seq: (seq.is_background, seq.is_queued, seq.arrival)))
