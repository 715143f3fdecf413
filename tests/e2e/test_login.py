"""A page with a password in a real browser: nothing before it, everything after it, nothing again after logging out."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect

from tests.e2e.browser import PHONE, sideways_overflow, visit
from tests.e2e.site import page_only

pytestmark = pytest.mark.browser


def test_a_person_logs_in_and_out(chromium: Browser) -> None:
    with (
        page_only(events=3, password="correct horse") as url,
        visit(chromium, f"{url}/", PHONE, may_lose_server=True) as page,  # a refused password is an error to a console
    ):
        expect(page).to_have_url(f"{url}/login")
        assert sideways_overflow(page) <= 0
        page.get_by_label("Password").fill("wrong horse")
        page.get_by_label("Password").press("Enter")
        expect(page.get_by_role("alert")).to_have_text("That is not the password.")
        page.get_by_label("Password").fill("correct horse")
        page.get_by_role("button", name="Log in").click()
        expect(page.locator(".cam[data-seq]")).to_have_count(1)  # its socket
        picture = page.locator(".card img").first
        page.wait_for_function("image => image.complete && image.naturalWidth > 0", arg=picture.element_handle())
        page.get_by_role("button", name="Send").wait_for()  # NiceGUI's part
        page.get_by_role("button", name="Log out").click()
        expect(page).to_have_url(f"{url}/login")
        assert page.goto(f"{url}/events/event-000001.jpg", wait_until="commit") is not None
        expect(page).to_have_url(f"{url}/login?next=/events/event-000001.jpg")
