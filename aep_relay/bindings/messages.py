"""RFC 6455 on a connection that is open: messages out of frames, the pongs owed, and the close frame.

It knows nothing of what a message says. Incoming frames are read by ``transport.incoming``, over ``websockets``' core.
Invariants: pongs are kept until somebody takes them, in order with everything else that is sent; at most one close
frame is ever given away, and it is the last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from websockets.frames import Close, Frame, Opcode
from websockets.protocol import OPEN

from aep_relay.transport.incoming import Incoming

if TYPE_CHECKING:
    from collections.abc import Iterator

    from websockets.server import ServerProtocol

_CLOSE: Final = b"\x88"
_PONG: Final = 0x8A
"""How the relay's own control frames begin (RFC 6455 §5.2)."""


class Messages:
    """What one peer sends, as messages."""

    __slots__ = ("_close", "_core", "_parts", "_pongs", "incoming")

    def __init__(self, core: ServerProtocol) -> None:
        self.incoming = Incoming(core)
        self._core = core
        self._parts: bytearray | None = None
        """A message of which fragments are still to come."""
        self._pongs: list[bytes] = []
        self._close = b""

    def feed(self, data: bytes) -> Iterator[list[bytes] | None]:
        """Yield what ``data`` completes, in order: text messages that follow one another; none for a frame that
        completes no message; None for one that is not text.

        As ``Incoming.feed``, to be run to its end unless the connection is over.
        """
        for found in self.incoming.feed(data):
            yield found if isinstance(found, list) else self._frame(found)

    def _frame(self, frame: Frame) -> list[bytes] | None:
        opcode = frame.opcode
        if opcode is Opcode.PING:
            # In order with everything else, which the core, that would answer by itself, does not know of.
            self._pongs.append(bytes((_PONG, len(frame.data))) + frame.data)
        elif opcode is Opcode.TEXT:
            if frame.fin:
                return [bytes(frame.data)]
            self._parts = bytearray(frame.data)
        elif opcode is Opcode.CONT and self._parts is not None:
            self._parts += frame.data
            if frame.fin:
                text, self._parts = bytes(self._parts), None
                return [text]
        elif opcode is Opcode.BINARY:
            return None
        return []

    def take_pongs(self) -> bytes:
        """Return the pongs owed for the pings so far (RFC 6455 §5.5.3); they are owed no more."""
        if not self._pongs:
            return b""
        pongs, self._pongs = b"".join(self._pongs), []
        return pongs

    def keep_close(self) -> None:
        """Keep the close frame that the core sends, if it does: it is the farewell, and nothing may follow it."""
        for data in self._core.data_to_send():
            if data.startswith(_CLOSE):
                self._close = data

    def farewell(self, reason: str | None, code: int) -> bytes:
        """Return the close frame this side still owes the peer, which says ``code`` where this side had a ``reason``.

        The core may have answered a close frame that came behind what the connection ends for, with the peer's code:
        that answer has not gone out, so to the peer this side closes first (RFC 6455 §5.5.1).
        """
        core = self._core
        if core.state is OPEN:
            core.send_close(code, reason or "")
        self.keep_close()
        if reason is not None and core.close_sent is not None and core.close_sent.code != code:
            self._close = Frame(Opcode.CLOSE, Close(code, reason).serialize()).serialize(mask=False)
        return self._close
