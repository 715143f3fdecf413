"""Zones are drawn over a camera's picture or typed, checked by the server, and shown on the live picture."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.e2e.browser import PHONE, sideways_overflow, visit
from tests.e2e.site import page_only
from tests.e2e.test_page_states import serious

pytestmark = pytest.mark.browser


def test_zones_are_drawn_typed_refused_and_shown(chromium: Browser, tmp_path: Path) -> None:
    folder = Path(os.environ.get("WATCHWORD_SCREENSHOTS") or tmp_path)
    with page_only(cameras=1) as url, visit(chromium, f"{url}/", (1280, 800), may_lose_server=True) as page:
        expect(page.locator(".cam[data-seq]")).to_have_count(1)
        page.get_by_role("button", name="Edit cameras").click()
        dialog = page.get_by_role("dialog", name="Cameras")
        dialog.get_by_role("button", name="Edit yard").click()
        stage = dialog.locator(".zone-stage")
        expect(stage).to_be_visible()
        a_zone_is_clicked(dialog, stage)
        a_corner_is_dragged_and_that_undone(page, dialog, stage)
        a_second_zone_is_typed(dialog)
        stage.scroll_into_view_if_needed()
        page.screenshot(path=folder / "zones-desktop.png")
        assert "\n".join(serious(page)) == ""
        the_server_refuses_what_crosses_itself(dialog)
        dialog.get_by_role("button", name="Save").click()
        expect(dialog.get_by_role("button", name="Edit yard")).to_be_visible()
        page.keyboard.press("Escape")
        shapes = page.locator(".cam .cam-zones polygon")
        expect(shapes).to_have_count(2)
        expect(shapes.nth(1)).to_have_class("exclude")
        expect(page.locator(".cam .zone-name")).to_have_text(["drive", "not street"])
        page.screenshot(path=folder / "zones-live-desktop.png")
        page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
        page.get_by_role("button", name="Edit cameras").click()
        dialog.get_by_role("button", name="Edit yard").click()
        expect(dialog.get_by_label("Corners of zone 2")).to_have_value("0 0, 1 0, 1 0.3, 0 0.3")
        dialog.get_by_label("Corners of zone 2").scroll_into_view_if_needed()
        page.screenshot(path=folder / "zones-phone.png")
        assert sideways_overflow(page) <= 0
        dialog.get_by_role("button", name="Delete zone 1").click()
        dialog.get_by_role("button", name="Delete zone 1").click()
        dialog.get_by_role("button", name="Save").click()
        expect(page.locator(".cam .cam-zones polygon")).to_have_count(0)


def a_zone_is_clicked(dialog: Locator, stage: Locator) -> None:
    for x, y in ((0.1, 0.5), (0.9, 0.5), (0.95, 0.95), (0.05, 0.95)):
        click(stage, x, y)
    corners = [
        float(number) for number in dialog.get_by_label("Corners of zone 1").input_value().replace(",", "").split()
    ]
    assert corners == pytest.approx([0.1, 0.5, 0.9, 0.5, 0.95, 0.95, 0.05, 0.95], abs=0.01)
    expect(stage.locator("polygon")).to_have_count(1)
    dialog.get_by_label("Name of zone 1").fill("drive")
    click(stage, 0.5, 0.7)
    expect(stage.locator("i")).to_have_count(5)
    dialog.get_by_role("button", name="Undo").click()
    expect(stage.locator("i")).to_have_count(4)
    expect(dialog.get_by_label("Name of zone 1")).to_have_value("drive")


def a_corner_is_dragged_and_that_undone(page: Page, dialog: Locator, stage: Locator) -> None:
    before = dialog.get_by_label("Corners of zone 1").input_value()
    box = stage.locator("i").first.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 7, box["y"] + 7)
    page.mouse.down()
    page.mouse.move(box["x"] + 57, box["y"] + 37)
    page.mouse.up()
    expect(dialog.get_by_label("Corners of zone 1")).not_to_have_value(before)
    expect(stage.locator("i")).to_have_count(4)
    dialog.get_by_role("button", name="Undo").click()
    expect(dialog.get_by_label("Corners of zone 1")).to_have_value(before)


def a_second_zone_is_typed(dialog: Locator) -> None:
    """By the keyboard alone."""
    dialog.get_by_role("button", name="Add a zone").press("Enter")
    name, corners = dialog.get_by_label("Name of zone 2"), dialog.get_by_label("Corners of zone 2")
    expect(name).to_be_focused()
    name.fill("street")
    dialog.get_by_label("Kind of zone 2").select_option("exclude")
    corners.fill("0 0, 1 0, 1")
    expect(dialog.locator(".zone-wrong").nth(1)).to_have_text("a corner lacks its second number")
    dialog.get_by_role("button", name="Save").click()
    expect(corners).to_be_focused()  # nothing was sent
    corners.fill("0 0, 1 0, 1 0.3, 0 0.3")
    expect(dialog.locator(".zone-wrong").nth(1)).to_be_empty()
    expect(dialog.locator(".zone-layer polygon")).to_have_count(2)


def the_server_refuses_what_crosses_itself(dialog: Locator) -> None:
    corners = dialog.get_by_label("Corners of zone 2")
    corners.fill("0 0, 1 1, 1 0, 0 1")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.get_by_role("alert")).to_contain_text("zones[1].polygon: crosses itself between points 1 and 3")
    expect(dialog.locator(".zone-wrong").nth(1)).to_contain_text("crosses itself")
    expect(corners).to_have_attribute("aria-invalid", "true")
    expect(corners).to_be_focused()
    corners.fill("0 0, 1 0, 1 0.3, 0 0.3")


def click(stage: Locator, x: float, y: float) -> None:
    box = stage.bounding_box()
    assert box is not None
    stage.click(position={"x": x * box["width"], "y": y * box["height"]})
