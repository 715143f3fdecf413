"""axe finds nothing serious on any page, in either theme."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.e2e.browser import DESKTOP, PHONE, visit
from tests.e2e.site import page_only

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with page_only(cameras=3, events=30, password="correct horse") as url:
        yield url


def serious(page: Page) -> list[str]:
    violations = Axe().run(page).response["violations"]
    return [
        f"{violation['id']}: {node['html'][:160]} {node.get('failureSummary', '')[:200]}"
        for violation in violations
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
    ]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_nothing_serious(site: str, chromium: Browser, dark: bool) -> None:
    size = PHONE if dark else DESKTOP
    with visit(chromium, f"{site}/login", size, dark=dark) as page:
        assert "\n".join(serious(page)) == ""
        page.get_by_label("Password").fill("correct horse")
        page.get_by_label("Password").press("Enter")
        expect(page.locator(".cam[data-seq]")).to_have_count(2)
        page.get_by_label("Use what the cameras saw").check()
        page.get_by_label("Message").fill("Who walks a dog?")
        page.get_by_label("Message").press("Enter")
        expect(page.locator(".turn-events a").first).to_be_visible()
        expect(page.locator(".shares-words")).to_contain_text("page")
        assert "\n".join(serious(page)) == ""
        page.get_by_label("Search captions").fill("elephants")
        expect(page.locator(".p-captions .void")).to_contain_text("Nothing found")
        assert "\n".join(serious(page)) == ""
        page.goto(f"{site}/event/event-000007")
        expect(page.get_by_role("heading", level=1)).to_contain_text("Visit 7.")
        assert "\n".join(serious(page)) == ""
