"""The attacker's side on raw blocking sockets: any bytes whatever, and just enough parsing to judge the answer."""

from __future__ import annotations

import base64
import contextlib
import json
import select
import socket
import struct
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

PATIENCE_SECONDS = 60.0
TEXT, BINARY, CLOSE, PING, PONG, CONTINUATION = 1, 2, 8, 9, 10, 0
MASK = b"\x5a\xc3\x96\x17"
KEY = base64.b64encode(b"0123456789abcdef").decode()


class Ended(Exception):
    """The relay ended the connection; the text says how."""


class Raw:
    """One TCP connection to the relay."""

    def __init__(self, port: int, *, receive_buffer_bytes: int | None = None) -> None:
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if receive_buffer_bytes is not None:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.settimeout(PATIENCE_SECONDS)
        self.sock.connect(("127.0.0.1", port))
        self._buffer = b""

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.sock.close()

    def reset(self) -> None:
        """End the connection with a reset instead of a FIN."""
        with contextlib.suppress(OSError):
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def send(self, data: bytes) -> None:
        """Send all of ``data``; what the relay does not take any more is dropped."""
        with contextlib.suppress(ConnectionError):
            self.sock.sendall(data)

    def send_slowly(self, data: bytes, size: int = 1) -> None:
        """Send ``data`` in segments of ``size`` bytes."""
        for start in range(0, len(data), size):
            self.send(data[start : start + size])

    def pour(self, data: bytes) -> int:
        """Send all of ``data`` and meanwhile drop what comes; return how much came. The end stops it early."""
        self.sock.setblocking(False)
        view, dropped = memoryview(data), len(self._buffer)
        self._buffer = b""
        try:
            while view:
                readable, writable, _ = select.select([self.sock], [self.sock], [], PATIENCE_SECONDS)
                if not readable and not writable:
                    raise TimeoutError
                if readable:
                    dropped += len(self.receive())
                if writable:
                    view = view[self.sock.send(view[: 1 << 18]) :]
        except (Ended, ConnectionError):
            pass
        finally:
            self.sock.settimeout(PATIENCE_SECONDS)
        return dropped

    def finish(self) -> None:
        """Say that nothing more will be sent."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)

    def receive(self) -> bytes:
        """Return what comes next. Raises ``Ended``."""
        try:
            data = self.sock.recv(1 << 18)
        except ConnectionError as error:
            raise Ended("reset") from error
        if not data:
            raise Ended("end")
        return data

    def exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            self._buffer += self.receive()
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        return taken

    def until(self, mark: bytes) -> bytes:
        """Return all up to ``mark``, which is included."""
        while mark not in self._buffer:
            self._buffer += self.receive()
        at = self._buffer.index(mark) + len(mark)
        taken, self._buffer = self._buffer[:at], self._buffer[at:]
        return taken

    def rest(self) -> bytes:
        """Return all that comes until the relay ends the connection, which it has to do by a FIN."""
        with contextlib.suppress(Ended):
            while True:
                self._buffer += self.receive()
        taken, self._buffer = self._buffer, b""
        return taken

    def is_over(self) -> bool:
        """Wait for the relay to end the connection, however it does."""
        with contextlib.suppress(Ended):
            while True:
                self.receive()
        return True

    def answer(self, *, to_head: bool = False) -> Answer:
        """Return the next HTTP response."""
        head = self.until(b"\r\n\r\n").decode("latin-1")
        line, *fields = head.strip().split("\r\n")
        headers = {name.lower(): value for name, value in (field.split(": ", 1) for field in fields)}
        status = int(line.split(" ")[1])
        size = 0 if to_head or status in (101, 204) or status < 200 else int(headers.get("content-length", 0))
        return Answer(status, headers, self.exactly(size))


@dataclass(frozen=True)
class Answer:
    """One HTTP response."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> tuple[int, str]:
        """Status and code of a refusal; checks what every refusal has to be."""
        assert self.headers["content-type"] == "application/json"
        assert isinstance(self.json["detail"], str)
        assert self.json["detail"].isprintable()
        return self.status, self.json["error"]


