"""Every state a person may meet the page in, at a desk and (dark) on a phone: its words, its looks, its usability.

One page goes through all of them without being loaded anew. WATCHWORD_SCREENSHOTS names a folder for the pictures; else
they lie in the test's own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.e2e.browser import sideways_overflow, visit
from tests.e2e.site import staged_page

pytestmark = pytest.mark.browser

DESK, HAND = (1280, 800), (375, 720)
SIZES = {"desktop": DESK, "phone": HAND}


@pytest.fixture
def look(tmp_path: Path) -> Callable[[Page, str], None]:
    """What is done in every state: a picture of it in both sizes, and that nothing is cut off or hard to use."""
    folder = Path(os.environ.get("WATCHWORD_SCREENSHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)

    def look(page: Page, state: str) -> None:
        for name, (width, height) in SIZES.items():
            page.set_viewport_size({"width": width, "height": height})
            page.emulate_media(color_scheme="dark" if name == "phone" else "light")
            page.wait_for_timeout(200)  # for what that sets in motion
            page.screenshot(path=folder / f"{state}-{name}.png", full_page=name == "phone")
            assert sideways_overflow(page) <= 0, f"{state} at {width} pixels"
            assert cut_off(page) == [], f"{state} at {width} pixels"
            assert "\n".join(serious(page)) == "", f"{state} at {width} pixels"
        page.set_viewport_size({"width": DESK[0], "height": DESK[1]})
        page.emulate_media(color_scheme="light")

    return look


def serious(page: Page) -> list[str]:
    violations = Axe().run(page).response["violations"]
    return [
        f"{violation['id']}: {node['html'][:160]} {node.get('failureSummary', '')[:200]}"
        for violation in violations
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
    ]


def cut_off(page: Page) -> list[str]:
    """Controls and headings that reach out of their panel sideways, or lie outside the window's width."""
    return page.evaluate(
        """() => [...document.querySelectorAll('.ww :is(h1, h2, button, input, select, textarea, label):not(.sr)')]
          .filter((element) => element.checkVisibility())
          .filter((element) => {
            const box = element.getBoundingClientRect();
            const room = (element.closest('.panel') ?? document.documentElement).getBoundingClientRect();
            return box.left < room.left - 1 || box.right > room.right + 1;
          })
          .map((element) => element.outerHTML.slice(0, 120))"""
    )


def test_every_state(chromium: Browser, look: Callable[[Page, str], None]) -> None:
    with (
        staged_page(cameras=0, password="correct horse") as (url, show),
        visit(chromium, f"{url}/", DESK, may_lose_server=True) as page,  # refusals and a lost server are errors to it
    ):
        a_person_logs_in(page, look)
        expect(page.locator(".cams-box")).to_contain_text("No camera yet")
        expect(page.locator(".p-captions .void")).to_contain_text("No captions yet")
        expect(page.locator(".strip-note")).to_contain_text("The engine rests until somebody asks")
        look(page, "empty")
        show("loading")
        expect(page.locator(".ww-engine .state:visible")).to_have_text("Engine preparing compiled kernels")
        expect(page.locator("[data-rate=since]")).to_have_text("44 s since the start")
        expect(page.locator(".strip-note")).to_contain_text("For 31 s now, 44 s since the start")
        expect(page.locator(".strip-note")).to_contain_text("kernels are compiled once per machine (a minute)")
        expect(page.locator(".cam .state")).to_have_text(["Connecting"] * 3)
        look(page, "loading")
        show("live")
        it_is_live(page)
        look(page, "live")
        show("camera-down")
        expect(page.locator("[data-camera=door]")).to_contain_text("connection refused by door:554")
        expect(page.locator("[data-camera=gate] .state")).to_have_text("No new picture")
        expect(page.locator("[data-camera=shed]")).to_contain_text("No picture. It is tried again")
        expect(page.locator("[data-camera=shed]")).to_contain_text("the user or the password is wrong")
        look(page, "camera-down")
        show("backend-down")
        expect(page.locator(".ww-engine .state:visible")).to_have_text("Engine down, being restarted")
        expect(page.locator(".strip-note")).to_contain_text("captions and chat come back by themselves")
        ask(page, "Is anybody there?")
        expect(page.locator(".turn.theirs").last).to_contain_text("The engine is being started.")
        look(page, "backend-down")
        show("error")
        expect(page.locator(".p-captions .trouble")).to_contain_text("Events are not being kept: no space left")
        expect(page.locator(".card[data-state=failed]")).to_contain_text("the backend did not answer within 120 s")
        ask(page, "And now?")
        expect(page.locator(".turn.theirs").last).to_contain_text("this model reads no pictures")
        look(page, "error")
        show("other-engine")
        expect(page.locator(".ww-engine .state:visible")).to_have_text("Backend answering")
        expect(page.locator(".strip-note")).to_contain_text("cannot be shown")
        look(page, "other-engine")
        page.goto(f"{url}/event/event-000007")
        expect(page.get_by_role("heading", level=1)).to_contain_text("Visit 7.")
        look(page, "event")
        page.goto(f"{url}/event/nothing")
        expect(page.locator("body")).to_contain_text("There is no such event any more.")
        look(page, "no-event")
        page.goto(f"{url}/")
        expect(page.locator(".cam[data-seq]")).to_have_count(3)
        show("")
        expect(page.locator(".ww-engine .state:visible")).to_have_text("Watchword stopped – trying to reconnect")
        look(page, "stopped")


def a_person_logs_in(page: Page, look: Callable[[Page, str], None]) -> None:
    look(page, "login")
    page.get_by_label("Password").fill("wrong horse")
    page.get_by_label("Password").press("Enter")
    expect(page.get_by_role("alert")).to_have_text("That is not the password.")
    look(page, "login-wrong")
    page.get_by_label("Password").fill("correct horse")
    page.get_by_label("Password").press("Enter")
    expect(page.locator(".ww-engine .state:visible")).to_have_text("Engine running")


def it_is_live(page: Page) -> None:
    expect(page.locator(".cam[data-seq] .state")).to_have_text(["Live"] * 3)
    expect(page.locator(".cam-box")).to_have_count(3)
    expect(page.locator(".card[data-state=streaming]")).to_contain_text("A man in a red")
    expect(page.locator(".card[data-state=ok]").nth(5)).to_be_attached()
    expect(page.locator(".shares-words")).to_contain_text(re.compile(r"page \d+ %"))
    page.get_by_label("Use what the cameras saw").check()
    ask(page, "Who walks a dog?")
    expect(page.locator(".turn-events a").first).to_be_visible()
    expect(page.locator(".stats")).to_contain_text("glass to caption")


def ask(page: Page, question: str) -> None:
    page.get_by_label("Message").fill(question)
    page.get_by_label("Message").press("Enter")
