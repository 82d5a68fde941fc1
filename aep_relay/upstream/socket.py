"""A WebSocket to an upstream, past its hello (AEP-0003 §3.5, §4).

The handshake and incoming frames are ``websockets``' sans-I/O core over a Trio stream, outgoing Events are framed here:
``trio-websocket`` takes 30 µs to receive an Event of 460 bytes and 8 µs only to frame one, this takes 4 and 1, and a
run of Events is one write. Invariants: one write at a time; whatever the peer does ends in ``Down``, with the close
code where there is one.
"""

from __future__ import annotations

import logging
import os
from struct import Struct
from typing import TYPE_CHECKING, Final

import msgspec
import trio
from websockets.client import ClientProtocol
from websockets.exceptions import InvalidHandshake, InvalidStatus
from websockets.frames import Close, Frame, Opcode
from websockets.protocol import CLOSED, OPEN
from websockets.uri import WebSocketURI

from aep_relay import __version__
from aep_relay.protocol import frames
from aep_relay.protocol.discovery import VERSIONS
from aep_relay.upstream.errors import ENDED, LOOP, REFUSED, UNREACHABLE, Down

try:
    from websockets.speedups import apply_mask
except ImportError:
    from websockets.utils import apply_mask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from websockets.protocol import Event

    from aep_relay.upstream.dial import Dial, Target

RECEIVE_BYTES: Final = 64 * 1024
CLOSE_SECONDS: Final = 1.0
"""For the other side to answer a close frame."""

_FIN_TEXT: Final = 0x81
_MASKED: Final = 0x80
_TINY = Struct("!BB4s")
_SHORT = Struct("!BBH4s")
_LONG = Struct("!BBQ4s")
_NO_SOCKET = frozenset({404, 405, 501})
"""What an upstream answers that has no WebSocket binding."""

_QUIET = logging.getLogger("aep_relay.upstream")
_QUIET.setLevel(logging.CRITICAL)


class NoSocket(Down):
    """The upstream has no WebSocket binding."""


class Closed(Down):
    """The upstream closed the connection; ``code`` is the close code, 1005 or 1006 where there was none."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(
            LOOP if reason == LOOP else ENDED, f"closed with {code}{': ' if reason else ''}{reason}"
        )
        self.code = code


def text_frames(payloads: Sequence[bytes]) -> bytes:
    """Return each payload as one masked text frame, joined (RFC 6455 §5.2)."""
    parts: list[bytes] = []
    # Each frame has a mask that nobody can foresee, so that no Event looks like HTTP to a proxy on the way.
    masks = os.urandom(4 * len(payloads))
    for number, payload in enumerate(payloads):
        mask = masks[4 * number : 4 * number + 4]
        size = len(payload)
        if size < 126:
            parts.append(_TINY.pack(_FIN_TEXT, _MASKED | size, mask))
        elif size < 65_536:
            parts.append(_SHORT.pack(_FIN_TEXT, _MASKED | 126, size, mask))
        else:
            parts.append(_LONG.pack(_FIN_TEXT, _MASKED | 127, size, mask))
        parts.append(apply_mask(payload, mask))
    return b"".join(parts)


class Socket:
    """One open connection."""

    def __init__(
        self, stream: trio.abc.Stream, protocol: ClientProtocol, send_timeout_seconds: float
    ) -> None:
        self._stream = stream
        self._protocol = protocol
        self._seconds = send_timeout_seconds
        self._writing = trio.Lock()
        self._parts: list[bytes] | None = None
        self._early: list[bytes] = []
        self.heard_at = trio.current_time()
        """When the last byte came."""

    async def send(self, payloads: Sequence[bytes]) -> None:
        """Send each payload as a message of its own, in one write. Raises ``Down``."""
        await self._write(text_frames(payloads))

    async def send_frame(self, frame: dict[str, object]) -> None:
        """Send one frame. Raises ``Down``."""
        await self._write(text_frames((msgspec.json.encode(frame),)))

    async def _write(self, data: bytes) -> None:
        try:
            with trio.fail_after(self._seconds):
                async with self._writing:
                    await self._stream.send_all(data)
        except trio.TooSlowError:
            raise Down(UNREACHABLE, f"takes no bytes: none for {self._seconds:g} s") from None
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise Down(UNREACHABLE, "the connection broke") from None

    async def receive(self) -> list[bytes]:
        """Wait for bytes and return the messages that are whole by then, perhaps none. Raises ``Down``."""
        protocol = self._protocol
        found, self._early = self._early, []
        if not found:
            await self._feed()
        for event in protocol.events_received():
            self._take(event, found)
        if not found and protocol.state is not OPEN:
            raise self._closed()
        replies = b"".join(protocol.data_to_send())
        if replies:
            await self._write(replies)
        return found

    async def _feed(self) -> None:
        """Wait for bytes and hand them to the core. Raises ``Down``."""
        try:
            data = await self._stream.receive_some(RECEIVE_BYTES)
        except trio.BrokenResourceError:
            raise Down(UNREACHABLE, "the connection broke") from None
        self.heard_at = trio.current_time()
        if data:
            self._protocol.receive_data(data)
        else:
            self._protocol.receive_eof()

    def _take(self, frame: Event, found: list[bytes]) -> None:
        if not isinstance(frame, Frame):
            # The response of the handshake, which was looked at already.
            return
        if frame.opcode is Opcode.TEXT and frame.fin:
            found.append(bytes(frame.data))
        elif frame.opcode is Opcode.TEXT:
            self._parts = [bytes(frame.data)]
        elif frame.opcode is Opcode.CONT and self._parts is not None:
            self._parts.append(bytes(frame.data))
            if frame.fin:
                found.append(b"".join(self._parts))
                self._parts = None

    def _closed(self) -> Down:
        protocol = self._protocol
        close: Close | None = protocol.close_rcvd
        if close is not None:
            return Closed(close.code, close.reason)
        if protocol.parser_exc is not None and not isinstance(protocol.parser_exc, EOFError):
            return Down(UNREACHABLE, f"broke the WebSocket protocol: {protocol.parser_exc}")
        return Closed(1006, "")

    def put_back(self, messages: list[bytes]) -> None:
        """Let ``receive`` return ``messages`` first."""
        self._early += messages

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Say that this is the end and close, as far as that is possible within a moment (AEP-0003 §3.5.4)."""
        with trio.move_on_after(CLOSE_SECONDS) as scope:
            # Whoever closes is often being cancelled.
            scope.shield = True
            try:
                if self._protocol.state is OPEN:
                    await self._write(text_frames((frames.closing(reason, ()),)))
                    self._protocol.send_close(code, reason)
                # Also what the core has to answer to the other side's close.
                await self._write(b"".join(self._protocol.data_to_send()))
                while self._protocol.state is not CLOSED:
                    await self._feed()
                    self._protocol.events_received()
            except (Down, trio.ClosedResourceError, trio.BusyResourceError):
                pass
        await trio.aclose_forcefully(self._stream)


