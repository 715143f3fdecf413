"""What a model writes, as the page shows it."""

from __future__ import annotations

import re

import pytest

from ui.web.rich_text import to_html


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("Paris.", "<p>Paris.</p>"),
        ("One\ntwo\n\nthree", "<p>One<br>two</p><p>three</p>"),
        ("It is **very** big: `f(x)`", "<p>It is <b>very</b> big: <code>f(x)</code></p>"),
        ("- red\n* blue", "<ul><li>red</li><li>blue</li></ul>"),
        ("1. red\n\n2. **blue**", '<ol start="1"><li>red</li></ol><ol start="2"><li><b>blue</b></li></ol>'),
        ("## The sea\nWaves", "<p><b>The sea</b></p><p>Waves</p>"),
        ("```python\nif a < b:\n    **c**\n```", "<pre>if a &lt; b:\n    **c**</pre>"),
        ("2 * 3 * 4 ** 5", "<p>2 * 3 * 4 ** 5</p>"),
        ("half a **bold", "<p>half a **bold</p>"),
        ("", ""),
    ],
)
def test_lists_headings_bold_and_code(text: str, html: str) -> None:
    assert to_html(text) == html


@pytest.mark.parametrize(
    "text",
    [
        "<img src=x onerror=alert(1)>",
        "- <script>alert(1)</script>",
        "**<b onclick='x'>**",
        "`<svg/onload=x>`",
        "# <iframe src='//evil'>",
        "```\n</pre><script>x</script>\n```",
        "![see](https://evil/pixel.png) [me](javascript:alert(1)) <https://evil>",
        '1. "><img src=x>',
    ],
)
def test_nothing_a_model_says_becomes_markup_a_link_or_a_picture(text: str) -> None:
    tags = set(re.findall(r"<[^>]*>", to_html(text)))
    assert {re.sub(r' start="\d+"', "", tag) for tag in tags} <= {
        f"<{slash}{name}>" for name in ("p", "b", "code", "pre", "ul", "ol", "li") for slash in ("", "/")
    } | {"<br>"}
