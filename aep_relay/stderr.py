"""Standard error of a process that serves: nobody who writes to it waits for whoever reads it.

What is written is held and goes out in order, by a thread of its own, as the descriptor takes it: a pipe that nobody
reads, a terminal that is held with Ctrl-S, a journal that is stuck stop this thread and nothing else. Nothing is set
on the descriptor, which others share.

Invariants: at most ``MAX_HELD_BYTES`` are held; what comes when they are is dropped and counted, whole writes, until
half of them are out, and then the count is told in the place of what is missing. A process that ends waits until all
is out, for ``EXIT_SECONDS`` at most.
"""

from __future__ import annotations

import atexit
import io
import os
import select
import sys
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_HELD_BYTES = 1024 * 1024
EXIT_SECONDS = 1.0
BULK_BYTES = 64 * 1024
"""More than this goes out at once when so much has piled up, else no more than a pipe takes in one piece."""


class Outlet:
    """Writes to a descriptor, some time.

    It has a thread, which is no reason for the process not to end.
    """

    def __init__(self, descriptor: int, max_held_bytes: int = MAX_HELD_BYTES) -> None:
        self._descriptor = descriptor
        self._max_held_bytes = max_held_bytes
        self._waiting: deque[bytes] = deque()
        self._held_bytes = 0
        """Of what is waiting and what is being written."""
        self._full = False
        self._torn = False
        """Whether what was written last broke off in a line."""
        self._untold_lines = 0
        self.lost_lines = 0
        self.describe: Callable[[int], str] = "aep-relay: {} lines could not be written here".format
        """Returns the line that tells how many are missing."""
        # Its lock may be taken twice by one thread: a collection of garbage in the midst may have something to say.
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name="stderr", daemon=True).start()

    def write(self, data: bytes) -> None:
        """Have ``data``, whole lines, written. Never waits."""
        with self._changed:
            if self._full or self._held_bytes + len(data) > self._max_held_bytes:
                self._full = True
                self._lose(data)
                if self._held_bytes:
                    return
                # One write of more than may be held: nothing else is under way that would tell of it.
                self._make_room()
                self._tell_losses()
            else:
                self._hold(data)
            self._changed.notify_all()

    def finish(self, seconds: float) -> bool:
        """Wait until all is out, for ``seconds`` at most; return whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._held_bytes, seconds)

    def _hold(self, data: bytes) -> None:
        self._waiting.append(data)
        self._held_bytes += len(data)

    def _lose(self, data: bytes) -> None:
        lines = data.count(b"\n")
        self.lost_lines += lines
        self._untold_lines += lines

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    self._changed.wait()
                data = self._next()
            rest = self._put(b"\n" + data if self._torn else data)
            with self._changed:
                self._held_bytes -= len(data)
                self._make_room()
                if rest:
                    self._lose(rest)
                elif not self._full:
                    self._tell_losses()
                self._changed.notify_all()

    def _next(self) -> bytes:
        """Take what is to be written next: as much as fits into one piece, which no other process comes between."""
        limit = BULK_BYTES if self._held_bytes > BULK_BYTES else select.PIPE_BUF
        taken = [self._waiting.popleft()]
        size = len(taken[0])
        while self._waiting and size + len(self._waiting[0]) <= limit:
            taken.append(self._waiting.popleft())
            size += len(taken[-1])
        return b"".join(taken)

    def _put(self, data: bytes) -> bytes:
        """Write ``data``; return the rest, if it can't be written."""
        done = 0
        try:
            while done < len(data):
                try:
                    done += os.write(self._descriptor, memoryview(data)[done:])
                except BlockingIOError:
                    # Somebody else has set the descriptor so.
                    room = select.poll()
                    room.register(self._descriptor, select.POLLOUT)
                    room.poll()
        except OSError:  # nobody there, a full disk
            pass
        if done:
            self._torn = done < len(data) and data[done - 1 : done] != b"\n"
        return data[done:]

    def _make_room(self) -> None:
        if self._held_bytes <= self._max_held_bytes // 2:
            self._full = False

    def _tell_losses(self) -> None:
        if self._untold_lines:
            lines, self._untold_lines = self._untold_lines, 0
            self._hold(f"{self.describe(lines)}\n".encode("utf-8", "backslashreplace"))


class _Raw(io.RawIOBase):
    """What a text stream is made of that writes to an outlet."""

    name = "<stderr>"

    def __init__(self, outlet: Outlet, descriptor: int) -> None:
        self._outlet = outlet
        self._descriptor = descriptor

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        copy = bytes(data)
        self._outlet.write(copy)
        return len(copy)

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)


class HeldStream(io.TextIOWrapper):
    """A text stream whose writes never wait, each of which is held or dropped whole."""

    def __init__(self, descriptor: int, encoding: str, max_held_bytes: int = MAX_HELD_BYTES) -> None:
        self.outlet = Outlet(descriptor, max_held_bytes)
        raw = _Raw(self.outlet, descriptor)
        super().__init__(raw, encoding, "backslashreplace", write_through=True)


def install() -> None:
    """Have everything that writes to ``sys.stderr`` not wait, until the process ends. Once is enough.

    Where standard error has been replaced already, whoever did knows what comes of writing to it.
    """
    own = sys.__stderr__
    if own is None or sys.stderr is not own:
        return
    sys.stderr = HeldStream(own.fileno(), own.encoding)
    atexit.register(_restore)


def finish(seconds: float = EXIT_SECONDS) -> bool:
    """Wait until what was written is out, for ``seconds`` at most; return whether it is."""
    stream = sys.stderr
    return stream.outlet.finish(seconds) if isinstance(stream, HeldStream) else True


def lost_lines() -> int:
    """Return how many lines were not written, since nobody read or it failed."""
    stream = sys.stderr
    return stream.outlet.lost_lines if isinstance(stream, HeldStream) else 0


def _restore() -> None:
    """Let what comes after all else, when no thread runs any more, be written at once, where somebody reads it."""
    if finish():
        sys.stderr = sys.__stderr__
