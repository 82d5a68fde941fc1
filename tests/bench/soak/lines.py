"""The peers' end of a connection in the soak: opened, read in pieces, closed or torn."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar
from urllib.parse import urlencode

import trio

from .. import wire
from ..process import Server

Subject = TypeVar("Subject", contravariant=True)


class Act(Protocol[Subject]):
    """What is done over one connection, for a session or for books."""

    __name__: str

    def __call__(self, subject: Subject, /) -> Awaitable[None]: ...


READ_BYTES = 256 * 1024
_RESET = struct.pack("ii", 1, 0)


class Refused(Exception):
    """The relay answered with another status than was wanted."""

    def __init__(self, status: int) -> None:
        super().__init__(f"HTTP status {status}")
        self.is_passing = status in (0, 401)
        """Ended before an answer, or asked with a token that has just been changed."""


class Line:
    """One connection."""

    def __init__(self, sock: trio.socket.SocketType) -> None:
        self._sock = sock
        self.stream = trio.SocketStream(sock)

    async def send(self, data: bytes) -> None:
        """Send all of it; raises ``trio.BrokenResourceError`` when the connection is gone."""
        await self.stream.send_all(data)

    async def receive(self) -> bytes:
        """Return what has come, nothing at the end however it came about."""
        try:
            return bytes(await self.stream.receive_some(READ_BYTES))
        except trio.BrokenResourceError:
            return b""

    async def head(self, status: int) -> bytes:
        """Read a response's head; return what came behind it. Raises ``Refused`` for another ``status``."""
        data = b""
        while b"\r\n\r\n" not in data:
            more = await self.receive()
            if not more:
                raise Refused(0)
            data += more
        head, _, rest = data.partition(b"\r\n\r\n")
        found = int(head.split(b" ", 2)[1])
        if found != status:
            raise Refused(found)
        return rest

    async def until(self, mark: bytes, data: bytes = b"") -> bytes:
        """Read until ``mark`` has come; return all that came. Raises ``trio.BrokenResourceError`` at the end."""
        while mark not in data:
            more = await self.receive()
            if not more:
                raise trio.BrokenResourceError("ended")
            data += more
        return data

    def reset(self) -> None:
        """Have the connection torn instead of closed."""
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


@asynccontextmanager
async def line(server: Server, receive_buffer_bytes: int = 0) -> AsyncIterator[Line]:
    """A connection for the block."""
    with trio.socket.socket() as sock:
        if receive_buffer_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await sock.connect(("127.0.0.1", server.port))
        yield Line(sock)


def get(server: Server, token: str, path: str, parameters: dict[str, str], headers: dict[str, str]) -> bytes:
    """Return a GET request."""
    lines = {"Host": f"127.0.0.1:{server.port}", "Authorization": f"Bearer {token}", **headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    query = f"?{urlencode(parameters)}" if parameters else ""
    return f"GET {path}{query} HTTP/1.1\r\n{head}\r\n".encode()


def upgrade_request(server: Server, token: str) -> bytes:
    """Return the request that makes a connection a WebSocket."""
    upgrade = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    return get(server, token, "/socket", {}, upgrade)


def hello(role: str, accepts: list[str]) -> bytes:
    """Return a ``hello`` frame."""
    frame = {
        "type": "hello",
        "versions": ["0.1"],
        "role": role,
        "identity": {"agent": "soak", "instance": "soak"},
        "capabilities": {"control": {"accepts": accepts}},
    }
    return wire.json_frame(frame)


async def upgraded(connection: Line, server: Server, token: str, role: str, accepts: list[str]) -> bytes:
    """Make ``connection`` a WebSocket past hello; return what came behind the head of the answer."""
    await connection.send(upgrade_request(server, token) + hello(role, accepts))
    return await connection.until(b'"hello"', await connection.head(101))


def subscribe(id_: str, positions: dict[str, int], more: dict[str, str]) -> bytes:
    """Return a ``subscribe`` frame that resumes from ``positions``, and has their sessions only."""
    filter_, from_ = _resumed(positions)
    return wire.json_frame({"type": "subscribe", "id": id_, "filter": filter_, "from": from_, **more})


def stream_parameters(positions: dict[str, int]) -> dict[str, str]:
    """Return the query of an SSE stream that resumes from ``positions``, and has their sessions only."""
    filter_, from_ = _resumed(positions)
    return {"filter": json.dumps(filter_), "from": json.dumps(from_)}


def _resumed(positions: dict[str, int]) -> tuple[object, object]:
    from_ = [{"session": name, "epoch": 0, "seq": seq} for name, seq in positions.items()]
    return {"session": list(positions)}, from_
