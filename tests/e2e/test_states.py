"""The page before another backend, slow and scripted: words one by one, failures as states, none of them as text."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from playwright.sync_api import Browser, expect

from tests.e2e.browser import DESKTOP, PHONE, sideways_overflow, visit
from tests.e2e.product import Product
from tests.unit.pipeline.scripted_server import Refusal, ScriptedServer, Step, Words

pytestmark = pytest.mark.browser

LONG_MS = 60_000
SLOWLY = Words(tuple(f"word{n} " for n in range(12)), pause_s=0.25)
REFUSED = Refusal(400, "this model reads no pictures")


class Backend:
    """A scripted server on a thread of its own; `answers` sets what it does from now on."""

    def __init__(self) -> None:
        self._server = ScriptedServer([SLOWLY])
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    @property
    def url(self) -> str:
        return self._server.url

    def answers(self, step: Step) -> None:
        self._server.script = [step]

    def last_question(self, words: str) -> list[dict[str, Any]]:
        """The parts of the latest message that was sent with these words in it."""
        contents = (message["content"] for asked in self._server.chats for message in asked.body["messages"])
        return next(parts for parts in reversed(list(contents)) if words in str(parts) and isinstance(parts, list))

    def __enter__(self) -> Backend:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._server.__aenter__(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._server.__aexit__(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)


@pytest.fixture(scope="module")
def backend() -> Iterator[Backend]:
    with Backend() as backend:
        yield backend


@pytest.fixture(scope="module")
def product(backend: Backend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    with Product(f"--base-url={backend.url}", home=tmp_path_factory.mktemp("home")) as product:
        yield product


def test_a_caption_streams_in_beside_its_frame(product: Product, backend: Backend, chromium: Browser) -> None:
    backend.answers(SLOWLY)
    with visit(chromium, product.page, DESKTOP) as page:
        page.wait_for_selector(".card[data-state=streaming]", timeout=LONG_MS)
        card = page.locator(".card[data-state=streaming]").first
        event = card.get_attribute("data-event")
        card = page.locator(f"[data-event='{event}']")
        lengths = []
        while card.get_attribute("data-state") == "streaming":
            lengths.append(len((card.locator(".card-text").text_content() or "").rstrip()))
            page.wait_for_timeout(150)
        assert len(set(lengths)) >= 4, f"the words came at once: {lengths}"
        assert lengths == sorted(lengths)
        expect(card).to_have_attribute("data-state", "ok")
        assert page.evaluate(f"document.querySelector('[data-event=\"{event}\"] img').naturalWidth") > 0


def test_another_server_is_said_to_be_one(product: Product, chromium: Browser) -> None:
    with visit(chromium, product.page, PHONE) as page:
        expect(page.locator(".ww-engine .state:visible")).to_have_text("Backend answering", timeout=LONG_MS)
        expect(page.locator(".strip-note")).to_contain_text("not Watchword's engine")
        expect(page.get_by_label("Token budget")).to_be_disabled()
        # What needs no engine of ours is shown all the same; what does is said to be elsewhere.
        expect(page.locator(".stats")).to_contain_text("glass to caption", timeout=LONG_MS)
        expect(page.locator(".shares-words")).to_contain_text("the engine runs elsewhere")
        for stretch in ("oldest live picture", "picture to engine", "first word (TTFT)", "between words"):
            expect(page.locator(".stats")).to_contain_text(stretch, timeout=LONG_MS)
        for ours in ("pace", "itl", "load", "kv"):
            expect(page.locator(f"[data-rate={ours}]")).to_be_hidden()
        expect(page.locator(".strip-note")).to_contain_text("Its steps, its cache, its queue and its settings cannot")
        assert sideways_overflow(page) <= 0


def test_another_server_is_asked_about_a_picture_and_about_what_the_cameras_saw(
    product: Product, backend: Backend, chromium: Browser, tmp_path: Path
) -> None:
    picture = tmp_path / "street.png"
    Image.new("RGB", (64, 48), "red").save(picture)
    backend.answers(Words(("A ", "red ", "street.")))
    with visit(chromium, product.page, DESKTOP) as page:
        expect(page.locator(".card[data-state=ok]").first).to_be_visible(timeout=LONG_MS)
        page.get_by_label("Add a picture").set_input_files(picture)
        expect(page.locator(".added img")).to_be_visible()
        page.get_by_label("Message").fill("What is this?")
        page.get_by_label("Message").press("Enter")
        expect(page.locator(".turn.theirs .turn-text")).to_have_text("A red street.")
        sent = backend.last_question("What is this?")
        assert sent[0]["image_url"]["url"].startswith("data:image/jpeg;base64,")
        page.get_by_label("Use what the cameras saw").check()
        page.get_by_label("Message").fill("And who was there?")
        page.get_by_label("Message").press("Enter")
        expect(page.locator(".turn-events a").first).to_be_visible()


def test_what_fails_is_a_state_and_not_a_text(product: Product, backend: Backend, chromium: Browser) -> None:
    backend.answers(REFUSED)
    with visit(chromium, product.page, DESKTOP) as page:
        card = page.locator(".card[data-state=failed]").first
        expect(card).to_be_visible(timeout=LONG_MS)
        expect(card.locator(".state")).to_have_text("Not described")
        expect(card.locator(".card-text")).to_be_empty()
        expect(card.locator(".card-foot")).to_contain_text(REFUSED.message)
        page.get_by_label("Message").fill("Hello?")
        page.get_by_label("Message").press("Enter")
        answer = page.locator(".turn.theirs")
        expect(answer).to_have_attribute("data-state", "failed")
        expect(answer.locator(".turn-text")).to_be_empty()
        expect(answer.locator(".turn-foot")).to_contain_text(REFUSED.message)
    backend.answers(Words(("One ", "two "), breaks=True))
    with visit(chromium, product.page, DESKTOP) as page:
        page.get_by_label("Message").fill("Count.")
        page.get_by_label("Message").press("Enter")
        expect(page.locator(".turn.theirs .turn-foot")).to_contain_text("the backend stopped while answering")
    backend.answers(
        Words(
            (
                "<img src=x onerror=alert(1)>\n",
                "- **one**\n- two",
            )
        )
    )
    with visit(chromium, product.page, DESKTOP) as page:
        page.get_by_label("Message").fill("A list, please.")
        page.get_by_label("Message").press("Enter")
        expect(page.locator(".turn.theirs li")).to_have_text(["one", "two"])
        expect(page.locator(".turn.theirs b")).to_have_text("one")
        expect(page.locator(".turn.theirs img")).to_have_count(0)
        expect(page.locator(".turn.theirs")).to_contain_text("<img src=x")
    backend.answers(SLOWLY)
    with visit(chromium, product.page, DESKTOP) as page:
        page.get_by_label("Message").fill("Slowly, please.")
        page.get_by_label("Message").press("Enter")
        page.get_by_role("button", name="Stop").click()
        expect(page.locator(".turn.theirs")).to_have_attribute("data-state", "stopped")
        expect(page.get_by_role("button", name="Send")).to_be_visible()


def test_what_ended_looks_like_it(backend: Backend, chromium: Browser, tmp_path: Path) -> None:
    picture = tmp_path / "people.jpg"
    Image.new("RGB", (320, 240), "white").save(picture)
    backend.answers(SLOWLY)
    with (
        Product(str(picture), f"--base-url={backend.url}", home=tmp_path) as product,
        visit(chromium, product.page, DESKTOP) as page,
    ):
        figure = page.locator(".cam")
        expect(figure.locator(".state")).to_have_text("Ended", timeout=LONG_MS)
        expect(figure.locator(".cam-age")).to_contain_text("last picture", timeout=LONG_MS)
        expect(figure.locator(".cam-people")).to_be_empty()
        expect(figure.locator(".cam-boxes")).to_be_hidden()
        assert figure.locator("img").evaluate("image => getComputedStyle(image).filter") != "none"
