"""Cameras come and go on an open page, through its dialog."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect

from tests.e2e.browser import PHONE, sideways_overflow, visit
from tests.e2e.site import page_only

pytestmark = pytest.mark.browser


def test_a_camera_is_added_changed_and_removed(chromium: Browser) -> None:
    with page_only(cameras=2) as url, visit(chromium, f"{url}/", PHONE, may_lose_server=True) as page:
        expect(page.locator(".cam")).to_have_count(2)
        page.get_by_role("button", name="Edit cameras").press("Enter")
        dialog = page.get_by_role("dialog", name="Cameras")
        expect(dialog.get_by_role("listitem")).to_have_count(2)
        expect(dialog).to_contain_text("hold until Watchword stops")
        assert sideways_overflow(page) <= 0
        dialog.get_by_role("button", name="Add a camera").click()
        dialog.get_by_label("Name").fill("cellar")
        dialog.get_by_label("Source").fill("/nowhere.mp4")
        dialog.get_by_role("button", name="Save").click()
        expect(dialog.get_by_role("alert")).to_have_text("source: no such file")
        expect(dialog.get_by_label("Source")).to_be_focused()
        expect(dialog.get_by_label("Source")).to_have_attribute("aria-invalid", "true")
        dialog.get_by_label("Source").fill("rtsp://cellar/live")
        dialog.get_by_role("button", name="Save").click()
        expect(page.locator(".cam[data-camera=cellar] .state")).to_have_text("Connecting")
        dialog.get_by_role("button", name="Edit cellar").click()
        expect(dialog.get_by_label("Source")).to_have_value("rtsp://cellar/live")
        dialog.get_by_label("Prompt").fill("What is new in {camera}?")
        dialog.get_by_role("button", name="Save").click()
        dialog.get_by_role("button", name="Edit cellar").click()
        expect(dialog.get_by_label("Prompt")).to_have_value("What is new in {camera}?")
        dialog.get_by_role("button", name="Cancel").click()
        dialog.get_by_role("button", name="Remove cellar").click()
        expect(page.locator(".cam")).to_have_count(3)  # once is not enough
        dialog.get_by_role("button", name="Really remove").click()
        expect(page.locator(".cam")).to_have_count(2)
        page.keyboard.press("Escape")
        expect(dialog).to_be_hidden()
        expect(page.get_by_role("button", name="Edit cameras")).to_be_focused()
