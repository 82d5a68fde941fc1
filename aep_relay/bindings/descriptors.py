"""Standard streams under Trio, as they were inherited: nothing is set on them, since others share them.

A descriptor of another process's making stays blocking, so reading and writing happen in worker threads that are left
behind when nobody waits for them any more.
"""

from __future__ import annotations

import os
from collections import deque
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Iterator

READ_BYTES = 256 * 1024
PIECE_BYTES = 8 * 1024
"""So much is cut into lines at a time: were all of it line breaks, it would take some milliseconds."""
MAX_UNTOLD_BYTES = 1024 * 1024


async def read(descriptor: int) -> bytes:
    """Return what comes next, ``b""`` at the end or when the other side is gone."""
    try:
        return await trio.to_thread.run_sync(os.read, descriptor, READ_BYTES, abandon_on_cancel=True)
    except OSError:
        return b""


def pieces(data: bytes) -> Iterator[bytes]:
    """Return ``data`` in pieces, for who cuts them into lines and lets others have their turn in between."""
    return (data[start : start + PIECE_BYTES] for start in range(0, len(data), PIECE_BYTES))


async def write(descriptor: int, data: bytes) -> None:
    """Write ``data``, with one ``write`` unless the system takes less. Raises ``OSError``."""
    await trio.to_thread.run_sync(_write, descriptor, data, abandon_on_cancel=True)


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


class Teller:
    """Writes lines to a descriptor that perhaps nobody reads.

    What it does not take is dropped, and said to be when it takes something again.
    """

    def __init__(self, descriptor: int) -> None:
        self._dropped_lines = 0
        self._descriptor = descriptor
        self._pending: deque[bytes] = deque()
        self._pending_bytes = 0
        self._news = trio.Event()
        self._writing = False

    def tell(self, line: bytes) -> None:
        """Write ``line``, its newline included, some time. Never waits."""
        if self._pending_bytes + len(line) > MAX_UNTOLD_BYTES:
            self._dropped_lines += 1
            return
        if self._dropped_lines:
            line = b"aep-relay: %d lines could not be written here\n" % self._dropped_lines + line
            self._dropped_lines = 0
        self._pending.append(line)
        self._pending_bytes += len(line)
        self._news.set()

    async def run(self) -> None:
        """Write until cancelled, or until the descriptor can't be written to."""
        while True:
            if not self._pending:
                self._news = trio.Event()
                await self._news.wait()
            data = b"".join(self._pending)
            self._pending.clear()
            self._writing = True
            try:
                await write(self._descriptor, data)
            except OSError:
                self._pending_bytes = MAX_UNTOLD_BYTES
                return
            finally:
                self._writing = False
            self._pending_bytes -= len(data)

    async def finish(self, seconds: float) -> None:
        """Wait until all is written, for ``seconds`` at most."""
        with trio.move_on_after(seconds):
            while self._pending or self._writing:  # noqa: ASYNC110  # at the end, once
                await trio.sleep(0.005)
