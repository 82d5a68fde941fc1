"""An upstream that does as a test says: HTTP answers by script, a WebSocket that says nothing by itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import trio

from aep_relay.bindings.handshake import handshake
from aep_relay.hub.limits import Limits
from aep_relay.transport.deadlines import Deadlines
from aep_relay.transport.http import HttpReader
from aep_relay.transport.request import Request
from aep_relay.transport.response import response
from aep_relay.transport.wire import BrokenWire, Interrupted, Wire
from tests.upstream.net import Line

Answer = tuple[int, bytes] | tuple[int, bytes, list[tuple[str, str]]]
"""Status, body and headers."""

ACCEPTED: Answer = (202, b'{"accepted":1}')
MISSING: Answer = (404, b"")
RESET = "reset"
SILENCE = "silence"


def invalid(detail: str = "no good", **more: object) -> bytes:
    return json.dumps({"error": "invalid-event", "detail": detail, **more}).encode()


@dataclass
class Posted:
    """One request to ``/events``."""

    at: float
    lines: list[bytes]
    content_type: bytes | None
    headers: dict[bytes, bytes]

    @property
    def ids(self) -> list[str]:
        return [json.loads(line)["id"] for line in self.lines]


@dataclass
class Scripted:
    """Serves every connection; ``on_post`` decides on each POST, ``on_socket`` on each WebSocket handshake."""

    on_post: Callable[[Posted], Answer | str] = lambda posted: ACCEPTED
    on_socket: Callable[[], Answer | None] = lambda: MISSING
    """None opens the WebSocket."""
    posts: list[Posted] = field(default_factory=list)
    accepted: list[str] = field(default_factory=list)
    """Ids of what was answered with 202."""
    connections: int = 0
    sockets: list[Spoken] = field(default_factory=list)
    keep_alive: bool = True

    async def serve(self, wire: Wire) -> None:
        self.connections += 1
        reader = HttpReader(wire, Limits(), Deadlines())
        try:
            while (request := await reader.next_request()) is not None:
                if request.path.endswith("/socket"):
                    await self._socket(wire, reader, request)
                    return
                if not await self._post(wire, reader, request):
                    return
        except BrokenWire:
            pass
        finally:
            wire.close()

    async def _post(self, wire: Wire, reader: HttpReader, request: Request) -> bool:
        assert request.method == "POST"
        assert request.path == "/events"
        body = await reader.read_body(1 << 30)
        kind = request.get(b"content-type")
        lines = [body] if kind == b"application/json" else [line for line in body.split(b"\n") if line]
        posted = Posted(trio.current_time(), lines, kind, dict(request.headers))
        self.posts.append(posted)
        answer = self.on_post(posted)
        if answer == RESET:
            assert isinstance(wire, Line)
            wire.cut()
            return False
        if answer == SILENCE:
            await trio.sleep_forever()
        assert not isinstance(answer, str)
        status, text, *headers = answer
        if status == 202:
            self.accepted += posted.ids
        await reader.answer(response(status, text, headers[0] if headers else (), keep_alive=self.keep_alive))
        return self.keep_alive

    async def _socket(self, wire: Wire, reader: HttpReader, request: Request) -> None:
        answer = self.on_socket()
        if answer is not None:
            status, text, *headers = answer
            await wire.send_all(response(status, text, headers[0] if headers else (), keep_alive=False))
            return
        protocol, accepted = handshake(request, 1 << 24)
        await wire.send_all(accepted)
        spoken = Spoken(wire, request.get(b"authorization"))
        self.sockets.append(spoken)
        data = reader.take_rest()
        while True:
            if data:
                protocol.receive_data(data)
                for frame in protocol.events_received():
                    spoken.hear(bytes(frame.data), frame.opcode)  # type: ignore[union-attr]
            try:
                data = await wire.receive_some()
            except Interrupted:
                continue
            if not data:
                spoken.is_over = True
                return


@dataclass
class Spoken:
    """One WebSocket, from the far end."""

    wire: Wire
    authorization: bytes | None
    heard: list[Any] = field(default_factory=list)
    """Every message that has come, as values."""
    raw: list[bytes] = field(default_factory=list)
    closed: bytes | None = None
    """The payload of the close frame that has come."""
    answers_pings: bool = True
    is_over: bool = False
    on: Callable[[Spoken, Any], None] = lambda spoken, message: None

    def hear(self, payload: bytes, opcode: int) -> None:
        if opcode == 8:
            self.closed = payload
            self.say_bytes(bytes((0x88, len(payload))) + payload)
            return
        if opcode != 1:
            return
        message = json.loads(payload)
        self.raw.append(payload)
        if message["type"] == "ping":
            if self.answers_pings:
                self.say({"type": "pong", "t": message["t"]})
            return
        self.heard.append(message)
        self.on(self, message)

    def say(self, *messages: Any) -> None:
        for message in messages:
            text = message if isinstance(message, bytes) else json.dumps(message).encode()
            size = len(text)
            head = bytes((0x81, size)) if size < 126 else bytes((0x81, 126)) + size.to_bytes(2, "big")
            self.say_bytes(head + text)

    def say_bytes(self, data: bytes) -> None:
        assert self.wire.send(data) == len(data)

    def close(self, code: int, reason: str = "") -> None:
        payload = code.to_bytes(2, "big") + reason.encode()
        self.say_bytes(bytes((0x88, len(payload))) + payload)

    def events(self) -> list[str]:
        """The ids of the Events that have come."""
        return [message["id"] for message in self.heard if "." in message["type"]]


def hello(**capabilities: object) -> dict[str, object]:
    """A relay's answer."""
    return {
        "type": "hello",
        "versions": ["0.1"],
        "role": "both",
        "identity": {"agent": "other-relay", "instance": "1"},
        "capabilities": {"replay": {"buffer": 1000, "all": True}, **capabilities},
    }
