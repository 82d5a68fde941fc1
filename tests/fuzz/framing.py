"""WebSocket frames in a spelling that mutation does not break: pieces between marks, each a flag byte and a payload."""

from __future__ import annotations

from collections.abc import Iterator

from tests.hardening.client import MASK, frame

MARK = b"\xf5"
"""No byte of UTF-8, so that texts seldom hold it."""

FIN, RSV, MASKED = 0x80, 0x40, 0x20
LONG = 0x10
"""The length in more bytes than it takes."""
OPCODE_TEXT, OPCODE_CLOSE, OPCODE_PING = 1, 8, 9


def spelled(flags: int, payload: bytes) -> bytes:
    """Return one frame in this spelling."""
    return MARK + bytes((flags,)) + payload


def frames_of(data: bytes) -> Iterator[bytes]:
    """Yield the frames that ``data`` spells."""
    for piece in data.split(MARK)[1:]:
        if piece:
            flags = piece[0]
            yield frame(
                piece[1:],
                flags & 0x0F,
                fin=bool(flags & FIN),
                rsv=4 if flags & RSV else 0,
                mask=MASK if flags & MASKED else None,
                length_bits=64 if flags & LONG else None,
            )
