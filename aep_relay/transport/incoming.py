"""WebSocket frames as a server receives them: ordinary text messages at once, all else by ``websockets``' core.

The core takes 5 µs to read a frame, and nearly all frames are alike: a text message, whole, masked and here in full.
Those are unmasked in passing, in a tenth of that; whatever is different in any way goes to the core as it came, which
judges it. Invariants: how the bytes were cut makes no difference; what comes out, and what the core comes to think of
the connection, is what the core alone would have made of the same bytes. RFC 6455 §5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from websockets.protocol import OPEN

try:
    from websockets.speedups import apply_mask
except ImportError:
    from websockets.utils import apply_mask

if TYPE_CHECKING:
    from collections.abc import Iterator

    from websockets.frames import Frame
    from websockets.server import ServerProtocol

FEED_BYTES: Final = 8 * 1024
"""So much goes to the core at once: of the smallest frames, that is some milliseconds' worth."""

_WHOLE_TEXT: Final = 0x81
"""FIN and the opcode of text."""
_USUAL: Final = b"\x81\xfe"
"""The same, masked, its length in two bytes of their own: how an Event comes."""
_MASKED: Final = 0x80
_EMPTY_BYTES: Final = 6
"""A frame without a payload: two bytes, and those it is masked with."""
_LENGTH: Final = 0x7F
_SHORT: Final = 126
"""From here up, the length stands in bytes of its own."""


class Incoming:
    """Cuts what a peer sends into frames, for the core or past it."""

    __slots__ = ("_core", "_head", "_owed_bytes")

    def __init__(self, core: ServerProtocol) -> None:
        self._core = core
        self._head = b""
        """The beginning of a frame whose length is not known yet; the core has it."""
        self._owed_bytes = 0
        """What is still to come of a frame whose beginning the core has."""

    def sole(self, data: bytes) -> bytes | None:
        """Return the payload of ``data`` if it is a short ordinary text message and nothing else, else None.

        With None, ``data`` is still to be fed. A payload is all that ``feed`` would yield.
        """
        size = len(data) - _EMPTY_BYTES
        if not 0 <= size < _SHORT or data[0] != _WHOLE_TEXT or data[1] != _MASKED | size:
            return None
        core = self._core
        between = not self._head and not self._owed_bytes and core.current_size is None
        if not between or core.state is not OPEN or size > (core.max_message_size or 0):
            return None
        return apply_mask(data[_EMPTY_BYTES:], data[2:_EMPTY_BYTES])

    def feed(self, data: bytes) -> Iterator[list[bytes] | Frame]:
        """Yield what ``data`` completes, in order: the payloads of ordinary text messages that follow one another, any
        other frame as it is.

        To be run to its end, unless the connection is over. It stops when the core has: ``state`` is not ``OPEN`` then,
        and ``parser_exc`` or ``close_rcvd`` says why.
        """
        core = self._core
        at = min(self._owed_bytes, len(data))
        self._owed_bytes -= at
        given = len(self._head)
        if given:
            data, self._head = self._head + data, b""
        size = len(data)
        while at < size:
            start, end = _extent(data, at)
            if not start:
                break
            if end <= size and at >= given and data[at] == _WHOLE_TEXT and data[at + 1] & _MASKED:
                if given < at:
                    yield from self._read(data[given:at])
                    given = at
                most_bytes = core.max_message_size or 0
                if core.current_size is None and core.state is OPEN and end - start <= most_bytes:
                    texts = [apply_mask(data[start:end], data[start - 4 : start])]
                    at = given = _read_alike(data, end, most_bytes, texts)
                    yield texts
                    continue
            at = end
            if min(at, size) - given >= FEED_BYTES:
                yield from self._read(data[given : min(at, size)])
                given = min(at, size)
        if at < size:
            self._head = data[at:]
        self._owed_bytes += max(0, at - size)
        if given < size:
            yield from self._read(data[given:] if given else data)

    def _read(self, data: bytes) -> list[Frame]:
        self._core.receive_data(data)
        return self._core.events_received()  # type: ignore[return-value]  # the handshake is over: only frames come


def _read_alike(data: bytes, at: int, most_bytes: int, texts: list[bytes]) -> int:
    """Add to ``texts`` the payloads that follow at ``at``, as far as they are of the usual kind; return where they end.

    What follows a text is most often another one.
    """
    size = len(data)
    while data[at : at + 2] == _USUAL and (start := at + 8) <= size:
        end = start + (data[at + 2] << 8 | data[at + 3])
        if end > size or end - start > most_bytes:
            break
        texts.append(apply_mask(data[start:end], data[at + 4 : start]))
        at = end
    return at


def _extent(data: bytes, at: int) -> tuple[int, int]:
    """Return where the payload of the frame at ``at`` begins and ends; zeros if its length is still to come."""
    if at + 2 > len(data):
        return 0, 0
    second = data[at + 1]
    length, start = second & _LENGTH, at + 2
    if length >= _SHORT:
        start += 2 if length == _SHORT else 8
        if start > len(data):
            return 0, 0
        length = int.from_bytes(data[at + 2 : start])
    if second & _MASKED:
        start += 4
    return start, start + length
