from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from camera_sources.base import SourceError
from camera_sources.rtsp import check_url
from camera_sources.url import redact, split_credentials, with_credentials

PASSWORDS = ["hunter22", "p@ss:w0rd", "pa/ss", "a?b#c", "%40%3A", "ünï", "p@:/ss@x", "with space", "100%", "x&y=z"]


@pytest.mark.parametrize("password", PASSWORDS)
@pytest.mark.parametrize("template", ["{}", "open {} failed", "[rtsp @ 0x55] {}: 401", 'url="{}"', "({}, next)"])
def test_redact_leaves_nothing_of_a_typed_password(password: str, template: str) -> None:
    text = redact(template.format(f"rtsp://admin:{password}@10.0.0.7:554/cam"))
    assert password not in text
    assert "admin" not in text
    assert "10.0.0.7:554/cam" in text


def test_redact_covers_several_urls_and_lines() -> None:
    text = redact("a rtsp://u:first@h1/x\nb http://v:second@h2/y rtsps://w:third@h3")
    assert not any(secret in text for secret in ("first", "second", "third"))
    assert all(host in text for host in ("h1", "h2", "h3"))


@pytest.mark.parametrize(
    "query",
    [
        "password=hunter2",
        "token=hunter2",
        "Pwd=hunter2",
        "user=x&pass=hunter2",
        "access_token=hunter2",
        "apikey=hunter2",
    ],
)
def test_redact_covers_queries(query: str) -> None:
    text = redact(f"http://cam/video.cgi?res=hd&{query}&fps=5")
    assert "hunter2" not in text
    assert "res=hd" in text
    assert "fps=5" in text


def test_redact_covers_authorization_headers() -> None:
    assert "QWxhZGRpbjpvcGVu" not in redact("DESCRIBE\r\nAuthorization: Basic QWxhZGRpbjpvcGVu\r\nCSeq: 2")


@pytest.mark.parametrize("text", ["plain text", "rtsp://10.0.0.7:554/cam", "clip.mp4: no such file", "mail me@here"])
def test_redact_leaves_the_rest_alone(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize("password", [p for p in PASSWORDS if "%" not in p])
def test_a_password_typed_as_it_is_and_one_encoded_mean_the_same(password: str) -> None:
    typed = f"rtsp://admin:{password}@cam.lan:554/live?x=1"
    encoded = with_credentials(typed)
    assert split_credentials(typed) == ("rtsp://cam.lan:554/live?x=1", "admin", password)
    assert split_credentials(encoded) == split_credentials(typed)
    assert with_credentials(encoded) == encoded


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("rtsp://cam/live", ("rtsp://cam/live", None, None)),
        ("rtsp://cam:554/user@2/live", ("rtsp://cam:554/user@2/live", None, None)),
        ("rtsp://cam/live?mail=a@b.c", ("rtsp://cam/live?mail=a@b.c", None, None)),
        ("rtsp://[fe80::1]:554/x@y", ("rtsp://[fe80::1]:554/x@y", None, None)),
        ("rtsp://admin@cam/live", ("rtsp://cam/live", "admin", None)),
        ("rtsp://u:p@cam/path@2", ("rtsp://cam/path@2", "u", "p")),
        ("rtsp://u:p@[::1]:5/x", ("rtsp://[::1]:5/x", "u", "p")),
        ("no url at all", ("no url at all", None, None)),
    ],
)
def test_split_credentials(url: str, expected: tuple[str, str | None, str | None]) -> None:
    assert split_credentials(url) == expected


@given(st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp")), min_size=4, max_size=20))
def test_whatever_the_password_a_url_as_we_send_it_is_redacted_and_read_back(password: str) -> None:
    url = with_credentials(f"rtsp://zoe:{quote(password, safe='')}@cam.lan/live")
    assert split_credentials(url) == ("rtsp://cam.lan/live", "zoe", password)
    assert redact(url) == "rtsp://***@cam.lan/live"


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("ftp://u:hunter2@cam/x", "unknown scheme 'ftp'"),
        ("rtsp://u:hunter2@cam:port/x", "not a valid URL"),
        ("rtsp:///x", "no host"),
        ("rtsp://u:hunter2@/x", "no host"),
    ],
)
def test_impossible_urls_are_named_without_their_password(url: str, problem: str) -> None:
    with pytest.raises(SourceError, match=problem) as raised:
        check_url(url)
    assert "hunter2" not in str(raised.value)
    assert "\n" not in str(raised.value)
