"""The hidden `watchword app`: cameras, pipeline and page in one process, told what to do on standard input."""

from __future__ import annotations

import asyncio
import sys


def app() -> int:
    """Run the cameras, the pipeline and the page that standard input describes."""
    from ui.commands.app_settings import AppSettings

    settings = AppSettings.from_json(sys.stdin.read())
    from ui.web.live import serve_live

    return asyncio.run(serve_live(settings))
