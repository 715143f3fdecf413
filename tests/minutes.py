"""How long tests last that look for what only time shows: WATCHWORD_LONG_MINUTES, or ten."""

from __future__ import annotations

import os


def long_minutes() -> float:
    """Minutes for one such test."""
    return float(os.environ.get("WATCHWORD_LONG_MINUTES", "10"))
