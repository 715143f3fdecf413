"""Captions in JSON: the pipeline's captioner against this engine, on random weights, which must fit all the same."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from pipeline import captioner as captioner_module
from pipeline.captioner import OpenAICaptioner
from pipeline.config import PipelineConfig
from pipeline.details import SCHEMA
from pipeline.events import Reason
from tests.api.conftest import live_checkpoint
from tests.unit.pipeline.fakes import job
from tests.unit.pipeline.test_captioner import Told


def jpeg(color: str) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (96, 64), color).save(out, "JPEG")
    return out.getvalue()


SHORT: dict[str, dict[str, Any]] = {
    "title": {"type": "string", "pattern": "^[A-Z][a-z]{2,9}$"},
    "description": {"type": "string", "pattern": "^[A-Z][a-z ]{2,30}$"},
    "count": {"type": "integer", "minimum": 0, "maximum": 9},
}
"""What random weights, which never come to an end by themselves, need beside the pipeline's own schema."""


async def test_an_engine_of_ours_is_held_to_the_captions_form(
    checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    properties: Any = SCHEMA["properties"]
    for name, kind in SHORT.items():
        monkeypatch.setitem(properties, name, kind)
    monkeypatch.setattr(captioner_module, "PROBE_TOKENS", 80)  # a byte is a token here
    with live_checkpoint(checkpoint("fast_vlm"), max_model_len=2048) as server:
        captioner = OpenAICaptioner(PipelineConfig("none.pt", server.base_url, max_caption_tokens=100))
        try:
            for event_id, color in (("e1", "red"), ("e2", "blue")):
                told = Told()
                wanted = replace(job(event_id, [1], Reason.NEW_TRACK), jpeg=jpeg(color), wants_details=True)
                caption = await captioner.caption(wanted, told)
                assert caption.details is not None, caption.text
                assert isinstance(caption.details.num_people, int)
                assert isinstance(caption.details.notable, bool)
                assert caption.details.title
                assert caption.text
                assert (caption.model, told.text.strip()) == ("tiny", caption.text.strip())
        finally:
            await captioner.close()
