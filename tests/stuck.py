"""A pipe that takes nothing more, since nobody reads it."""

from __future__ import annotations

import fcntl
import os
from types import TracebackType

FILLING = b"."


class StuckPipe:
    """A full pipe; its ends are closed when it is left."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        os.set_blocking(self.writing, False)
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            fcntl.fcntl(self.writing, fcntl.F_SETPIPE_SZ, 4096)
        try:
            while True:
                os.write(self.writing, FILLING * 4096)
        except BlockingIOError:
            # What shares it must find it as such pipes usually are.
            os.set_blocking(self.writing, True)

    def __enter__(self) -> StuckPipe:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.let_go()
        os.close(self.reading)

    def let_go(self) -> None:
        """Close the end that is written to; others may still have it."""
        if self.writing >= 0:
            os.close(self.writing)
            self.writing = -1

    def rest(self) -> bytes:
        """Return what was written, when nobody can write any more."""
        self.let_go()
        found = b""
        while data := os.read(self.reading, 65536):
            found += data
        return found.lstrip(FILLING)
