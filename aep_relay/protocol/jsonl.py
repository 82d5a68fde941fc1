"""Lines in and lines out: one JSON text a line, ``\\n`` after each (AEP-0003 §3.1, §3.3).

Invariants: an Event on one line is the Event as received but for line breaks between its tokens; a reader's
result does not depend on how its input was cut into chunks, and it never holds more than one line's bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


def one_line(raw: bytes) -> bytes:
    """Return the JSON text ``raw`` without raw line breaks: in valid JSON they stand between tokens only."""
    # A byte's number is looked for many times faster than a string of one byte.
    if 10 in raw or 13 in raw:
        return raw.translate(None, b"\r\n")
    return raw


@dataclass(frozen=True, slots=True)
class OverlongLine:
    """In place of a line that has more than ``limit_bytes``, its terminator not counted."""

    limit_bytes: int


class Placed(NamedTuple):
    """A line and where it stands, for who has to report it."""

    number: int
    """From 1, blank ones counted."""
    offset: int
    """Of its first byte."""
    text: bytes | OverlongLine


class LineReader:
    """Cuts a stream into lines: ``\\n`` or ``\\r\\n`` ends each, blank lines are left out.

    A line of more than ``max_line_bytes`` is reported as soon as that is known, and skipped to its end. ``offset`` is
    that of the stream's first byte.
    """

    def __init__(self, max_line_bytes: int, offset: int = 0) -> None:
        self._max_line_bytes = max_line_bytes
        self._pending = bytearray()
        self._skipping = False
        self._number = 1
        self._start = self._read = offset

    def feed(self, chunk: bytes) -> list[bytes | OverlongLine]:
        """Take in the next bytes of the stream and return the lines that end in them."""
        return [line.text for line in self.place(chunk)]

    def place(self, chunk: bytes) -> list[Placed]:
        """Do as ``feed``, and say where each line stands."""
        lines: list[Placed] = []
        *ended, rest = chunk.split(b"\n")
        for piece in ended:
            self._take(piece, lines)
            self._read += len(piece) + 1
            self._end_line(lines)
        self._take(rest, lines)
        self._read += len(rest)
        return lines

    def finish(self) -> list[bytes | OverlongLine]:
        """Return the last line if the stream ended within it."""
        return [line.text for line in self.place_rest()]

    def place_rest(self) -> list[Placed]:
        """Do as ``finish``, and say where the line stands."""
        lines: list[Placed] = []
        if self._read > self._start:
            self._end_line(lines)
        return lines

    def _take(self, piece: bytes, lines: list[Placed]) -> None:
        """Add a piece of the current line, unless that is known to be too long."""
        if self._skipping or not piece:
            return
        length = len(self._pending) + len(piece)
        if length > self._max_line_bytes + piece.endswith(b"\r"):  # it may belong to the terminator
            lines.append(Placed(self._number, self._start, OverlongLine(self._max_line_bytes)))
            self._pending.clear()
            self._skipping = True
        else:
            self._pending += piece

    def _end_line(self, lines: list[Placed]) -> None:
        line = bytes(self._pending)
        self._pending.clear()
        if not self._skipping and line.strip(b" \t\r"):
            lines.append(Placed(self._number, self._start, line.removesuffix(b"\r")))
        self._skipping = False
        self._number += 1
        self._start = self._read
