"""JSONL in: a file or standard input, line by line, under Trio."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import trio

from aep_relay.client.errors import Misused
from aep_relay.protocol.jsonl import LineReader

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from io import BufferedReader

    from aep_relay.protocol.jsonl import OverlongLine, Placed

READ_BYTES: Final = 256 * 1024
MAX_LINE_BYTES: Final = 64 << 20

Line = tuple[int, "bytes | OverlongLine"]
"""Number, from 1, and text."""


class Lines:
    """The lines of a file, numbered; blank ones count and are left out (AEP-0003 §3.1)."""

    def __init__(self, file: BufferedReader) -> None:
        self._file = file
        self._reader = LineReader(MAX_LINE_BYTES)
        self.read_bytes = 0
        self.size_bytes = _size(file)
        """None if it can't be told, as of a pipe."""

    async def read(self) -> list[Line] | None:
        """Return the lines that end in the next piece of input, ``None`` at its end."""
        chunk = await trio.to_thread.run_sync(self._file.read1, READ_BYTES, abandon_on_cancel=True)
        if not chunk:
            return _numbered(self._reader.place_rest()) or None
        self.read_bytes += len(chunk)
        return self.take(chunk)

    def take(self, chunk: bytes) -> list[Line]:
        """Return the lines that end in ``chunk``."""
        return _numbered(self._reader.place(chunk))


def _numbered(lines: Iterable[Placed]) -> list[Line]:
    return [(line.number, line.text) for line in lines]


def _size(file: BufferedReader) -> int | None:
    try:
        found = os.fstat(file.fileno())
    except (OSError, ValueError):
        return None
    return found.st_size or None


@contextlib.contextmanager
def opened(name: str) -> Iterator[Lines]:
    """Open ``name``, ``-`` for standard input. Raises ``Misused``."""
    if name == "-":
        yield Lines(cast("BufferedReader", sys.stdin.buffer))
        return
    try:
        file = Path(name).open("rb")  # noqa: SIM115  # closed below
    except OSError as error:
        raise Misused(f"{name} cannot be read: {error.strerror}", "- stands for standard input") from None
    with file:
        yield Lines(file)
