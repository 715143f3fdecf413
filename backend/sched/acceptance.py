"""How often guesses come true, learned from every token that is said, whether its guess was computed or not.

The longer the words before a guess agree, the surer it is: rates are kept by length of the match. Knows neither where
guesses come from nor what they cost.
"""

from __future__ import annotations

from backend.sched.lookup import LONGEST


class Acceptance:
    """Rates by length of the match, from the latest tokens alone: one weighs `memory` times as much after the next.

    What few tokens speak of is taken from `prior`, the rates of all sequences together; without one it is supposed that
    guesses after longer matches are better.
    """

    def __init__(self, prior: Acceptance | None = None, *, memory: float, trust: float) -> None:
        self._prior = prior
        self._memory = memory
        self._trust = trust
        self._tries = [0.0] * (LONGEST + 1)
        self._hits = [0.0] * (LONGEST + 1)

    def rate(self, match_len: int) -> float:
        """The odds that the guess after `match_len` equal tokens comes true."""
        index = min(match_len, LONGEST)
        prior = self._prior.rate(index) if self._prior else index / (index + 4.0)
        return (self._hits[index] + self._trust * prior) / (self._tries[index] + self._trust)

    def observe(self, match_len: int, is_hit: bool) -> None:
        """One guess came true, or did not."""
        index = min(match_len, LONGEST)
        self._tries[index] = self._memory * self._tries[index] + 1.0
        self._hits[index] = self._memory * self._hits[index] + is_hit

    def depth(self, match_len: int, floor: float, limit: int) -> int:
        """How many guesses in a row, up to `limit`, each come true with more than `floor`."""
        odds = 1.0
        for depth in range(limit):
            odds *= self.rate(match_len + depth)
            if odds <= floor:
                return depth
        return limit
