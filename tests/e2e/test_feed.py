"""Eight cameras and ten thousand events on one page: it opens whole, scrolls and searches without another page load."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, expect

from tests.e2e.browser import DESKTOP, PHONE, sideways_overflow, visit
from tests.e2e.site import page_only

pytestmark = pytest.mark.browser

NUM_EVENTS = 10_000


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with page_only(cameras=8, events=NUM_EVENTS) as url:
        yield url


def test_a_desk_with_eight_cameras(site: str, chromium: Browser, tmp_path: Path) -> None:
    with visit(chromium, f"{site}/", DESKTOP) as page:
        all_pictures_come_over_one_socket(page)
        the_past_is_read_by_scrolling(page)
        the_feed_is_filtered_and_searched(page)
        one_camera_is_shown_alone(page)
        a_question_is_asked_about_a_picture(page, tmp_path)
        a_question_is_asked_about_what_the_cameras_saw(page)
        assert sideways_overflow(page) <= 0


def all_pictures_come_over_one_socket(page: Page) -> None:
    expect(page.locator(".cam[data-seq]")).to_have_count(7)
    expect(page.locator(".cam[data-camera=shed] .state")).to_have_text("Down")
    expect(page.locator(".cam[data-camera=shed] .cam-why")).to_have_text("connection refused")
    before = page.locator(".cam[data-camera=yard]").get_attribute("data-seq") or ""
    expect(page.locator(".cam[data-camera=yard]")).not_to_have_attribute("data-seq", before)
    expect(page.locator(".cam[data-camera=yard] .cam-box")).to_have_count(1)
    fetched = page.evaluate("performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert not [name for name in fetched if "/frames/" in name or "/live/cameras" in name]


def the_past_is_read_by_scrolling(page: Page) -> None:
    page.evaluate("document.body.dataset.mark = 'same document'")
    expect(page.locator(".card")).not_to_have_count(0)
    for _ in range(6):
        before = page.locator(".card").count()
        page.locator(".feed").evaluate("feed => feed.scrollTo(0, feed.scrollHeight)")
        expect(page.locator(".card").nth(before)).to_be_attached()
    events = page.locator(".card").evaluate_all("cards => cards.map((card) => card.dataset.event)")
    assert events == [f"event-{NUM_EVENTS - 1 - n:06d}" for n in range(len(events))], (
        "in order, none twice, none missing"
    )
    assert len(events) > 200
    expect(page.locator("body")).to_have_attribute("data-mark", "same document")


def the_feed_is_filtered_and_searched(page: Page) -> None:
    page.get_by_label("Camera", exact=True).select_option("door")
    expect(page.locator(".card .cam-name").first).to_have_text("door")
    names = page.locator(".card .cam-name").all_text_contents()
    assert set(names) == {"door"}
    page.get_by_label("Search captions").fill("ladder visit 4001")
    expect(page.locator(".card")).to_have_count(1)
    expect(page.locator(".card-text")).to_contain_text("Visit 4001.")
    page.get_by_label("Search captions").fill('elephant" OR *')
    expect(page.locator(".p-captions .void")).to_contain_text("Nothing found")
    page.get_by_label("Search captions").fill("")
    page.get_by_label("Camera", exact=True).select_option("")
    expect(page.locator(".card").first).to_have_attribute("data-event", f"event-{NUM_EVENTS - 1:06d}")


def one_camera_is_shown_alone(page: Page) -> None:
    page.get_by_role("button", name="gate: show alone").press("Enter")
    expect(page.locator(".cam:visible")).to_have_count(1)
    expect(page.locator(".cam:visible .cam-fps")).to_have_text("detector 5.0 fps")
    page.get_by_role("button", name="gate: show alone").press("Enter")
    expect(page.locator(".cam:visible")).to_have_count(8)


def a_question_is_asked_about_a_picture(page: Page, tmp_path: Path) -> None:
    text, picture = tmp_path / "notes.txt", tmp_path / "street.png"
    text.write_text("no picture")
    Image.new("RGB", (64, 48), "red").save(picture)
    add = page.get_by_label("Add a picture")
    add.set_input_files(text)
    expect(page.locator(".ask-wrong")).to_contain_text("no picture that can be read")
    add.set_input_files(picture)
    expect(page.locator(".added img")).to_be_visible()
    expect(page.locator(".ask-wrong")).to_be_empty()
    page.get_by_role("button", name="Send").click()
    expect(page.locator(".turn.mine .turn-text")).to_have_text("Describe the image.")
    expect(page.locator(".turn.mine img")).to_be_visible()
    expect(page.locator(".turn.theirs")).to_have_attribute("data-state", "ok")
    expect(page.locator(".added")).to_be_hidden()
    expect(page.locator(".turn-events")).to_have_count(0)


def a_question_is_asked_about_what_the_cameras_saw(page: Page) -> None:
    page.get_by_label("Use what the cameras saw").check()
    page.get_by_label("Message").fill("Who carried the ladder?")
    page.get_by_label("Message").press("Enter")
    links = page.locator(".turn-events a")
    expect(links).to_have_count(9)
    expect(links.first).to_have_attribute("href", re.compile("event/event-"))
    page.get_by_role("button", name="New conversation").click()


def test_an_event_has_a_page_of_its_own(site: str, chromium: Browser) -> None:
    with visit(chromium, f"{site}/event/event-000007", DESKTOP) as page:
        expect(page.get_by_role("heading", level=1)).to_contain_text("Visit 7.")
        expect(page.locator(".event-pic .cam-box")).to_have_count(1)
        box, picture = page.locator(".cam-box").bounding_box(), page.locator(".event-pic").bounding_box()
        assert box is not None
        assert picture is not None
        assert box["y"] - picture["y"] == pytest.approx(picture["height"] * 115 / 360, abs=3)
        expect(page.locator("dl").first).to_contain_text("Glass to caption2.4 s")
        page.keyboard.press("ArrowRight")
        expect(page.get_by_role("heading", level=1)).to_contain_text("Visit 8.")
        page.get_by_role("link", name="Older").click()
        expect(page.get_by_role("heading", level=1)).to_contain_text("Visit 7.")
        page.set_viewport_size({"width": 375, "height": 700})
        assert sideways_overflow(page) <= 0
        assert page.request.get(f"{site}/event/nothing").status == 404


def test_a_phone_held_upright(site: str, chromium: Browser) -> None:
    with visit(chromium, f"{site}/", PHONE, dark=True) as page:
        expect(page.locator(".cam[data-seq]")).to_have_count(7)
        expect(page.locator(".card").first).to_have_attribute("data-event", re.compile("event-"))
        assert sideways_overflow(page) <= 0
        page.set_viewport_size({"width": 375, "height": 700})
        assert sideways_overflow(page) <= 0
