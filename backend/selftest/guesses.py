"""Guesses without sense or price: right as far as chance says, then wrong, of any length that an answer may have.

A real answer repeats itself too rarely to try guessing on it; with these, every place and number of guesses comes up.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from backend.sched.answer import num_open
from backend.sched.cost import CostModel
from backend.sched.sequence import Sequence as Seq
from backend.sched.speculator import Speculator

NextToken = Callable[[Seq, Sequence[int]], int]
"""The token that really comes next in a sequence, once these guesses have come true."""


class WildSpeculator(Speculator):
    """Takes the place of a scheduler's speculator; `next_token` tells it the truth, which it keeps to as it likes."""

    def __init__(self, num_tokens: int, vocab_size: int, seed: int, next_token: NextToken) -> None:
        super().__init__(num_tokens)
        self._vocab_size = vocab_size
        self._rng = random.Random(seed)
        self._next_token = next_token

    def propose(self, decodes: Sequence[Seq], cost: CostModel, context_len: int) -> dict[str, tuple[int, ...]]:
        """See `Speculator.propose`: none to as many as there is room for, right ones first."""
        proposals: dict[str, tuple[int, ...]] = {}
        for seq in decodes:
            room = min(self._num_tokens, num_open(seq, context_len) - 1)
            guesses: list[int] = []
            num_right = self._rng.randint(0, room)
            for place in range(self._rng.randint(0, room)):
                is_right = place < num_right
                guesses.append(self._next_token(seq, guesses) if is_right else self._rng.randrange(self._vocab_size))
            proposals[seq.request_id] = tuple(guesses)
        return proposals
