"""A service manager's notify socket, and the messages that come in."""

from __future__ import annotations

import socket


class Notified:
    """Listens at ``address``: a path, or an abstract name that begins with ``@``."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address.replace("@", "\0", 1))

    def messages(self) -> list[list[str]]:
        """Return what has come, each message as its lines."""
        self.socket.settimeout(0)
        found: list[list[str]] = []
        while True:
            try:
                found.append(self._receive())
            except BlockingIOError:
                return found

    def message(self, beginning: str, seconds: float = 30) -> list[str]:
        """Wait for the next message; return its lines, having passed over those that don't begin so."""
        self.socket.settimeout(seconds)
        while not (lines := self._receive())[0].startswith(beginning):
            pass
        return lines

    def _receive(self) -> list[str]:
        return self.socket.recv(65536).decode().split("\n")
