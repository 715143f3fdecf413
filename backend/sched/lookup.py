"""Prompt lookup: what came after the same words the last time they were said (Saxena 2023, "prompt lookup decoding").

An index of one sequence's own tokens, extended token by token: where a run of two or four tokens was last followed by
something, that something is the guess. While guesses come true the place moves on by itself, so a token costs the same
however long the sequence is. Knows nothing of scheduling.
"""

from __future__ import annotations

from collections.abc import Iterable

NO_TOKEN = -1
"""Stands for what is no word, such as an image's placeholder: never guessed, and never part of a match."""

LONGEST = 8
"""Matches are counted up to this many tokens: beyond it they are all as good."""

_RUNS = (4, 2)
"""Lengths of the runs that are looked up, the surest first."""


class Lookup:
    """One sequence's tokens, and the place in them that reads like its end.

    `match_len` tokens before that place equal the last ones, counted up to `LONGEST`; 0 where there is no such place.
    """

    def __init__(self, token_ids: Iterable[int] = ()) -> None:
        self.match_len = 0
        self._tokens: list[int] = []
        self._places: dict[tuple[int, ...], int] = {}
        self._place = 0
        for token_id in token_ids:
            self.push(token_id)

    @property
    def guess(self) -> int | None:
        """The next token, if there is a guess."""
        return self._tokens[self._place] if self.match_len else None

    def push(self, token_id: int) -> None:
        """The sequence goes on with `token_id`."""
        tokens = self._tokens
        if self.match_len and tokens[self._place] == token_id:
            self._place += 1
            self.match_len = min(LONGEST, self.match_len + 1)
        else:
            self.match_len = 0
        for length in _RUNS:
            # Indexed only now that it has something after it, so that the end never matches itself.
            if len(tokens) >= length:
                self._places[tuple(tokens[-length:])] = len(tokens)
        tokens.append(token_id)
        if not self.match_len:
            self._find()
        elif tokens[self._place] == NO_TOKEN:
            self.match_len = 0

    def propose(self, num_tokens: int) -> tuple[int, ...]:
        """Up to `num_tokens` guesses, in order. One that runs into the end goes on with itself: repetition repeats."""
        guesses: list[int] = []
        tokens, place = self._tokens, self._place
        while self.match_len and len(guesses) < num_tokens:
            index = place + len(guesses)
            token_id = tokens[index] if index < len(tokens) else guesses[index - len(tokens)]
            if token_id == NO_TOKEN:
                break
            guesses.append(token_id)
        return tuple(guesses)

    def _find(self) -> None:
        """Look for the place anew, by the last tokens."""
        tokens = self._tokens
        for length in _RUNS:
            run = tuple(tokens[-length:])
            place = self._places.get(run)
            if place is None or NO_TOKEN in run or tokens[place] == NO_TOKEN:
                continue
            while length < min(LONGEST, place) and tokens[place - length - 1] == tokens[-length - 1] != NO_TOKEN:
                length += 1
            self._place, self.match_len = place, length
            return
