"""The hidden `watchword app`: cameras, pipeline and page in one process, told what to do on standard input."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from ui.commands.app_settings import AppSettings


def app() -> int:
    """Run the cameras, the pipeline and the page that standard input describes."""
    from ui.commands.app_settings import AppSettings

    return asyncio.run(_app(AppSettings.from_json(sys.stdin.read())))


async def _app(settings: AppSettings) -> int:
    """Serve the page, and tell the terminal how cameras and captions go; the supervisor relays that."""
    from pipeline.feed import Feed
    from ui.commands.news import News
    from ui.web.live import serve_live

    feed = Feed()
    with feed.subscribe() as news:
        telling = asyncio.create_task(News(lambda line: typer.echo(line, err=True)).follow(news))
        try:
            return await serve_live(settings, feed)
        finally:
            news.close()
            await telling
