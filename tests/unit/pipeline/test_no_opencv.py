"""A machine without OpenCV's system libraries: the commands say so in one line, and leave nothing running."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from tests.unit.pipeline.scripted_server import ScriptedServer


@pytest.mark.parametrize("kind", ["file", "stream", "folder"])
async def test_watch_says_what_to_install(kind: str, tmp_path: Path) -> None:
    (tmp_path / "cv2.py").write_text(
        "raise ImportError('libGL.so.1: cannot open shared object file: No such file or directory')"
    )
    weights, picture = tmp_path / "yolo.pt", tmp_path / "pictures" / "one.png"
    picture.parent.mkdir()
    for path in (weights, picture):
        path.write_bytes(b"whatever this holds")
    source = {"file": str(picture), "folder": str(picture.parent), "stream": "rtsp://127.0.0.1:9/live"}[kind]
    async with ScriptedServer() as server:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "ui.cli", "watch", source, "--jsonl", str(tmp_path / "out.jsonl")),
            *("--base-url", server.url, "--detector", str(weights)),
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        output, errors = (text.decode() for text in await asyncio.wait_for(process.communicate(), 60))
    assert (process.returncode, output) == (2, "")
    assert errors.startswith("watchword: OpenCV cannot start: libGL.so.1")
    assert "apt-get install libgl1" in errors
    assert errors.count("\n") == 1
