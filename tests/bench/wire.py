"""The client side of the relay's bindings on raw blocking sockets: just enough to open a load's connections.

Connections are opened in waves, each step for the whole wave before the next, so that ten thousand of them
take seconds.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from urllib.parse import urlencode

from .process import BenchError, Server

WAVE = 200
TIMEOUT_SECONDS = 60.0
# Room for many batches, so that what is measured is a server that is never kept waiting by its consumers.
RECEIVE_BUFFER_BYTES = 1024 * 1024
_TEXT, _PONG = 0x1, 0xA
_MASK = b"\x5a\xc3\x96\x17"

Subscribe = dict[str, object]


def connect(port: int, receive_buffer_bytes: int = RECEIVE_BUFFER_BYTES) -> socket.socket:
    """A connected TCP socket; the receive buffer is set before, since the window scale depends on it."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.settimeout(TIMEOUT_SECONDS)
    sock.connect(("127.0.0.1", port))
    return sock


def read_until(sock: socket.socket, found: Callable[[bytes], bool]) -> bytes:
    """Read until ``found`` says that what has come is all; raises ``BenchError`` at the end of the stream."""
    received = b""
    while not found(received):
        chunk = sock.recv(65536)
        if not chunk:
            raise BenchError(f"the connection ended after {received[-500:]!r}")
        received += chunk
    return received


def frame(payload: bytes, opcode: int = _TEXT) -> bytes:
    """One masked client WebSocket frame (RFC 6455 §5.2)."""
    length = len(payload)
    if length < 126:
        head = struct.pack("!BB", 0x80 | opcode, 0x80 | length)
    elif length < 65536:
        head = struct.pack("!BBH", 0x80 | opcode, 0x80 | 126, length)
    else:
        head = struct.pack("!BBQ", 0x80 | opcode, 0x80 | 127, length)
    mask = (_MASK * (length // 4 + 1))[:length]
    masked = int.from_bytes(payload, "big") ^ int.from_bytes(mask, "big")
    return head + _MASK + masked.to_bytes(length, "big")


def pong(payload: bytes) -> bytes:
    """The answer to a ping of the WebSocket layer."""
    return frame(payload, _PONG)


def json_frame(message: object) -> bytes:
    """One masked client frame that holds ``message``."""
    return frame(json.dumps(message).encode())


def post(server: Server, body: bytes, content_type: str = "application/x-ndjson") -> bytes:
    """A whole keep-alive request to ``/events``."""
    head = (
        f"POST /events HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nAuthorization: Bearer {server.token}\r\n"
        f"AEP-Version: 0.1\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def stream_request(server: Server, parameters: dict[str, str]) -> bytes:
    """A request for an SSE stream."""
    query = "?" + urlencode(parameters) if parameters else ""
    return (
        f"GET /stream{query} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
        f"Authorization: Bearer {server.token}\r\nAccept: text/event-stream\r\n\r\n"
    ).encode()


def _upgrade_request(server: Server) -> bytes:
    key = base64.b64encode(os.urandom(16)).decode()
    return (
        f"GET /socket HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nAuthorization: Bearer {server.token}\r\n"
        f"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: {key}\r\n"
        "Sec-WebSocket-Version: 13\r\n\r\n"
    ).encode()


def _waves(count: int) -> Iterator[range]:
    for start in range(0, count, WAVE):
        yield range(start, min(count, start + WAVE))


def _read_head(sock: socket.socket, status: bytes) -> None:
    """Read a response head byte-exactly, so that nothing of the stream after it is lost."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        waiting = sock.recv(4096, socket.MSG_PEEK)
        end = (head + waiting).find(b"\r\n\r\n")
        taken = sock.recv(len(waiting) if end < 0 else end + 4 - len(head))
        if not taken:
            raise BenchError(f"the connection ended after {head!r}")
        head += taken
    if not head.startswith(b"HTTP/1.1 " + status):
        raise BenchError(f"expected {status.decode()}, got {head!r}")


def open_streams(
    server: Server, count: int, parameters: Callable[[int], dict[str, str]]
) -> list[socket.socket]:
    """``count`` SSE consumers, subscribed; the ``number`` of each gives its query ``parameters``."""
    socks: list[socket.socket] = []
    for wave in _waves(count):
        opened = [connect(server.port) for _ in wave]
        for number, sock in zip(wave, opened, strict=True):
            sock.sendall(stream_request(server, parameters(number)))
        for sock in opened:
            _read_head(sock, b"200")
        socks += opened
    return socks


def open_sockets(
    server: Server,
    count: int,
    subscriptions: Callable[[int], Sequence[Subscribe]],
    role: str = "consumer",
    receive_buffer_bytes: int = RECEIVE_BUFFER_BYTES,
) -> list[socket.socket]:
    """``count`` WebSocket connections past hello; the ``number`` of each gives its ``subscriptions``.

    A subscription is the members of its ``subscribe`` frame without ``type`` and ``id``.
    """
    hello = json_frame(
        {
            "type": "hello",
            "versions": ["0.1"],
            "role": role,
            "identity": {"agent": "bench", "instance": "bench"},
            "capabilities": {},
        }
    )
    socks: list[socket.socket] = []
    for wave in _waves(count):
        opened = [connect(server.port, receive_buffer_bytes) for _ in wave]
        for sock in opened:
            sock.sendall(_upgrade_request(server))
        for sock in opened:
            _read_head(sock, b"101")
            sock.sendall(hello)
        for sock in opened:
            read_until(sock, lambda received: b'"hello"' in received)
        for number, sock in zip(wave, opened, strict=True):
            wanted = list(subscriptions(number))
            messages = ({"type": "subscribe", "id": f"s{i}", **members} for i, members in enumerate(wanted))
            sock.sendall(b"".join(map(json_frame, messages)))
        for number, sock in zip(wave, opened, strict=True):
            _await_subscribed(sock, len(subscriptions(number)))
        socks += opened
    return socks


def _await_subscribed(sock: socket.socket, count: int) -> None:
    def complete(received: bytes) -> bool:
        if b'"error"' in received:
            raise BenchError(f"subscription refused: {received[-500:]!r}")
        return received.count(b'"subscribed"') == count

    read_until(sock, complete)