async def open_socket(
    dial: Dial,
    hello: dict[str, object],
    *,
    token: str | None,
    seconds: float,
    send_timeout_seconds: float,
    max_message_bytes: int,
) -> tuple[Socket, dict[str, object]]:
    """Connect, exchange hellos, and return the socket with the upstream's hello.

    The caller closes it. Raises ``Down``; ``NoSocket`` if the upstream has no such binding.
    """
    stream: trio.abc.Stream | None = None
    try:
        with trio.fail_after(seconds):
            stream = await dial()
            protocol = _protocol(dial.target, token, max_message_bytes)
            await _shake_hands(stream, protocol)
            socket = Socket(stream, protocol, send_timeout_seconds)
            return socket, await _greet(socket, hello)
    except BaseException as error:
        if stream is not None:
            await trio.aclose_forcefully(stream)
        if isinstance(error, trio.TooSlowError):
            raise Down(UNREACHABLE, f"no hello within {seconds:g} s") from None
        raise


def _protocol(target: Target, token: str | None, max_message_bytes: int) -> ClientProtocol:
    uri = WebSocketURI(target.tls, target.host, target.port, f"{target.base}/socket", "")
    protocol = ClientProtocol(uri, max_size=max_message_bytes, logger=_QUIET)
    request = protocol.connect()
    del request.headers["Host"]
    request.headers["Host"] = target.authority
    request.headers["User-Agent"] = f"aep-relay/{__version__}"
    if token is not None:
        request.headers["Authorization"] = f"Bearer {token}"
    protocol.send_request(request)
    return protocol


async def _shake_hands(stream: trio.abc.Stream, protocol: ClientProtocol) -> None:
    try:
        await stream.send_all(b"".join(protocol.data_to_send()))
        while True:
            data = await stream.receive_some(RECEIVE_BYTES)
            if data:
                protocol.receive_data(data)
            else:
                protocol.receive_eof()
            if protocol.handshake_exc is not None:
                raise _rejected(protocol.handshake_exc)
            if protocol.state is OPEN:
                return
    except trio.BrokenResourceError:
        raise Down(UNREACHABLE, "the connection broke in the WebSocket handshake") from None


def _rejected(error: Exception) -> Down:
    if isinstance(error, InvalidStatus):
        return rejected(error.response.status_code, bytes(error.response.body), NoSocket)
    if isinstance(error, InvalidHandshake) and not isinstance(error.__cause__, EOFError):
        return Down(REFUSED, f"does not speak WebSocket: {error}")
    return Down(UNREACHABLE, "ended the connection in the WebSocket handshake")


def rejected(status: int, body: bytes, missing: type[Down] = Down) -> Down:
    """Return what an HTTP answer other than the wanted one means for a link."""
    detail = f"HTTP {status}"
    try:
        said = msgspec.json.decode(body)
        if isinstance(said, dict) and isinstance(said.get("detail"), str):
            detail += f": {said['detail']}"
    except (ValueError, RecursionError):
        pass
    if status in _NO_SOCKET:
        return missing(REFUSED, detail)
    return Down(UNREACHABLE if status >= 500 or status in (408, 425, 429) else REFUSED, detail)


async def _greet(socket: Socket, hello: dict[str, object]) -> dict[str, object]:
    await socket.send_frame(hello)
    while True:
        messages = await socket.receive()
        for index, text in enumerate(messages):
            frame = _frame(text)
            if frame.get("type") == "error":
                raise Down(REFUSED, f"{frame.get('code')}: {frame.get('detail')}")
            if frame.get("type") == "hello":
                if frame.get("versions") != list(VERSIONS):
                    raise Down(REFUSED, "chose a version that was not offered")
                socket.put_back(messages[index + 1 :])
                return frame


def _frame(text: bytes) -> dict[str, object]:
    try:
        frame = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        raise Down(REFUSED, "sent something else than a hello") from None
    return frame if isinstance(frame, dict) else {}
