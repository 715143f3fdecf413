"""Which tokens of running decodes are guessed, and whether that pays: guesses, their odds and their price together.

A guess is a draft token: computed in the same step as the token before it, and kept if the model would have chosen it.
It costs what one more running answer would, and saves its sequence a decode step if it comes true. Its odds are known
without paying, for whatever is said next is compared with what was guessed. Knows neither blocks nor budgets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq

from backend.sched.acceptance import Acceptance
from backend.sched.answer import num_open
from backend.sched.cost import CostModel, StepCost, Work
from backend.sched.lookup import NO_TOKEN, Lookup
from backend.sched.sequence import Sequence

_SHARED_MEMORY, _SHARED_TRUST = 0.995, 4.0
_OWN_MEMORY, _OWN_TRUST = 0.95, 4.0

_READ_PER_STEP = 512
"""Tokens of a new sequence that are looked at in one step, so that a long prompt holds nobody up."""

_LEAST_ODDS = 0.1
_MARGIN = 1.5
"""By how much a guess must promise more than it costs, for the cost of a row is an estimate."""


class Guesser:
    """One sequence's guesses: where it repeats itself, and how often that was right."""

    def __init__(self, token_ids: Iterable[int], shared: Acceptance) -> None:
        self._lookup = Lookup()
        self._shared = shared
        self._own = Acceptance(shared, memory=_OWN_MEMORY, trust=_OWN_TRUST)
        self._unread = list(token_ids)

    def learn(self, token_ids: Iterable[int]) -> None:
        """The sequence went on with these tokens."""
        if self._unread:
            self._unread += token_ids
            return
        for token_id in token_ids:
            length = self._lookup.match_len
            if length:
                is_hit = self._lookup.guess == token_id
                self._own.observe(length, is_hit)
                self._shared.observe(length, is_hit)
            self._lookup.push(token_id)

    def propose(self, floor: float, limit: int) -> tuple[int, ...]:
        """Up to `limit` guesses whose odds are above `floor`."""
        if self._unread:
            self._read()
        length = self._lookup.match_len
        if not length or self._unread:
            return ()
        return self._lookup.propose(self._own.depth(length, floor, limit))

    def _read(self) -> None:
        for token_id in self._unread[:_READ_PER_STEP]:
            self._lookup.push(token_id)
        del self._unread[:_READ_PER_STEP]


class Speculator:
    """Proposes at most `num_tokens` guesses a sequence and step; 0 turns it off. The odds of all are kept here."""

    def __init__(self, num_tokens: int) -> None:
        self._num_tokens = num_tokens
        self._acceptance = Acceptance(memory=_SHARED_MEMORY, trust=_SHARED_TRUST)

    def propose(self, decodes: Seq[Sequence], cost: CostModel, context_len: int) -> dict[str, tuple[int, ...]]:
        """Guesses that are worth their price, by request; none where a sequence's answer ends before them."""
        if not self._num_tokens or not decodes:
            return {}
        floor = max(_LEAST_ODDS, _MARGIN * price(decodes, cost.coefficients))
        proposals: dict[str, tuple[int, ...]] = {}
        for seq in decodes:
            # Whose next token depends on the words before, in ways that the model does not see, is asked row by row.
            if seq.request.sampling.needs_history:
                continue
            if seq.guesser is None:
                seq.guesser = Guesser(_words(seq), self._acceptance)
            guesses = seq.guesser.propose(floor, min(self._num_tokens, num_open(seq, context_len) - 1))
            if guesses:
                proposals[seq.request_id] = guesses
        return proposals

    def is_needed(self, decodes: Seq[Sequence], cost: CostModel, context_len: int) -> bool:
        """Whether a step made before the tokens that `decodes` await are known might miss guesses worth their price.

        What was proposed before a token is the best sign of what will be after it.
        """
        if not self._num_tokens:
            return False
        return any(seq.guesser is None for seq in decodes) or bool(self.propose(decodes, cost, context_len))


def dealt(guesses: Mapping[str, tuple[int, ...]], number: int) -> dict[str, tuple[int, ...]]:
    """The first `number` of `guesses`, dealt round by round: the sooner a guess comes, the likelier it is."""
    depths = dict.fromkeys(guesses, 0)
    while number > 0 and (open_ids := [key for key, depth in depths.items() if depth < len(guesses[key])]):
        for request_id in open_ids[:number]:
            depths[request_id] += 1
        number -= len(open_ids)
    return {request_id: guesses[request_id][:depth] for request_id, depth in depths.items() if depth}


def price(decodes: Seq[Sequence], cost: StepCost) -> float:
    """The odds at which a guess is as good as none: the share of a decode step that its rows make up.

    With n answers running a row more costs 1/n of that share, and a guess come true saves 1/n of the step. 1 while
    nothing was measured.
    """
    step_s = cost.forward_s(Work.of_decodes(seq.total for seq in decodes))
    return 1.0 - cost.base_s / step_s if step_s > 0.0 else 1.0


def _words(seq: Sequence) -> list[int]:
    """The tokens known so far, placeholders of images blanked out."""
    tokens = seq.known_tokens()
    for span in seq.spans:
        tokens[span.start : span.end] = [NO_TOKEN] * span.length
    return tokens
