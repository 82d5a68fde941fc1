"""Ports for those who have to be told one before they listen on it."""

from __future__ import annotations

import contextlib
import secrets
import socket

FIRST, LAST = 20_000, 32_000
"""Below the ports that systems give out by themselves: no connection of another test can take one meanwhile."""

_given: set[int] = set()


def free_port() -> int:
    """Return a port on which nobody listens, another one each time."""
    while True:
        port = FIRST + secrets.randbelow(LAST - FIRST)
        if port in _given:
            continue
        _given.add(port)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
