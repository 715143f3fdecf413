"""How an answer that streams in becomes a caption: as it is, or out of the JSON it is written in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from openai import Omit, omit

from pipeline.details import ASKED, SCHEMA, description_so_far, response_format, try_parse
from pipeline.events import Details
from pipeline.plain_text import plain

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
    """Words as they come, without control characters."""

    asked = ""
    response_format: ResponseFormatJSONSchema | Omit = omit
    num_times_longer = 1
    shows_later = False

    def __init__(self) -> None:
        self._text = ""

    def take(self, piece: str) -> str:
        """See `Answer`."""
        words = plain(piece)
        self._text += words
        return words

    def result(self) -> tuple[str, Details | None]:
        """See `Answer`."""
        return self._text.strip(), None


class JsonAnswer:
    """The description out of the JSON asked for. An answer cut short, or none of that shape, has no details."""

    asked = ASKED
    response_format: ResponseFormatJSONSchema | Omit = response_format("caption", SCHEMA)
    num_times_longer = 3
    shows_later = True

    def __init__(self) -> None:
        self._raw = ""
        self._shown = ""

    def take(self, piece: str) -> str:
        """See `Answer`."""
        self._raw += piece
        before, self._shown = self._shown, description_so_far(self._raw)
        return self._shown[len(before) :]

    def result(self) -> tuple[str, Details | None]:
        """See `Answer`."""
        if (whole := try_parse(self._raw)) is not None:
            return whole
        return self._shown.strip() or plain(self._raw).strip(), None
