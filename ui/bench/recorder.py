"""What came back for one request, token by token, and when. Knows nothing of servers, loads or statistics.

Times are seconds of this process's monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise


class Kind(StrEnum):
    """Who asked: a person in a chat, a camera with a frame, or somebody with a long document."""

    CHAT = "chat"
    CAMERA = "camera"
    DOCUMENT = "document"


class Outcome(StrEnum):
    """How a request ended. `CUT` was ended by this program, with the tokens it had by then."""

    OPEN = "open"
    OK = "ok"
    CUT = "cut"
    FAILED = "failed"


@dataclass(slots=True)
class Recording:
    """One request and the arrivals of its answer's tokens; written while the answer streams in.

    `t_tokens` has one time per chunk that carried content; a chunk without content is no token. A server may put
    several tokens into one chunk: `num_tokens` is then the server's own count, where it gives one. `prompt_tokens` is
    what was meant, or the server's count once the answer is whole.
    """

    kind: Kind
    stream: int
    t_sent: float
    t_tokens: list[float] = field(default_factory=list)
    t_end: float | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    outcome: Outcome = Outcome.OPEN
    error: str | None = None

    def take(self, content: str | None, now: float) -> None:
        """A chunk arrived."""
        if content:
            self.t_tokens.append(now)

    def end(self, outcome: Outcome, now: float, error: str | None = None) -> None:
        """The request is over."""
        self.outcome, self.t_end, self.error = outcome, now, error

    @property
    def gaps(self) -> list[float]:
        """Seconds from each token to the next."""
        return [later - earlier for earlier, later in pairwise(self.t_tokens)]

    @property
    def ttft(self) -> float | None:
        """Seconds from the request to its first token; None while there is none."""
        return self.t_tokens[0] - self.t_sent if self.t_tokens else None

    @property
    def e2e(self) -> float | None:
        """Seconds from the request to its last token; None unless the answer is whole."""
        return self.t_tokens[-1] - self.t_sent if self.outcome is Outcome.OK and self.t_tokens else None

    @property
    def num_tokens(self) -> int:
        """Tokens of the answer so far."""
        return max(self.completion_tokens or 0, len(self.t_tokens))