def request(
    method: str, target: str, body: bytes | None = None, /, *, version: str = "1.1", **headers: str
) -> bytes:
    """Return a request; in names of ``headers``, underscores are hyphens."""
    lines = {"Host": "127.0.0.1", **{name.replace("_", "-"): value for name, value in headers.items()}}
    if body is not None:
        lines.setdefault("Content-Length", str(len(body)))
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"{method} {target} HTTP/{version}\r\n{head}\r\n".encode("latin-1") + (body or b"")


def post(body: bytes, **headers: str) -> bytes:
    """Return a POST of one Event, or of a batch if ``body`` has lines."""
    kind = "application/x-ndjson" if b"\n" in body else "application/json"
    return request("POST", "/events", body, **{"AEP_Version": "0.1", "Content_Type": kind, **headers})


def ask(port: int, data: bytes) -> Answer:
    """Send ``data`` on a connection of its own and return the first response."""
    with Raw(port) as raw:
        raw.send(data)
        return raw.answer()


def frame(
    payload: bytes = b"",
    opcode: int = TEXT,
    *,
    fin: bool = True,
    rsv: int = 0,
    mask: bytes | None = MASK,
    length_bits: int | None = None,
    declared: int | None = None,
) -> bytes:
    """Return a WebSocket frame as it should not always be (RFC 6455 §5.2).

    ``rsv`` holds the three reserved bits, ``mask`` is None for an unmasked frame. ``length_bits`` (7, 16 or 64)
    forces an encoding of the length, ``declared`` another length than there is.
    """
    size = len(payload) if declared is None else declared
    if length_bits is None:
        length_bits = 7 if size < 126 else 16 if size < 65_536 else 64
    first = (0x80 if fin else 0) | rsv << 4 | opcode
    masked = 0x80 if mask is not None else 0
    if length_bits == 7:
        head = struct.pack("!BB", first, masked | size)
    elif length_bits == 16:
        head = struct.pack("!BBH", first, masked | 126, size)
    else:
        head = struct.pack("!BBQ", first, masked | 127, size)
    return head + payload if mask is None else head + mask + masked_by(mask, payload)


