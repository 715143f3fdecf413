"""What a person sees on the terminal when cameras or the backend are not there: a line for each, no secret in it."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cameras.fixtures import free_port
from tests.e2e.product import Product
from tests.unit.ui.scripted_engine import ScriptedEngine

LOCAL = "127.0.0.1"
START_S = 120.0


async def test_watch_tells_of_a_camera_that_is_not_there_and_sums_up_at_ctrl_c(tmp_path: Path) -> None:
    camera = f"yard=rtsp://admin:hunter2@{LOCAL}:{free_port()}/live"
    async with ScriptedEngine(is_ours=False) as backend:
        arguments = (camera, "--jsonl=-", f"--base-url={backend.url}")
        lines = await asyncio.to_thread(watch_until, "yard is down", arguments, tmp_path / "stderr")
    assert lines[-2].startswith("yard is down: connection refused")
    assert lines[-1] == "Stopped: 0 events"
    assert "hunter2" not in "".join(lines)


def test_run_tells_of_both_and_goes_on(tmp_path: Path) -> None:
    camera = f"yard=rtsp://admin:hunter2@{LOCAL}:{free_port()}/live"
    backend = f"http://{LOCAL}:{free_port()}/v1"
    with Product(camera, f"--base-url={backend}", home=tmp_path) as product:
        assert f"watchword: no answer from an engine at {backend} (connection refused)" in product.lines[0]
        product.until(lambda: product.has_said("app  yard is down: connection refused"))
        product.process.send_signal(signal.SIGINT)
        assert product.process.wait(10) == 0
    assert product.lines[-1] == "Stopped."
    assert not product.has_said("hunter2")


def watch_until(words: str, arguments: tuple[str, ...], log: Path) -> list[str]:
    """What `watchword watch` prints on stderr when it is interrupted after it has said `words`."""
    command = [sys.executable, "-m", "ui.cli", "watch", *arguments]
    deadline = time.monotonic() + START_S
    with log.open("w") as stderr, subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr) as process:
        try:
            while words not in log.read_text():
                if "could not download" in log.read_text():
                    pytest.skip("the package index cannot be reached for the detector")
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)
            process.send_signal(signal.SIGINT)
            assert process.wait(10) == 130
        finally:
            process.kill()
    return log.read_text().splitlines()
