"""Programs of other people, unmodified, against a live server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.api.conftest import Scripted
from tests.api.test_images import data_uri
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


def test_transformers_chat(scripted: Start, tmp_path: Path) -> None:
    rig = scripted("A plain answer.")
    done = subprocess.run(
        [str(Path(sys.executable).parent / "transformers"), "chat", "scripted", rig.live.base_url],
        input="What is it?\n!exit\n",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path), "COLUMNS": "100"},
    )
    assert "A plain answer." in done.stdout, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    prompts = [c.token_ids for step in rig.runner.steps for c in step.chunks if c.start == 0]
    assert [rig.adapter.core.decode(list(ids)) for ids in prompts] == ["What is it?"]


def test_a_provider_as_frigate_has_it(scripted: Start) -> None:
    """It asks for the context first, then sends thumbnails at low detail and reads one answer, not streamed."""
    live = scripted("Somebody walks past.").live
    client = live.openai()
    (model,) = client.models.list().data
    assert model.model_extra
    assert model.model_extra["max_model_len"] == 256
    thumbnail = data_uri("red", "JPEG")
    assert thumbnail.startswith("data:image/jpeg;base64,")
    parts = [{"type": "image_url", "image_url": {"url": thumbnail, "detail": "low"}}] * 3
    messages: Any = [{"role": "user", "content": [{"type": "text", "text": "Describe it."}, *parts]}]
    reply = client.chat.completions.create(model=model.id, messages=messages, timeout=30)
    assert reply.choices[0].message.content == "Somebody walks past."
    assert reply.choices[0].finish_reason == "stop"
