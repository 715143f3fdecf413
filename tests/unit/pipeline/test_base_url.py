"""Addresses of backends: those that a client can use, and what is said of the others."""

from __future__ import annotations

import pytest

from pipeline.base_url import BaseUrlError, check_base_url
from pipeline.captioner import OpenAICaptioner
from pipeline.config import PipelineConfig


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:8000/v1",
        "https://engine.example/v1",
        "HTTP://localhost",
        "http://[::1]:65535/v1",
        "http://user:p@ss/word@host:1/v1",
    ],
)
def test_addresses_pass_as_they_are(url: str) -> None:
    assert check_base_url(url) == url


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://h:abc/v1", "http://h:abc/v1 has a port that is not a number from 1 to 65535"),
        ("http://h:99999/v1", "has a port that is not"),
        ("http://h:0/v1", "has a port that is not"),
        ("http://h:-1/v1", "has a port that is not"),
        ("http://[::1/v1", "has a malformed host"),
        ("http://[zz]/v1", "has a malformed host"),
        ("http://a|b/v1", "has a malformed host"),
        ("http:///v1", "names no host"),
        ("127.0.0.1:8000/v1", "does not begin with http:// or https://"),
        ("ftp://u:hunter2@h/v1", "does not begin with"),
        ("", "the base URL is empty"),
        ("http://h /v1", "holds blanks"),
        ("http://h\x1b\n/v1", "holds blanks or control characters"),
    ],
)
def test_what_is_no_address_is_one_line(url: str, problem: str) -> None:
    with pytest.raises(BaseUrlError) as caught:
        check_base_url(url)
    assert problem in str(caught.value)
    assert "looks like http://127.0.0.1:8000/v1" in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert str(caught.value).isprintable()
    with pytest.raises(BaseUrlError):
        OpenAICaptioner(PipelineConfig("none.pt", url))
