"""Towers that take their time: an assumed pace, so that the tiny pictures of tests are cut into many slices."""

from __future__ import annotations

from typing import Any

from backend.models.adapter import ModelAdapter
from backend.models.patch_layout import Cost, Pace

_EACH = Cost(call_s=1e-4, row_s=1e-4)
SLOW = Pace(_EACH, _EACH, _EACH, _EACH, pair_s=1e-6)


def cut_finely(model: ModelAdapter) -> ModelAdapter:
    """`model`, its pictures in some twenty slices if its tower cuts them by a pace (others count blocks)."""
    adapter: Any = model
    if hasattr(getattr(adapter, "_tower", None), "set_pace"):
        adapter._tower.set_pace(SLOW)
    return model
