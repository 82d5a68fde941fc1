"""Lines in and lines out: one JSON text a line, ``\\n`` after each (AEP-0003 §3.1, §3.3).

Invariants: an Event on one line is the Event as received but for line breaks between its tokens; a reader's
result does not depend on how its input was cut into chunks, and it never holds more than one line's bound.
"""

from __future__ import annotations

from dataclasses import dataclass


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


class LineReader:
    """Cuts a stream into lines: ``\\n`` or ``\\r\\n`` ends each, blank lines are left out.

    A line of more than ``max_line_bytes`` is reported as soon as that is known, and skipped to its end.
    """

    def __init__(self, max_line_bytes: int) -> None:
        self._max_line_bytes = max_line_bytes
        self._pending = bytearray()
        self._skipping = False

    def feed(self, chunk: bytes) -> list[bytes | OverlongLine]:
        """Take in the next bytes of the stream and return the lines that end in them."""
        lines: list[bytes | OverlongLine] = []
        *ended, rest = chunk.split(b"\n")
        for piece in ended:
            self._take(piece, lines)
            self._end_line(lines)
        self._take(rest, lines)
        return lines

    def finish(self) -> list[bytes | OverlongLine]:
        """Return the last line if the stream ended within it."""
        lines: list[bytes | OverlongLine] = []
        self._end_line(lines)
        return lines

    def _take(self, piece: bytes, lines: list[bytes | OverlongLine]) -> None:
        """Add a piece of the current line, unless that is known to be too long."""
        if self._skipping or not piece:
            return
        length = len(self._pending) + len(piece)
        if length > self._max_line_bytes + piece.endswith(b"\r"):  # it may belong to the terminator
            lines.append(OverlongLine(self._max_line_bytes))
            self._pending.clear()
            self._skipping = True
        else:
            self._pending += piece

    def _end_line(self, lines: list[bytes | OverlongLine]) -> None:
        line = bytes(self._pending)
        self._pending.clear()
        if not self._skipping and line.strip(b" \t\r"):
            lines.append(line.removesuffix(b"\r"))
        self._skipping = False
