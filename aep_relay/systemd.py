"""What the service manager is told while the relay runs: sd_notify(3), without a library.

Invariants: without ``NOTIFY_SOCKET`` nothing is sent; what can't be sent is reported once and changes nothing; nobody
waits for a manager that does not read: states are sent again, beats are left out. The watchdog is fed by a task of the
event loop: a loop that is stuck feeds it no more, and the manager restarts the relay.
Sockets that the manager passes are taken by ``transport.sockets.open_inherited``.
"""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from typing import TYPE_CHECKING

import structlog
import trio

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import NoReturn

RETRY_SECONDS = 0.1
"""Until a state is sent again that the manager had no room for."""
MAX_UNTAKEN = 16
"""So many states are sent again, the last ones."""
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
        self._untaken: deque[tuple[str, ...]] = deque(maxlen=MAX_UNTAKEN)
        """States that the manager had no room for."""
        self._behind = trio.Event()
        self.watchdog_seconds = _watchdog_seconds(environ)
        """How often it wants to hear of the event loop; None for never."""

    def ready(self, status: str) -> None:
        """Say that the relay listens, or that a reload is over."""
        if not self._stopping:
            self._tell("READY=1", self._as_status(status))

    def reloading(self) -> None:
        """Say that a reload begins; ``ready`` ends it."""
        if not self._stopping:
            self._tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self, status: str) -> None:
        """Say that the relay is on its way out: from then on it is neither ready nor reloading."""
        self._stopping = True
        self._tell("STOPPING=1", self._as_status(status))

    async def beat(self, describe: Callable[[], str]) -> NoReturn:
        """Feed the watchdog and keep the status line true, until cancelled."""
        pause_seconds = min(STATUS_SECONDS, (self.watchdog_seconds or STATUS_SECONDS * 2) / 2)
        while True:
            beat = [] if self.watchdog_seconds is None else ["WATCHDOG=1"]
            status = describe()
            told = self._status
            lines = [*beat, *([] if status == told else [self._as_status(status)])]
            if not self._catch_up() or not self._send(*lines):
                self._status = told
            with trio.move_on_after(pause_seconds):
                await self._behind.wait()
                await trio.sleep(RETRY_SECONDS)

    def _as_status(self, status: str) -> str:
        self._status = status
        return f"STATUS={' '.join(status.split())}"

    def _tell(self, *lines: str) -> None:
        """Send a state, behind those that have not been taken; what is not taken is sent again by ``beat``."""
        self._untaken.append(lines)
        self._catch_up()

    def _catch_up(self) -> bool:
        """Send the states that have not been taken; return whether none is left."""
        while self._untaken and self._send(*self._untaken[0]):
            self._untaken.popleft()
        if self._untaken:
            self._behind.set()
            return False
        if self._behind.is_set():
            self._behind = trio.Event()
        return True

    def _send(self, *lines: str) -> bool:
        """Send one message; return False if there is no room for it now."""
        if self._address is None or not lines:
            return True
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)
                sender.sendto("\n".join(lines).encode(), self._address)
        except BlockingIOError:
            return False
        except OSError as error:
            if not self._failed:
                log.warning("the service manager cannot be told", error=str(error), message=lines[0])
            self._failed = True
        else:
            self._failed = False
        return True


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
