"""How an answer that streams in becomes a caption: as it is, or out of the JSON it is written in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from openai import Omit, omit

from pipeline.details import ASKED, SCHEMA, description_so_far, response_format, try_parse
from pipeline.events import Details
from pipeline.plain_text import plain
from pipeline.thinking import Spoken, without_thoughts

if TYPE_CHECKING:
    from openai.types.shared_params import ResponseFormatJSONSchema


class Answer(Protocol):
    """One answer: what is asked beside the prompt, and what the pieces that arrive come to.

    `shows_later`: pieces count as the answer's beginning before they hold words to show.
    """

    asked: str
    response_format: ResponseFormatJSONSchema | Omit
    num_times_longer: int
    shows_later: bool

    def take(self, piece: str) -> str:
        """The words to show that are new with this piece."""
        ...

    def result(self) -> tuple[str, Details | None]:
        """The caption, stripped, empty if there is none, and its details."""
        ...


class TextAnswer:
    """Words as they come, without control characters and what the model thinks before."""

    asked = ""
    response_format: ResponseFormatJSONSchema | Omit = omit
    num_times_longer = 1
    shows_later = False

    def __init__(self) -> None:
        self._text = ""
        self._spoken = Spoken()

    def take(self, piece: str) -> str:
        """See `Answer`."""
        words = self._spoken.take(plain(piece))
        self._text += words
        return words

    def result(self) -> tuple[str, Details | None]:
        """See `Answer`."""
        return without_thoughts(self._text + self._spoken.rest).strip(), None


class JsonAnswer:
    """The description out of the JSON asked for. An answer cut short, or none of that shape, has no details."""

    asked = ASKED
    response_format: ResponseFormatJSONSchema | Omit = response_format("caption", SCHEMA)
    num_times_longer = 3
    shows_later = True

    def __init__(self) -> None:
        self._raw = ""
        self._shown = ""
        self._spoken = Spoken()

    def take(self, piece: str) -> str:
        """See `Answer`."""
        self._raw += self._spoken.take(piece)
        before, self._shown = self._shown, description_so_far(self._raw)
        return self._shown[len(before) :]

    def result(self) -> tuple[str, Details | None]:
        """See `Answer`."""
        raw = without_thoughts(self._raw + self._spoken.rest)
        if (whole := try_parse(raw)) is not None:
            return whole
        return description_so_far(raw).strip() or plain(raw).strip(), None
