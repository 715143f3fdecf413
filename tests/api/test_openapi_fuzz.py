"""schemathesis on our own OpenAPI document: whatever fits it, and much that does not, is answered without a 5xx."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.api.conftest import Scripted
from tests.minutes import long_minutes

Start = Callable[..., Scripted]


MIN_ANSWERS = 20
"""Requests that must have come as far as the model."""


def fuzz(rig: Scripted, directory: Path, *, max_time_s: int) -> None:
    command = shutil.which("schemathesis", path=str(Path(sys.executable).parent))
    assert command, "schemathesis is not installed"
    done = subprocess.run(
        [
            *(command, "run", rig.live.root + "/openapi.json", "--checks=not_a_server_error", "--seed=1"),
            *("--phases=examples,coverage,fuzzing", f"--max-time={max_time_s}", "--request-timeout=20"),
            *("--exclude-path=/engine/config", "--suppress-health-check=all", "--no-color"),
        ],
        capture_output=True,
        text=True,
        timeout=max_time_s + 120,
        check=False,
        cwd=directory,
        env=os.environ | {"SCHEMATHESIS_HOOKS": ""},
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "Server error" not in done.stdout
    num_cases = max(map(int, re.findall(r"(\d+) passed", done.stdout)), default=0)
    assert num_cases > 50, f"it tried next to nothing: {done.stdout[-2000:]}"
    engine = rig.live.service.engine
    answered = {chunk.request_id for step in rig.runner.steps for chunk in step.chunks if chunk.samples}
    for prefix in ("chatcmpl-", "resp_", "cmpl-"):
        assert any(name.startswith(prefix) for name in answered), f"it never came to {prefix}"
    assert len(answered) > MIN_ANSWERS, "hardly anything was answered: it tried refusals only"
    rig.live.wait_until(lambda: engine.stats().num_running == 0)
    assert engine.stats().num_blocks_used == 0
    assert rig.live.openai().responses.create(model="scripted", input="hi").output_text == "Hey"


def test_nothing_that_fits_the_document_breaks_the_server(scripted: Start, tmp_path: Path) -> None:
    fuzz(scripted("Hey"), tmp_path, max_time_s=15)


@pytest.mark.long
@pytest.mark.timeout(60 * long_minutes() + 300)
def test_nothing_that_fits_the_document_breaks_the_server_for_long(scripted: Start, tmp_path: Path) -> None:
    fuzz(scripted("Hey"), tmp_path, max_time_s=round(60 * long_minutes()))
