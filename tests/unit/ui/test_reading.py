"""How far files are: bars for people, lines for logs, nothing for cameras."""

from __future__ import annotations

import io

from rich.console import Console

from camera_sources.base import SourceState, SourceStatus
from pipeline.feed import CameraChanged
from ui.commands.reading import LINE_EVERY_S, Reading


def read(num_frames: int, num_total: int | None, camera: str = "clip") -> CameraChanged:
    return CameraChanged(camera, SourceStatus(SourceState.LIVE, num_frames=num_frames, num_total=num_total), 5.0)


def told(*, shown: bool = True, is_terminal: bool = False) -> tuple[str, list[str]]:
    """What is printed while two files and a camera are read, ten seconds from one piece of news to the next."""
    out, now = io.StringIO(), [0.0]
    console = Console(file=out, force_terminal=is_terminal, width=80)
    with Reading(console, shown=shown, clock=lambda: now[0]) as reading:
        for num_frames in (10, 20):
            for item in (read(num_frames, 40), read(num_frames, None, "camera"), read(num_frames, 80, "other[1]")):
                reading.take(item)
                now[0] += LINE_EVERY_S / 2
        reading.take(CameraChanged("clip", SourceStatus(SourceState.ENDED, num_frames=39, num_total=40), 5.0))
        reading.say("[a line], as it is")
    return out.getvalue(), out.getvalue().splitlines()


def test_a_log_gets_a_line_now_and_then() -> None:
    _, lines = told()
    assert lines == [
        "clip: 25% read, other[1]: 12% read",
        "clip: 50% read, other[1]: 25% read",
        "[a line], as it is",
    ]


def test_a_terminal_gets_bars_above_which_lines_stand() -> None:
    text, _ = told(is_terminal=True)
    assert "100%" in text
    assert "other[1]" in text
    assert "[a line], as it is" in text
    assert "25% read" not in text


def test_nothing_is_shown_of_what_plays_at_its_own_pace() -> None:
    _, lines = told(shown=False)
    assert lines == ["[a line], as it is"]
