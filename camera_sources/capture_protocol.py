"""What a live source and its capture process say to each other, one JSON object a line. Data only.

Down the child's stdin goes one Order, which is the only place where the URL appears; the pipe then stays open: a WISH
asks for the next picture, and the pipe's end tells the child to leave. Up its stdout come Notices.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum

WISH = b"\n"


@dataclass(frozen=True, slots=True)
class Order:
    """What to capture (a stream's URL or a webcam's number), and the descriptor of the memory for its pictures."""

    target: str | int
    memory_fd: int
    parent_pid: int
    open_timeout_s: float
    read_timeout_s: float

    def __repr__(self) -> str:
        return "Order(…)"  # the target carries credentials

    def to_line(self) -> bytes:
        """The order as it is sent."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @staticmethod
    def from_line(line: bytes) -> Order:
        """The order as it was sent."""
        return Order(**json.loads(line))


class Ending(StrEnum):
    """Why a capture process gave up."""

    NO_OPENCV = "no_opencv"
    NOT_OPENED = "not_opened"
    BROKE_OFF = "broke_off"


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture lies in shared memory. `number` counts decoded frames from 0; `raw_pts_s` is as the stream says it."""

    number: int
    t_mono: float
    t_wall: float
    raw_pts_s: float
    offset: int
    stamp: int
    height: int
    width: int


@dataclass(frozen=True, slots=True)
class Passed:
    """A frame was decoded, numbered like pictures, and nobody had asked for it."""

    number: int
    t_mono: float
    raw_pts_s: float


@dataclass(frozen=True, slots=True)
class Ended:
    """The capture process leaves by itself."""

    ending: Ending
    detail: str = ""


Notice = Picture | Passed | Ended


def to_line(notice: Notice) -> bytes:
    """`notice` as it is sent."""
    return json.dumps({"notice": type(notice).__name__, **asdict(notice)}).encode() + b"\n"


def from_line(line: bytes) -> Notice:
    """The notice in `line`; raises ValueError if there is none."""
    try:
        fields = json.loads(line)
        name = fields.pop("notice")
        if name == "Picture":
            return Picture(**fields)
        if name == "Passed":
            return Passed(**fields)
        return Ended(Ending(fields["ending"]), fields["detail"])
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError("not a notice") from error