def masked_by(mask: bytes, payload: bytes) -> bytes:
    length = len(payload)
    stream = (mask * (length // 4 + 1))[:length]
    return (int.from_bytes(payload, "big") ^ int.from_bytes(stream, "big")).to_bytes(length, "big")


def upgrade(target: str = "/socket", /, **headers: str | None) -> bytes:
    """Return the opening handshake; a header given as None is left out."""
    lines: dict[str, str | None] = {
        "Host": "127.0.0.1",
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": KEY,
        "Sec-WebSocket-Version": "13",
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items() if value is not None)
    return f"GET {target} HTTP/1.1\r\n{head}\r\n".encode("latin-1")


HELLO: dict[str, object] = {
    "type": "hello",
    "versions": ["0.1"],
    "role": "both",
    "identity": {"agent": "attacker", "instance": "attacker/1"},
    "capabilities": {},
}


def said(message: object) -> bytes:
    """Return ``message`` as one masked text frame."""
    return frame(json.dumps(message).encode())


class Socket(Raw):
    """A WebSocket connection to the relay, upgraded."""

    def __init__(
        self, port: int, *, target: str = "/socket", receive_buffer_bytes: int | None = None, **headers: str
    ) -> None:
        super().__init__(port, receive_buffer_bytes=receive_buffer_bytes)
        self.send(upgrade(target, **headers))
        answer = self.answer()
        assert answer.status == 101, answer

    def __enter__(self) -> Socket:
        return self

    def say(self, *messages: object) -> None:
        """Send each message as one text frame, all in one piece."""
        self.send(b"".join(map(said, messages)))

    def greet(self, **members: object) -> Socket:
        """Exchange hellos."""
        self.say({**HELLO, **members})
        assert self.heard()["type"] == "hello"
        return self

    def frame(self) -> tuple[int, bytes]:
        """Return opcode and payload of the next frame: unmasked, whole, its length minimal. Raises ``Ended``."""
        first, size = self.exactly(2)
        assert first & 0x70 == 0, "reserved bits"
        assert first & 0x80, "a fragment"
        assert size < 128, "a masked frame"
        if size == 126:
            (size,) = struct.unpack("!H", self.exactly(2))
            assert size > 125
        elif size == 127:
            (size,) = struct.unpack("!Q", self.exactly(8))
            assert size > 0xFFFF
        return first & 0x0F, self.exactly(size)

    def heard(self) -> Any:
        """Return the next text frame as a value; others are passed over. Raises ``Ended``."""
        while True:
            opcode, payload = self.frame()
            if opcode == TEXT:
                return json.loads(payload)
            if opcode == CLOSE:
                raise Ended(f"close {payload!r}")

    def ask(self, message: object) -> Any:
        self.say(message)
        return self.heard()

    def until_closed(self) -> Farewell:
        """Return all that comes up to the close frame and the end, which have to come in this order, and alone."""
        texts: list[Any] = []
        pongs: list[bytes] = []
        code: int | None = None
        while True:
            try:
                opcode, payload = self.frame()
            except Ended as error:
                return Farewell(code, texts, pongs, str(error))
            assert code is None, "something follows the close frame"
            if opcode == TEXT:
                texts.append(json.loads(payload))
            elif opcode == PONG:
                pongs.append(payload)
            else:
                assert opcode == CLOSE
                code = struct.unpack("!H", payload[:2])[0] if payload else 1005
                payload[2:].decode()

    def subscribe(self, id_: str = "s", **members: object) -> Any:
        return self.ask({"type": "subscribe", "id": id_, **members})

    def event(self, raw: bytes) -> None:
        self.send(frame(raw))

    def is_alive(self) -> bool:
        """Say whether the connection still answers; whatever else comes is passed over."""
        mark = time.monotonic_ns()
        try:
            self.say({"type": "ping", "t": mark})
            while True:
                message = self.heard()
                if message.get("type") == "pong" and message.get("t") == mark:
                    return True
        except Ended:
            return False


@dataclass(frozen=True)
class Farewell:
    """How a WebSocket connection ended."""

    code: int | None
    """Of the relay's close frame; None if there was none, 1005 if it had no code."""
    texts: list[Any]
    pongs: list[bytes]
    end: str
    """``end`` or ``reset``."""

    @property
    def reason(self) -> str | None:
        """What the ``closing`` frame said, if there was one."""
        return next((text["reason"] for text in self.texts if text["type"] == "closing"), None)

    @property
    def errors(self) -> list[str]:
        return [text["code"] for text in self.texts if text["type"] == "error"]


class Stream(Raw):
    """An SSE connection to the relay, its head read."""

    def __init__(
        self, port: int, query: str = "", *, receive_buffer_bytes: int | None = None, **headers: str
    ) -> None:
        super().__init__(port, receive_buffer_bytes=receive_buffer_bytes)
        self.send(request("GET", "/stream" + query, **headers))
        self.head = self.answer()

    def __enter__(self) -> Stream:
        return self

    def block(self) -> bytes:
        """Return the next message or comment, its chunk undone. Raises ``Ended``."""
        size = int(self.until(b"\r\n"), 16)
        data = self.exactly(size)
        assert self.exactly(2) == b"\r\n"
        if size == 0:
            raise Ended("last chunk")
        return data

    def blocks(self) -> list[bytes]:
        """Return all messages and comments to the end of the response."""
        found = []
        with contextlib.suppress(Ended):
            while True:
                found += [block for block in self.block().split(b"\n\n") if block]
        return found


def event(seq: int | None = 0, session: str | None = "attack", **members: object) -> bytes:
    """Return a valid Event; a member given as None is left out."""
    found: dict[str, object] = {
        "aep": "0.1",
        "id": f"e{seq}",
        "type": "tool.completed",
        "time": "2026-07-03T10:14:00Z",
        "source": "aep://host/attacker",
        "agent": "attacker",
        "session": session,
        "seq": seq,
        **members,
    }
    kept = {name: value for name, value in found.items() if value is not None}
    return json.dumps(kept, ensure_ascii=False).encode()


def close_all(connections: Iterable[Raw]) -> None:
    for connection in connections:
        connection.close()
