"""Source URLs and the secrets in them: taking them apart, and taking the secrets out of any text that gets printed."""

from __future__ import annotations

import re
from urllib.parse import quote, unquote, urlsplit, urlunsplit

MASK = "***"

# The password may itself contain '@', ':' or '/', so everything up to the last '@' before a space or quote is a secret.
_USERINFO = re.compile(r"(?P<scheme>\b[a-z][a-z0-9+.\-]*://)[^\s\"'<>]*@", re.IGNORECASE)
# The same with spaces in the password: 'user:' and then anything but a port.
_SPACED_USERINFO = re.compile(
    r"(?P<scheme>\b[a-z][a-z0-9+.\-]*://)[^\s/@:\[]*:(?!\d+(?:[/?#\s]|$))[^\r\n]*@", re.IGNORECASE
)
_HOST = re.compile(r"(?:\[[0-9a-f:.%]+\]|[\w.\-]+)(?::\d+)?(?=[/?#]|$)", re.IGNORECASE)
_SECRET_NAMES = r"pass(?:w(?:or)?d)?|pwd|token|auth|secret|key|user(?:name)?|usr|login|session(?:id)?|sig(?:nature)?"
_QUERY = re.compile(
    rf"(?P<name>(?:^|[?&;\s,])[\w.\-]*(?:{_SECRET_NAMES})=)(?P<value>[^&;\s\"'<>#]+)",
    re.IGNORECASE,
)
_HEADER = re.compile(r"(?P<name>\bauthorization:\s*(?:basic|digest|bearer)\s+)[^\r\n]+", re.IGNORECASE)


def redact(text: str) -> str:
    """`text` without the credentials of any URL, query or Authorization header in it."""
    for userinfo in (_USERINFO, _SPACED_USERINFO):
        text = userinfo.sub(rf"\g<scheme>{MASK}@", text)
    text = _QUERY.sub(rf"\g<name>{MASK}", text)
    return _HEADER.sub(rf"\g<name>{MASK}", text)


def split_credentials(url: str) -> tuple[str, str | None, str | None]:
    """(`url` without credentials, user, password), both decoded; None where absent.

    Unlike `urllib`, takes a password with an unencoded '@', ':', '/', '?' or '#' for what its owner meant.
    """
    scheme, separator, rest = url.partition("://")
    end = _userinfo_end(rest)
    if not separator or end is None:
        return url, None, None
    user, colon, password = rest[:end].partition(":")
    return f"{scheme}://{rest[end + 1 :]}", unquote(user), unquote(password) if colon else None


def with_credentials(url: str) -> str:
    """`url` with its user and password percent-encoded once, so that ffmpeg reads what its owner meant."""
    bare, user, password = split_credentials(url)
    if user is None:
        return url
    parts = urlsplit(bare)
    userinfo = quote(user, safe="") + (f":{quote(password, safe='')}" if password is not None else "")
    return urlunsplit(parts._replace(netloc=f"{userinfo}@{parts.netloc}"))


def _userinfo_end(rest: str) -> int | None:
    """Where the credentials end in what follows the scheme, or None without credentials."""
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if _HOST.fullmatch(authority.rpartition("@")[2]):
        return authority.rindex("@") if "@" in authority else None
    # Then its first '/' lies inside the password, as in 'user:pa/ss@host': look for the host further on.
    ends = [match.start() for match in re.finditer("@", rest) if _HOST.match(rest, match.end())]
    return ends[-1] if ends else None
