"""`watchword config check` on files as people break them: line, field and remedy for each kind of fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from ui.cli import execute

YARD = "cameras:\n  - name: yard\n    source: rtsp://10.0.0.7/live\n"

BROKEN = {
    "a key misspelt": (
        "cameras:\n  - name: yard\n    source: rtsp://10.0.0.7/live\n    intervall_s: 30\n",
        ["4: cameras[0].intervall_s (camera yard): unknown setting; did you mean interval_s?"],
    ),
    "a setting indented too deep": (
        "cameras:\n  - name: yard\n    source: yard.mp4\n      loop: true\n",
        ["4: not valid YAML: `loop` is indented unlike the settings beside it; begin it below them"],
    ),
    "a polygon whose corners are out of order": (
        YARD + "    zones:\n      - name: drive\n        polygon: [[0, 0.5], [1, 0.5], [0, 1], [1, 1]]\n",
        [
            "6: cameras[0].zones[0].polygon (camera yard): crosses itself between points 2 and 4; "
            "order its points around the area"
        ],
    ),
    "two cameras of one name": (
        YARD + "  - name: yard\n    source: rtsp://10.0.0.8/live\n",
        ["4: cameras[1].name (camera yard): two cameras are named yard; give each a name of its own"],
    ),
    "a secret that cannot be read": (
        YARD + "    username: guard\n    password_file: no/such/secret\n",
        ["5: cameras[0].password_file (camera yard): cannot read no/such/secret: no such file or directory"],
    ),
    "a URL of a scheme that is none": (
        "cameras:\n  - name: yard\n    source: rstp://guard:hunter2@10.0.0.7/live\n",
        [
            "3: cameras[0].source (camera yard): rstp://***@10.0.0.7/live: unknown scheme 'rstp'; use one of rtsp, "
            "rtsps, rtmp, rtmps, http, https"
        ],
    ),
    "a value of another kind": (
        YARD + "    loop: sometimes\n",
        ['4: cameras[0].loop (camera yard): must be true or false, not "sometimes"'],
    ),
    "a number out of range": (
        YARD + "    detector_fps: 100\n",
        ["4: cameras[0].detector_fps (camera yard): must be at most 30, not 100"],
    ),
    "a camera without a source": (
        "cameras:\n  - name: yard\n    loop: true\n",
        [
            "2: cameras[0].source (camera yard): is missing: a URL, a video file, a folder of images or a "
            "webcam's number"
        ],
    ),
    "a tab": (
        "cameras:\n  - name: yard\n\tsource: yard.mp4\n",
        ["3: not valid YAML: a tab stands in front; indent with spaces"],
    ),
    # ten so far; what else people write
    "a key twice": (YARD + "    source: hunter2\n", ["4: source is given twice; keep one"]),
    "a setting indented too little": (
        "cameras:\n  - name: yard\n    source: yard.mp4\n   loop: true\n",
        ["4: not valid YAML: `loop` is indented unlike the settings beside it; begin it below them"],
    ),
    "a camera's setting at the top": (
        YARD + "loop: true\n",
        ["4: loop: unknown setting; it belongs below `cameras:`, indented as what is there"],
    ),
    "no space after the colon": (
        "model:demo\n" + YARD,
        ["1: not valid YAML: a space is missing after `model:`"],
    ),
    "cameras without a dash": (
        "cameras:\n  name: yard\n  source: yard.mp4\n",
        ["1: cameras: must be a list, not a group of settings; begin each with `- name: …`"],
    ),
    "a fact that begins the prompt": (
        YARD + "    prompt: {count} people\n",
        ["4: not valid YAML: what stands after `prompt:` begins with { but does not end like that; put text in quotes"],
    ),
    "a colon in a prompt": (
        YARD + "    prompt: Note: be brief\n",
        ["4: not valid YAML: the text after `prompt:` has a colon in it; put it in quotes"],
    ),
    "a password that begins with a sign": (
        YARD + "    username: guard\n    password: %hunter2\n",
        ["5: not valid YAML: text that begins with % needs quotes"],
    ),
    "a password that is a comment": (
        YARD + "    username: guard\n    password: #hunter2\n",
        [
            "5: cameras[0].password (camera yard): is empty; put it in quotes, for # begins a comment, or drop it",
        ],
    ),
    "a password that is an alias": (
        YARD + "    username: guard\n    password: *hunter2\n",
        ["5: not valid YAML: text that begins with * needs quotes"],
    ),
    "a quotation mark left open": (
        'cameras:\n  - name: yard\n    prompt: "hunter2\n    source: yard.mp4\n',
        ["3: not valid YAML: a quotation mark is opened here and never closed"],
    ),
    "a polygon without points": (
        YARD + "    zones:\n      - {name: drive, polygon: [0, 0.5, 1, 1]}\n",
        [
            "5: cameras[0].zones[0].polygon (camera yard): must be a list of points [x, y], such as "
            "[[0, 0.5], [1, 0.5], [1, 1]]"
        ],
    ),
}


@pytest.mark.parametrize(("text", "expected"), BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_told_with_line_field_and_remedy(
    text: str, expected: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "watchword.yaml"
    path.write_text(text)
    assert execute(["config", "check", str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.err.splitlines() == [f"{path}:{line}" for line in expected]
    assert captured.out == ""
    assert "hunter2" not in captured.err


@pytest.mark.parametrize("text", [YARD, "model: demo\n", "", YARD + "    prompt: 'Note: {count} people @ the gate'\n"])
def test_a_good_file_is_called_good(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "watchword.yaml"
    path.write_text(text)
    assert execute(["config", "check", str(path)]) == 0
    assert capsys.readouterr().out.startswith(f"{path} is good; cameras: {'yard' if 'yard' in text else 'none'}")
