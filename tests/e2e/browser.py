"""A real Chromium. A page that scrolls sideways, logs an error or fails a request fails its test."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DESKTOP = (1280, 800)
PHONE = (390, 844)


@contextmanager
def open_chromium() -> Iterator[Browser]:
    """Chromium, or a skip that says why; with CI=true a failure."""
    if CHROMIUM is None:
        message = "no Chromium found: install it (Debian: apt-get install chromium)"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@contextmanager
def visit(
    browser: Browser, url: str, size: tuple[int, int], *, dark: bool = False, may_lose_server: bool = False
) -> Iterator[Page]:
    """A page at `size`; on leaving, whatever its console complained about is an error.

    `may_lose_server`: the browser's own complaints about a server that is away are expected.
    """
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]}, color_scheme="dark" if dark else "light"
    )
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    origin = "/".join(url.split("/")[:3])
    page.on("request", lambda request: _note_foreign(request.url, origin, complaints))
    page.goto(url)
    page.wait_for_selector(".ww")
    yield page
    context.close()
    assert may_lose_server or complaints == []


def sideways_overflow(page: Page) -> int:
    """By how many pixels the page is wider than the window."""
    return page.evaluate("document.documentElement.scrollWidth - window.innerWidth")


def _note_foreign(requested: str, own: str, complaints: list[str]) -> None:
    if not requested.startswith((own, own.replace("http", "ws"), "data:", "blob:")):
        complaints.append(f"the page asked another server: {requested}")
