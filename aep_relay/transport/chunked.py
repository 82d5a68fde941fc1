"""The chunked body framing of HTTP/1.1 (RFC 9112 §7.1), undone strictly and in bounded memory.

The verdict on a body does not depend on how its bytes were cut on their way. Extensions are checked against
the grammar and ignored, trailer fields likewise: neither can change what the request says. Both are bounded,
and so is the overhead of framing compared with what is framed.
"""

from __future__ import annotations

import re
from enum import Enum, auto

MAX_LINE_BYTES = 1024
"""A chunk's size with its extensions, or one trailer field."""
MAX_TRAILER_BYTES = 8 * 1024
MAX_OVERHEAD_BYTES = 16 * 1024
"""Size lines may take this much more than is reasonable for the data they frame."""
_FREE_OVERHEAD_BYTES = 16
_LONG_CHUNK_BYTES = 16 * 1024

_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:;[\t\x20-\x7e\x80-\xff]*)?")
_TRAILER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[\t\x20-\x7e\x80-\xff]*")
_NEVER_IN_A_TRAILER = frozenset({b"content-length", b"host", b"transfer-encoding"})


class ChunkedError(Exception):
    """The framing is broken. Its text is fixed, and safe to show."""


class ChunkedOverflow(Exception):
    """The chunks announced so far hold more than the limit."""


class _State(Enum):
    SIZE = auto()
    DATA = auto()
    DATA_END = auto()
    TRAILER = auto()
    DONE = auto()


class ChunkedDecoder:
    """Collects one body of at most ``limit_bytes``. Not usable any more after an error."""

    __slots__ = (
        "_chunk_left",
        "_limit_bytes",
        "_overhead_bytes",
        "_pending",
        "_state",
        "_trailer_bytes",
        "body",
    )

    def __init__(self, limit_bytes: int) -> None:
        self.body = bytearray()
        """What has been decoded."""
        self._limit_bytes = limit_bytes
        self._state = _State.SIZE
        self._pending = b""
        self._chunk_left = 0
        self._overhead_bytes = 0
        self._trailer_bytes = 0

    @property
    def done(self) -> bool:
        """Whether the whole body has been decoded."""
        return self._state is _State.DONE

    @property
    def in_long_chunk(self) -> bool:
        """Whether the next kilobytes belong to one chunk."""
        return self._chunk_left >= _LONG_CHUNK_BYTES

    def feed(self, data: bytes) -> bytes:
        """Take ``data``; return what follows the body, ``b""`` while the body is not done.

        Raises ``ChunkedError`` and ``ChunkedOverflow``.
        """
        if self._pending:
            data, self._pending = self._pending + data, b""
        at, end = 0, len(data)
        while self._state is not _State.DONE:
            if self._state is _State.DATA:
                taken = min(self._chunk_left, end - at)
                self.body += memoryview(data)[at : at + taken]
                at += taken
                self._chunk_left -= taken
                if self._chunk_left:
                    return b""
                self._state = _State.DATA_END
            line_end = data.find(b"\r\n", at)
            if line_end < 0 or line_end - at > MAX_LINE_BYTES:
                self._keep_partial_line(data[at:])
                return b""
            self._take_line(data[at:line_end])
            at = line_end + 2
        return data[at:]

    def _keep_partial_line(self, partial: bytes) -> None:
        if self._state is _State.DATA_END and partial not in (b"", b"\r"):
            raise ChunkedError("a chunk is longer than its size says")
        if len(partial) > MAX_LINE_BYTES + 1:
            raise ChunkedError("a line of the chunked framing is too long")
        if b"\n" in partial:
            raise ChunkedError("a line of the chunked framing does not end with CR LF")
        self._pending = partial

    def _take_line(self, line: bytes) -> None:
        if self._state is _State.SIZE:
            self._take_size(line)
        elif self._state is _State.DATA_END:
            if line:
                raise ChunkedError("a chunk is longer than its size says")
            self._state = _State.SIZE
        elif line:
            self._trailer_bytes += len(line) + 2
            if self._trailer_bytes > MAX_TRAILER_BYTES:
                raise ChunkedError("the trailer is too long")
            match = _TRAILER.fullmatch(line)
            if match is None or match[1].lower() in _NEVER_IN_A_TRAILER:
                raise ChunkedError("a trailer field is malformed, or has to stand in the head")
        else:
            self._state = _State.DONE

    def _take_size(self, line: bytes) -> None:
        match = _SIZE_LINE.fullmatch(line)
        if match is None:
            raise ChunkedError("a chunk size is malformed")
        size = int(match[1], 16)
        if len(self.body) + size > self._limit_bytes:
            raise ChunkedOverflow
        # A byte a chunk is allowed, if clumsy. Long extensions on tiny chunks are an attack on the processor.
        excess = len(line) + 2 - _FREE_OVERHEAD_BYTES - 2 * size
        self._overhead_bytes = max(0, self._overhead_bytes + excess)
        if self._overhead_bytes > MAX_OVERHEAD_BYTES:
            raise ChunkedError("the chunk extensions are too long")
        self._chunk_left = size
        self._state = _State.DATA if size else _State.TRAILER
