"""Programs of other people, unmodified, against a live server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from tests.api.conftest import Scripted
from tests.architecture.sources import ROOT

Start = Callable[..., Scripted]


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "street.png"
    Image.new("RGB", (64, 48), (200, 30, 30)).save(path)
    return path


def test_ultralytics_llm_with_both_of_its_apis(scripted: Start, picture: Path) -> None:
    rig = scripted("A red street.")
    done = subprocess.run(
        [sys.executable, "-m", "tests.api.ultralytics_client", rig.live.base_url, str(picture)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "YOLO_CONFIG_DIR": str(picture.parent)},
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    for api in ("responses", "chat.completions"):
        answers = said[api]
        assert "fetching is off" in answers.pop("url"), api
        assert answers.pop("streamed") > 5, api
        assert set(answers.values()) == {"A red street."}, api
        assert set(answers) == {"text", "path", "array", "pil", "4k", "turns", "async"}
    small = [image.resize((1, 1)).tobytes() for image in rig.adapter.seen_images if image.width == 64]
    assert len(small) == 6
    assert all(r > 180 and g < 60 and b < 60 for r, g, b in small), "BGR was taken for RGB"
    assert sum(image.width > 1000 for image in rig.adapter.seen_images) == 2
