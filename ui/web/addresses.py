"""Which addresses belong to this machine alone."""

from __future__ import annotations

from ipaddress import ip_address


def is_loopback(name: str) -> bool:
    """Whether `name`, a host or an address, is reached from this machine alone."""
    if name.lower().rstrip(".") == "localhost" or name.lower().endswith(".localhost"):
        return True
    try:
        return ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False
