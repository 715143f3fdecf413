"""The page's password: kept as a salted scrypt hash, and proved by a session that a browser holds in a cookie.

Knows nothing of HTTP. A guess costs the guesser `SCRYPT` and, after a few, time.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable

_N, _R, _P = 2**15, 8, 1  # 32 MiB and some 50 ms a guess
_MAXMEM = 64 * 2**20
SHORTEST = 8
LONGEST = 1024
SESSION_S = 7 * 24 * 3600.0
MAX_SESSIONS = 256


def hash_password(password: str) -> str:
    """`password` as `scrypt$N$r$p$salt$hash`. Raises `ValueError` for one that is too short or too long."""
    if not SHORTEST <= len(password) <= LONGEST:
        raise ValueError(f"has {len(password)} characters; it needs {SHORTEST} to {LONGEST}")
    salt = secrets.token_bytes(16)
    parts = (base64.b64encode(part).decode() for part in (salt, _scrypt(password, salt, _N, _R, _P)))
    return "$".join(("scrypt", str(_N), str(_R), str(_P), *parts))


def is_password(password: str, hashed: str) -> bool:
    """Whether `hashed` was made of `password`. Takes the same time for any wrong one."""
    _, n, r, p, salt, wanted = hashed.split("$")
    found = _scrypt(password[:LONGEST], base64.b64decode(salt), int(n), int(r), int(p))
    return hmac.compare_digest(found, base64.b64decode(wanted))


def _scrypt(password: str, salt: bytes, n: int, r: int, p: int) -> bytes:
    return hashlib.scrypt(password.encode("utf-8", "surrogatepass"), salt=salt, n=n, r=r, p=p, maxmem=_MAXMEM, dklen=32)


class Sessions:
    """Who is logged in: random ids, kept as digests, each valid for `SESSION_S` since it was last used. In memory."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until: OrderedDict[bytes, float] = OrderedDict()

    def begin(self) -> str:
        """A new session's id. When there are too many, the one that was not used for longest ends."""
        session_id = secrets.token_urlsafe(32)
        self._until[_digest(session_id)] = self._clock() + SESSION_S
        while len(self._until) > MAX_SESSIONS:
            self._until.popitem(last=False)
        return session_id

    def holds(self, session_id: str | None) -> bool:
        """Whether this is a session; if so, it is valid for longer again."""
        key = _digest(session_id or "")
        now = self._clock()
        if self._until.get(key, 0.0) <= now:
            self._until.pop(key, None)
            return False
        self._until[key] = now + SESSION_S
        self._until.move_to_end(key)
        return True

    def end(self, session_id: str | None) -> None:
        """Log out."""
        self._until.pop(_digest(session_id or ""), None)


def _digest(session_id: str) -> bytes:
    return hashlib.sha256(session_id.encode("utf-8", "surrogatepass")).digest()


class Attempts:
    """How often an address may guess: `FREE` wrong guesses, then a wait that doubles up to `LONGEST_S`.

    All addresses together have a bound of their own, so that many of them gain little.
    """

    FREE = 5
    LONGEST_S = 300.0
    FORGET_S = 900.0
    MAX_ADDRESSES = 1024
    ALL_PER_S = 2.0
    ALL_AT_ONCE = 40

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._wrong: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._left, self._t_left = float(self.ALL_AT_ONCE), clock()

    def wait_s(self, address: str) -> float:
        """For how many seconds `address` has to wait before its next guess; 0 when it may guess."""
        now = self._clock()
        num_wrong, t_last = self._wrong.get(address, (0, now))
        if now - t_last > self.FORGET_S:
            self._wrong.pop(address, None)
            num_wrong = 0
        own_s = 0.0
        if num_wrong >= self.FREE:
            own_s = t_last + min(self.LONGEST_S, 2.0 ** (num_wrong - self.FREE + 1)) - now
        self._left = min(self.ALL_AT_ONCE, self._left + (now - self._t_left) * self.ALL_PER_S)
        self._t_left = now
        return max(0.0, own_s, (1.0 - self._left) / self.ALL_PER_S)

    def wrong(self, address: str) -> None:
        """`address` guessed wrong."""
        num_wrong, _ = self._wrong.pop(address, (0, 0.0))
        self._wrong[address] = (num_wrong + 1, self._clock())
        self._left -= 1.0
        while len(self._wrong) > self.MAX_ADDRESSES:
            self._wrong.popitem(last=False)

    def right(self, address: str) -> None:
        """`address` knows the password: its last guess was none."""
        self._wrong.pop(address, None)
        self._left += 1.0
