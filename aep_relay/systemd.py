"""What the service manager is told while the relay runs: sd_notify(3), without a library.

Invariants: without ``NOTIFY_SOCKET`` nothing is sent; what can't be sent is reported once and changes nothing. The
watchdog is fed by a task of the event loop: a loop that is stuck feeds it no more, and the manager restarts the relay.
Sockets that the manager passes are taken by ``transport.sockets.open_inherited``.
"""

from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING

import structlog
import trio

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import NoReturn

SEND_TIMEOUT_SECONDS = 0.5
"""For the manager to take a message: it reads them before it does anything else."""
STATUS_SECONDS = 10.0
"""Between two looks at whether the status line is still true, where no watchdog asks more often."""

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class Manager:
    """The service manager of this process, if it has one that listens."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._address = _address(environ.get("NOTIFY_SOCKET", ""))
        self._status = ""
        self._failed = False
        self._stopping = False
        self.watchdog_seconds = _watchdog_seconds(environ)
        """How often it wants to hear of the event loop; None for never."""

    def ready(self, status: str) -> None:
        """Say that the relay listens, or that a reload is over."""
        if not self._stopping:
            self._send("READY=1", self._as_status(status))

    def reloading(self) -> None:
        """Say that a reload begins; ``ready`` ends it."""
        if not self._stopping:
            self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self, status: str) -> None:
        """Say that the relay is on its way out: from then on it is neither ready nor reloading."""
        self._stopping = True
        self._send("STOPPING=1", self._as_status(status))

    async def beat(self, describe: Callable[[], str]) -> NoReturn:
        """Feed the watchdog and keep the status line true, until cancelled."""
        pause_seconds = min(STATUS_SECONDS, (self.watchdog_seconds or STATUS_SECONDS * 2) / 2)
        while True:
            beat = [] if self.watchdog_seconds is None else ["WATCHDOG=1"]
            status = describe()
            self._send(*beat, *([] if status == self._status else [self._as_status(status)]))
            await trio.sleep(pause_seconds)

    def _as_status(self, status: str) -> str:
        self._status = status
        return f"STATUS={' '.join(status.split())}"

    def _send(self, *lines: str) -> None:
        if self._address is None or not lines:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.settimeout(SEND_TIMEOUT_SECONDS)
                sender.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:
            if not self._failed:
                log.warning("the service manager cannot be told", error=str(error), message=lines[0])
            self._failed = True
        else:
            self._failed = False


def _address(given: str) -> str | None:
    """Return the address of the manager's socket: a path, or an abstract name that begins with NUL."""
    if given.startswith("@"):
        return f"\0{given[1:]}"
    if given and not given.startswith("/"):
        log.warning("NOTIFY_SOCKET is neither a path nor an abstract name: the service manager is not told")
        return None
    return given or None


def _watchdog_seconds(environ: Mapping[str, str]) -> float | None:
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    text = environ.get("WATCHDOG_USEC", "")
    if not text.isascii() or not text.isdigit() or len(text) > 18 or int(text) == 0:
        return None
    return int(text) / 1_000_000
