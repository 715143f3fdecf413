"""What must never be committed, and what the Makefile must never do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.architecture.sources import ROOT, tracked_files

# Directories that exist on one person's or one build machine; `/tmp`, `/dev` and `/usr` mean the same everywhere.
MACHINE_PATH = re.compile(r"(?<![\w.~/:-])/(?:home|Users|root|work|workspace|mnt|media|opt)/[A-Za-z0-9_]")
CREDENTIALS = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/@:\"'`<>{}$]*:(?P<password>[^\s/@\"'`<>]+)@")
TOKEN = re.compile(r"\b(?:hf_[A-Za-z0-9]{30,}|sk-[A-Za-z0-9_-]{40,}|gh[pousr]_[A-Za-z0-9]{30,}|AKIA[0-9A-Z]{16})\b")
EXAMPLE_LEN = 8
"""A shorter password, or a plain word, nobody takes for a real one."""


def text_files() -> list[tuple[Path, str]]:
    texts = []
    for path in tracked_files():
        content = path.read_bytes()
        if b"\0" not in content[:4096]:
            texts.append((path.relative_to(ROOT), content.decode("utf-8")))
    assert len(texts) > 20
    return texts


def lines_matching(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{path}:{number}: {line.strip()[:120]}"
        for path, text in text_files()
        for number, line in enumerate(text.splitlines(), start=1)
        if pattern.search(line)
    ]


def is_example(password: str) -> bool:
    return len(password) < EXAMPLE_LEN or password.isalpha() or password.startswith(("$", "{"))


def test_no_path_of_one_machine() -> None:
    assert not lines_matching(MACHINE_PATH)


def test_no_access_token() -> None:
    assert not lines_matching(TOKEN)


def test_urls_with_credentials_are_examples() -> None:
    """Tests and the manual need such URLs; the password in one is short, a plain word, or comes from a variable."""
    real = [
        f"{path}: {match.group()}"
        for path, text in text_files()
        for match in CREDENTIALS.finditer(text)
        if not is_example(match["password"])
    ]
    assert not real


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (MACHINE_PATH, "data = '/" + "home/ann/clips'"),
        (MACHINE_PATH, "see /" + "work/main"),
        (CREDENTIALS, "rtsp://admin:" + "Tr0ub4dor@10.0.0.2/live"),
        (TOKEN, "hf_" + "a" * 34),
    ],
)
def test_the_patterns_find_what_they_are_for(pattern: re.Pattern[str], text: str) -> None:
    assert pattern.search(text)


def test_make_never_expands_what_may_hold_a_password() -> None:
    """Neither as a make variable, which would be echoed and eat `$`, nor as a shell variable of a recipe."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    code = "\n".join(line for line in makefile.splitlines() if not line.startswith("#"))
    assert not re.search(r"SOURCE|MODEL|DETECTOR", code)
