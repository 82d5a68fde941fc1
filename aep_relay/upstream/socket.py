"""A WebSocket to an upstream, past its hello (AEP-0003 §3.5, §4).

``websockets``' sans-I/O core opens it, ``framing`` writes and reads it, so that a run of Events is one write and costs
little. Invariants: one write at a time; whatever the peer does ends in ``Down``, with the close code where there is
one.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import msgspec
import trio
from websockets.client import ClientProtocol
from websockets.exceptions import InvalidHandshake, InvalidStatus
from websockets.protocol import OPEN
from websockets.uri import WebSocketURI

from aep_relay import __version__
from aep_relay.protocol import frames
from aep_relay.protocol.discovery import VERSIONS
from aep_relay.protocol.errors import ProtocolError
from aep_relay.transport.turn import Turn
from aep_relay.upstream import framing
from aep_relay.upstream.errors import ENDED, LOOP, REFUSED, UNREACHABLE, Down

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aep_relay.upstream.dial import Dial, Target

RECEIVE_BYTES: Final = 64 * 1024
MAX_HEAD_BYTES: Final = 64 * 1024
CLOSE_SECONDS: Final = 1.0
"""For the other side to answer a close frame."""

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


class Socket:
    """One open connection."""

    def __init__(
        self, stream: trio.abc.Stream, early: bytes, *, max_message_bytes: int, send_timeout_seconds: float
    ) -> None:
        self._stream = stream
        self._reader = framing.Reader(max_message_bytes)
        self._early: list[tuple[int, bytes]] | None = None
        self._first = early
        self._seconds = send_timeout_seconds
        self._writing = trio.Lock()
        self._closed: Down | None = None
        self.heard_at = trio.current_time()
        """When the last byte came."""

    async def send(self, payloads: Sequence[bytes]) -> None:
        """Send each payload as a message of its own, in one write. Raises ``Down``."""
        await self._write(framing.written(payloads))

    async def send_frame(self, frame: dict[str, object]) -> None:
        """Send one frame. Raises ``Down``."""
        await self._write(framing.written((msgspec.json.encode(frame),)))

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
        if self._closed is not None:
            raise self._closed
        found = self._early
        self._early = None
        if found is None:
            found = await self._read()
        messages: list[bytes] = []
        for opcode, payload in found:
            if opcode == framing.TEXT:
                messages.append(payload)
            elif opcode == framing.PING:
                await self._write(framing.written((payload,), framing.PONG))
            elif opcode == framing.CLOSE:
                self._closed = _closed(payload)
                break
        if self._closed is not None and not messages:
            raise self._closed
        return messages

    async def _read(self) -> list[tuple[int, bytes]]:
        """Wait for bytes and return the frames that are whole by then. Raises ``Down``."""
        data, self._first = self._first, b""
        if not data:
            try:
                data = bytes(await self._stream.receive_some(RECEIVE_BYTES))
            except trio.BrokenResourceError:
                raise Down(UNREACHABLE, "the connection broke") from None
            if not data:
                raise Closed(1006, "")
            self.heard_at = trio.current_time()
        try:
            return self._reader.feed(data)
        except framing.Malformed as error:
            raise Down(UNREACHABLE, f"broke the WebSocket protocol: {error}") from None

    def put_back(self, messages: list[bytes]) -> None:
        """Let ``receive`` return ``messages`` first."""
        if messages:
            self._early = [(framing.TEXT, message) for message in messages]

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Say that this is the end and close, as far as that is possible within a moment (AEP-0003 §3.5.4)."""
        with trio.move_on_after(CLOSE_SECONDS) as scope:
            # Whoever closes is often being cancelled.
            scope.shield = True
            try:
                farewell = framing.written((frames.closing(reason, ()),)) if self._closed is None else b""
                payload = code.to_bytes(2, "big") + reason.encode()
                await self._write(farewell + framing.written((payload,), framing.CLOSE))
                while self._closed is None:
                    await self.receive()
            except (Down, trio.ClosedResourceError, trio.BusyResourceError):
                pass
        await trio.aclose_forcefully(self._stream)


def _closed(payload: bytes) -> Closed:
    if len(payload) < 2:
        return Closed(1005, "")
    return Closed(int.from_bytes(payload[:2], "big"), payload[2:].decode("utf-8", "replace"))


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
            early = await _shake_hands(stream, _protocol(dial.target, token))
            socket = Socket(
                stream, early, max_message_bytes=max_message_bytes, send_timeout_seconds=send_timeout_seconds
            )
            return socket, await _greet(socket, hello)
    except BaseException as error:
        if stream is not None:
            await trio.aclose_forcefully(stream)
        if isinstance(error, trio.TooSlowError):
            raise Down(UNREACHABLE, f"no hello within {seconds:g} s") from None
        raise


def _protocol(target: Target, token: str | None) -> ClientProtocol:
    uri = WebSocketURI(target.tls, target.host, target.port, f"{target.base}/socket", "")
    protocol = ClientProtocol(uri, logger=_QUIET)
    request = protocol.connect()
    del request.headers["Host"]
    request.headers["Host"] = target.authority
    request.headers["User-Agent"] = f"aep-relay/{__version__}"
    if token is not None:
        request.headers["Authorization"] = f"Bearer {token}"
    protocol.send_request(request)
    return protocol


async def _shake_hands(stream: trio.abc.Stream, protocol: ClientProtocol) -> bytes:
    """Open the WebSocket; return what came behind the answer. Raises ``Down``."""
    try:
        await stream.send_all(b"".join(protocol.data_to_send()))
        received = b""
        while b"\r\n\r\n" not in received:
            data = await stream.receive_some(RECEIVE_BYTES)
            received += data
            if not data or len(received) > MAX_HEAD_BYTES:
                raise Down(UNREACHABLE, "no HTTP answer to the WebSocket handshake")
        head, _, rest = received.partition(b"\r\n\r\n")
        protocol.receive_data(head + b"\r\n\r\n")
        if protocol.state is OPEN:
            return rest
        data = rest
        while protocol.handshake_exc is None:
            # It is another answer, and may say more in its body.
            if data:
                protocol.receive_data(data)
            if protocol.handshake_exc is None:
                data = bytes(await stream.receive_some(RECEIVE_BYTES))
                if not data:
                    protocol.receive_eof()
        raise _rejected(protocol.handshake_exc)
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
        turn = Turn()
        for index, text in enumerate(messages):
            if turn.over:
                await turn.pass_on()
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
        message = frames.parse(text, len(text))
    except ProtocolError:
        raise Down(REFUSED, "sent something else than a hello") from None
    return message if isinstance(message, dict) else {}
