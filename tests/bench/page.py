"""Times the page in a real browser: `python -m tests.bench.page [--cameras 8] [--events 10000] [--opens 7]`.

Prints how long the page takes from the address to its pictures and captions, a page of older captions, and a search;
medians and the longest. The page is served alone, with made-up cameras (see tests/e2e/page_only.py).
"""

from __future__ import annotations

import argparse
import statistics
import time

from playwright.sync_api import Browser

from tests.e2e.browser import DESKTOP, open_chromium
from tests.e2e.site import page_only


def main() -> None:
    """Serve, open, scroll, search, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cameras", type=int, default=8)
    parser.add_argument("--events", type=int, default=10_000)
    parser.add_argument("--opens", type=int, default=7)
    options = parser.parse_args()
    readings: dict[str, list[float]] = {"captions shown": [], "all pictures": [], "40 older": [], "search": []}
    with page_only(cameras=options.cameras, events=options.events) as url, open_chromium() as browser:
        for _ in range(options.opens):
            for name, value in measure(browser, url, options.cameras).items():
                readings[name].append(value)
    print(f"{options.cameras} cameras, {options.events} events, {options.opens} openings; ms: first, median, longest")
    for name, values in readings.items():
        print(f"  {name:15} {values[0]:6.0f} {statistics.median(values):6.0f} {max(values):6.0f}")


def measure(browser: Browser, url: str, num_cameras: int) -> dict[str, float]:
    """Milliseconds of one opening, in a browser that has nothing cached."""
    context = browser.new_context(viewport={"width": DESKTOP[0], "height": DESKTOP[1]})
    page = context.new_page()
    start = time.perf_counter()
    found: dict[str, float] = {}

    def note(name: str) -> None:
        found[name] = 1000 * (time.perf_counter() - start)

    page.goto(url, wait_until="commit")
    page.wait_for_selector(".card")
    note("captions shown")
    # The last of several cameras has no picture: it is down.
    page.wait_for_function(f"document.querySelectorAll('.cam[data-seq]').length >= {max(1, num_cameras - 1)}")
    note("all pictures")
    start = time.perf_counter()
    page.evaluate("document.querySelector('.feed').scrollTo(0, 1e9)")
    page.wait_for_function("document.querySelectorAll('.card').length > 40")
    note("40 older")
    start = time.perf_counter()
    page.evaluate(
        """() => {
          const input = document.getElementById("find-words");
          input.value = "ladder";
          input.dispatchEvent(new Event("input"));
        }"""
    )
    page.wait_for_function(
        "document.querySelector('.card-text')?.textContent.includes('ladder') && "
        "!document.querySelector('.p-captions').textContent.includes('bicycle')"
    )
    note("search")
    context.close()
    return found


if __name__ == "__main__":
    main()
