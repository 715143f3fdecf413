"""How long prompts and answers are: named mixes of realistic lengths, drawn by seed, and words that fill a prompt.

Knows nothing of servers; how many tokens a word has is measured elsewhere and given here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

_P90 = 1.2815515655446004
"""The standard normal distribution's 90th percentile."""

_WORDS = (
    "the of and to in is it you that he was for on are with as his they be at one have this from or had by hot but "
    "some what there we can out other were all your when up use word how said an each she which do their time if will "
    "way about many then them would write like so these her long make thing see him two has look more day could go "
    "come did my sound no most number who over know water than call first people may down side been now find"
)
VOCABULARY = tuple(_WORDS.split(" "))
SLACK = 16
"""A context is used but for so many tokens and one in so many."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of one request: its prompt, and the most its answer may have."""

    prompt: int
    answer: int

    def within(self, max_model_len: int | None) -> Lengths:
        """The same, cut to fit a model's context: the answer gives way down to a quarter of it, then the prompt does.

        Leaves some room, because a prompt is made of words, and only about so many tokens long.
        """
        if max_model_len is None:
            return self
        room = max(2, max_model_len - SLACK - max_model_len // SLACK)
        answer = min(self.answer, max(1, room // 4, room - self.prompt))
        return Lengths(max(1, min(self.prompt, room - answer)), answer)


@dataclass(frozen=True, slots=True)
class Spread:
    """Log-normal lengths, as real traffic has them, given by the median and the 90th percentile."""

    median: int
    p90: int
    least: int = 4

    def draw(self, rng: Random) -> int:
        """One length; never more than four times the 90th percentile."""
        sigma = math.log(self.p90 / self.median) / _P90
        return max(self.least, min(4 * self.p90, round(self.median * math.exp(sigma * rng.gauss(0.0, 1.0)))))


@dataclass(frozen=True, slots=True)
class Mix:
    """Lengths of prompts and answers that occur together."""

    prompt: Spread
    answer: Spread

    def draw(self, rng: Random) -> Lengths:
        """The lengths of one request."""
        return Lengths(self.prompt.draw(rng), self.answer.draw(rng))


MIXES = {
    "chat": Mix(Spread(40, 160), Spread(120, 300)),
    "rag": Mix(Spread(900, 1800), Spread(80, 160)),
    "openchat": Mix(Spread(1730, 5696), Spread(415, 834)),
    "arxiv": Mix(Spread(7059, 12985), Spread(208, 371)),
}
"""`chat` and `rag` suit small machines; `openchat` and `arxiv` have the medians and 90th percentiles of the two traces
that Sarathi-Serve was evaluated with."""


@dataclass(frozen=True, slots=True)
class Wording:
    """Makes prompts of about so many tokens. `overhead` are the tokens of an empty prompt, chat template included."""

    tokens_per_word: float = 1.3
    overhead: int = 30

    def at_least(self, lengths: Lengths) -> Lengths:
        """`lengths` with a prompt that is possible: no shorter than an empty one."""
        return Lengths(max(lengths.prompt, self.overhead), lengths.answer)

    def fill(self, num_tokens: int, rng: Random) -> str:
        """Words that bring a prompt to about `num_tokens`."""
        num_words = max(0, round((num_tokens - self.overhead) / self.tokens_per_word))
        return " ".join(rng.choices(VOCABULARY, k=num_words))
