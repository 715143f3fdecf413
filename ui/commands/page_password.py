"""Whether the page may be opened where it is asked for, and the hash of its password."""

from __future__ import annotations

from ui.errors import UsageError
from ui.web.addresses import is_loopback
from ui.web.password import hash_password


def page_password_hash(host: str, password: str | None) -> str | None:
    """The hash of `password`, None without one; raises `UsageError` where one is needed, or that one is no good."""
    if password:
        try:
            return hash_password(password)
        except ValueError as error:
            raise UsageError(f"--ui-password (or WATCHWORD_UI_PASSWORD) {error}") from None
    if not is_loopback(host):
        raise UsageError(
            f"--ui-host {host} lets other machines open the page, so it needs a password: set WATCHWORD_UI_PASSWORD "
            "or --ui-password"
        )
    return None
