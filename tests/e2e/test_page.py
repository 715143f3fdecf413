"""The page in a real browser, on the real product: the demo clip, the detector, a tiny engine, the store."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.e2e.browser import DESKTOP, PHONE, sideways_overflow, visit
from tests.e2e.product import Product

pytestmark = pytest.mark.browser

LONG_MS = 60_000
SIZES = pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])


@pytest.fixture(scope="module")
def product(small_engine: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    with Product(*small_engine, home=tmp_path_factory.mktemp("home")) as product:
        yield product


@SIZES
def test_everything_a_person_gets(product: Product, chromium: Browser, size: tuple[int, int], tmp_path: Path) -> None:
    with visit(chromium, product.page, size) as page:
        picture_moves(page)
        caption_stands_beside_its_picture(page)
        chat_answers_while_captions_go_on(page)
        strip_shows_the_engine_s_steps(page)
        time_and_cores_are_accounted_for(page)
        assert sideways_overflow(page) <= 0
        page.screenshot(path=tmp_path / "page.png", full_page=True)


def picture_moves(page: Page) -> None:
    figure = page.locator("[data-camera=bikes]")
    expect(figure.locator(".state")).to_have_text("Playing", timeout=LONG_MS)  # a file is not live
    expect(figure).to_have_attribute("data-seq", re.compile(r"\d+"), timeout=LONG_MS)
    first = figure.get_attribute("data-seq")
    expect(figure).not_to_have_attribute("data-seq", first or "")
    assert page.evaluate("document.querySelector('.cam-frame img').naturalWidth") > 0
    # A person's box lies inside the picture.
    box = page.locator(".cam-box").first
    expect(box).to_be_visible(timeout=LONG_MS)


def caption_stands_beside_its_picture(page: Page) -> None:
    card = page.locator(".card[data-state=ok]").first
    expect(card).to_be_visible(timeout=LONG_MS)
    expect(card.locator(".card-text")).not_to_be_empty()
    expect(card.locator(".card-foot")).to_contain_text("after the picture was taken")
    expect(card.locator(".card-foot")).to_contain_text(re.compile("first word after|waiting for the engine"))
    picture = card.locator("img")
    picture.scroll_into_view_if_needed()
    page.wait_for_function("image => image.complete && image.naturalWidth > 0", arg=picture.element_handle())
    # All of it is shown, so that no head is cut off.
    shape = "image => image.clientWidth / image.clientHeight / (image.naturalWidth / image.naturalHeight)"
    assert picture.evaluate(shape) == pytest.approx(1.0, abs=0.05)


def chat_answers_while_captions_go_on(page: Page) -> None:
    box = page.get_by_label("Message")
    box.fill("What do you see?")
    box.press("Enter")
    expect(page.locator(".turn.mine")).to_have_text("What do you see?")
    answer = page.locator(".turn.theirs")
    expect(answer).to_have_attribute("data-state", "ok", timeout=LONG_MS)
    expect(answer.locator(".turn-text")).not_to_be_empty()
    expect(answer.locator(".turn-foot")).to_contain_text("tokens/s")
    expect(box).to_have_value("")


def strip_shows_the_engine_s_steps(page: Page) -> None:
    expect(page.locator(".ww-engine .state:visible")).to_have_text("Engine running")
    page.wait_for_function("Number(document.querySelector('.strip-plot canvas').dataset.columns) > 20")
    drawn = page.evaluate(
        """() => {
          const canvas = document.querySelector('.strip-plot canvas');
          const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
          const seen = new Set();
          for (let i = 0; i < data.length; i += 4) {
            if (data[i + 3] === 255) seen.add(`${data[i]},${data[i + 1]},${data[i + 2]}`);
          }
          const color = (name) => {
            const probe = document.createElement('i');
            probe.style.color = `var(--${name})`;
            document.body.append(probe);
            const rgb = getComputedStyle(probe).color.match(/\\d+/g).join(',');
            probe.remove();
            return rgb;
          };
          return ['decode', 'prefill', 'encode'].filter((name) => seen.has(color(name)));
        }"""
    )
    assert "decode" in drawn
    expect(page.locator("[data-rate=window]")).to_have_text("last 10 s")


def time_and_cores_are_accounted_for(page: Page) -> None:
    for stretch in ("oldest live picture", "first word", "between words", "glass to caption"):
        expect(page.locator(".stats")).to_contain_text(stretch)
    for stage in ("engine", "detector", "page"):
        expect(page.locator(".shares-words")).to_contain_text(re.compile(rf"{stage} \d+ %"))


def test_the_slider_changes_the_engine_s_budget_at_once(product: Product, chromium: Browser) -> None:
    with visit(chromium, product.page, DESKTOP) as page:
        slider = page.get_by_label("Token budget")
        expect(slider).to_be_enabled(timeout=LONG_MS)
        slider.focus()
        slider.press("Home")
        expect(page.locator(".budget output")).to_have_text("8 tokens")
        product.until(lambda: _budget(product) == 8)
        slider.press("End")
        product.until(lambda: _budget(product) > 8)
        expect(page.locator(".budget output")).to_have_text(f"{_budget(product)} tokens")
        # The strip says where, and a budget far above what is computed does not flatten what is shown.
        expect(page.locator(".strip-plot canvas")).to_have_attribute("data-marks", "1")
        expect(page.locator(".strip-plot canvas")).to_have_attribute("data-budget-line", "above")


def test_the_slider_s_travel_is_mostly_for_budgets_that_cut_prompts(product: Product, chromium: Browser) -> None:
    with visit(chromium, product.page, DESKTOP) as page:
        slider = page.get_by_label("Token budget")
        expect(slider).to_be_enabled(timeout=LONG_MS)
        slider.evaluate("slider => { slider.value = 600; slider.dispatchEvent(new Event('input')); }")
        product.until(lambda: 8 < _budget(product) < 100)


def test_the_policy_is_chosen_beside_the_slider_and_explained(product: Product, chromium: Browser) -> None:
    with visit(chromium, product.page, DESKTOP) as page:
        slider, policy = page.get_by_label("Token budget"), page.get_by_label("Policy")
        expect(policy).to_be_enabled(timeout=LONG_MS)
        expect(policy).to_have_value("stall-free")
        expect(page.get_by_label("Target", exact=True)).to_be_hidden()
        policy.select_option("latency-target")
        product.until(lambda: _settings(product)["step_policy"] == "latency-target")
        expect(slider).to_be_disabled()
        expect(page.locator(".controls .hint")).to_contain_text("sizes each step's budget itself")
        expect(page.locator(".budget output")).to_contain_text("now ")
        target = page.get_by_label("Target", exact=True)
        target.fill("2000")
        target.press("Enter")
        product.until(lambda: _settings(product)["target_itl_ms"] == 2000)
        target.fill("0.001")
        target.press("Enter")
        expect(page.locator(".controls .hint")).to_contain_text("cannot be met")
        policy.select_option("stall-free")
        product.until(lambda: _settings(product)["step_policy"] == "stall-free")
        expect(slider).to_be_enabled()
        expect(page.locator(".controls .hint")).to_contain_text("steady")


def test_a_conversation_starts_with_a_click_and_follows_the_answer(product: Product, chromium: Browser) -> None:
    with visit(chromium, product.page, DESKTOP) as page:
        expect(page.locator(".p-chat")).to_contain_text("what the cameras saw")
        for _ in range(3):
            page.get_by_role("button", name="New conversation").click()
            question = page.locator(".p-chat .chip").first.text_content() or ""
            page.locator(".p-chat .chip").first.click()
            expect(page.locator(".turn.mine")).to_have_text(question)
            expect(page.locator(".p-chat .chip")).to_have_count(0)
            expect(page.locator(".turn.theirs")).to_have_attribute("data-state", "ok", timeout=LONG_MS)
        for num_answers in range(2, 6):
            page.get_by_label("Message").fill("And then?")
            page.get_by_label("Message").press("Enter")
            expect(page.locator(".turn.theirs")).to_have_count(num_answers)
            expect(page.locator(".turn.theirs").last).to_have_attribute("data-state", "ok", timeout=LONG_MS)
        hidden = "talk => talk.scrollHeight - talk.scrollTop - talk.clientHeight"
        assert page.locator(".talk").evaluate(hidden) < 5


def test_dark_and_light_follow_the_system_and_a_person_s_choice_is_kept(product: Product, chromium: Browser) -> None:
    with visit(chromium, product.page, PHONE, dark=True) as page:
        expect(page.locator("body.body--dark")).to_be_attached()
        page.get_by_label("Light or dark").click()
        expect(page.locator("body.body--light")).to_be_attached()
        page.reload()
        expect(page.locator("body.body--light")).to_be_attached()


def test_a_new_conversation_forgets_and_an_answer_can_be_stopped(product: Product, chromium: Browser) -> None:
    with visit(chromium, product.page, DESKTOP) as page:
        page.get_by_label("Message").fill("Tell me a long story.")
        page.get_by_role("button", name="Send").click()
        expect(page.locator(".turn.theirs")).to_have_count(1)
        stop = page.get_by_role("button", name="Stop")
        if stop.is_visible():
            stop.click()
        expect(page.get_by_role("button", name="Send")).to_be_visible(timeout=LONG_MS)
        expect(page.locator(".turn.theirs")).to_have_attribute("data-state", re.compile("stopped|ok"))
        page.get_by_role("button", name="New conversation").click()
        expect(page.locator(".turn")).to_have_count(0)
        expect(page.locator(".talk .void")).to_be_visible()


def test_a_restarted_app_opens_with_the_events_of_before(product: Product, chromium: Browser) -> None:
    with visit(chromium, product.page, DESKTOP, may_lose_server=True) as page:
        expect(page.locator(".card[data-state=ok]").first).to_be_visible(timeout=LONG_MS)
        event = page.locator(".card[data-state=ok]").first.get_attribute("data-event")
        app = product.child("ui.cli app")
        assert app is not None
        os.kill(app, signal.SIGKILL)
        expect(page.locator(".ww-engine")).to_have_text("Watchword stopped – trying to reconnect", use_inner_text=True)
        expect(page.locator(".cam-boxes")).to_be_hidden()
        expect(page.locator("#popup")).to_be_hidden()
        product.until(lambda: product.child("ui.cli app") not in (None, app))
        product.until(lambda: _answers(f"{product.page}/healthz"), 60.0)
        # The page that was open all the while comes back by itself, and knows the past.
        expect(page.locator("[data-camera=bikes] .state")).to_have_text("Playing", timeout=LONG_MS)
        expect(page.locator("[data-camera=bikes]")).to_have_attribute("data-seq", re.compile(r"\d+"), timeout=LONG_MS)
        expect(page.locator(".ww-engine .lost")).to_be_hidden()
        expect(page.locator(f"[data-event='{event}']")).to_have_attribute("data-state", "ok")
    small = httpx.get(f"{product.page}/events/{event}.jpg")
    assert small.headers["content-type"] == "image/jpeg"
    assert len(small.content) < len(httpx.get(f"{product.page}/events/{event}.jpg?full=true").content)


def _settings(product: Product) -> dict[str, Any]:
    return httpx.get(f"{product.api}/engine/config").json()


def _budget(product: Product) -> int:
    return _settings(product)["max_num_batched_tokens"]


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2.0).status_code == 200
    except httpx.HTTPError:
        return False
