"""Taking a port to listen on, or saying in one line why it cannot be had."""

from __future__ import annotations

import errno
import ipaddress
import socket

from backend.errors import ConfigError


def take_port(host: str, port: int, *, flag: str = "--port") -> socket.socket:
    """A bound socket, not listening yet, so that a busy port is known before anything slow happens.

    Raises ConfigError naming the address and `flag`, which chooses another port.
    """
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise port_refusal(host, port, error, flag) from None
    listener = socket.socket(family, kind, proto)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise port_refusal(host, port, error, flag) from None
    return listener


def port_refusal(host: str, port: int, error: OSError, flag: str = "--port") -> ConfigError:
    """What to say when `error` kept us from listening there."""
    if error.errno == errno.EADDRINUSE:
        reason = f"is in use: stop what listens there, or choose another with {flag}"
    else:
        reason = f"cannot be used ({error.strerror or error}): check the address, or choose another port with {flag}"
    return ConfigError(f"port {port} on {host} {reason}")


def check_exposure(host: str, *, api_key: str | None, insecure: bool) -> None:
    """Raise ConfigError for an address that other machines reach, unless a key guards it or nobody minds."""
    if not api_key and not insecure and not _is_loopback(host):
        raise ConfigError(
            f"--host {host} can be reached from other machines, and no key guards it: set --api-key or "
            "WATCHWORD_API_KEY, or let everybody in with --insecure"
        )


def _is_loopback(host: str) -> bool:
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return True  # `take_port` says what is wrong with it
    return all(ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in found)
