"""One relay in memory: its router, its timers, and clients that speak HTTP, SSE and WebSocket to it byte for byte.

Nothing here waits for real: ``settle`` runs the relay until it has nothing left to do, ``trio.sleep`` under a
``MockClock`` lets time pass.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import trio
import trio.testing
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Response as HandshakeResponse
from websockets.uri import parse_uri

from aep_relay.bindings import router
from aep_relay.bindings.auth import Authority
from aep_relay.bindings.service import Service
from aep_relay.config import Auth, Config, Cors
from aep_relay.hub.limits import Limits
from aep_relay.hub.relay import Relay
from aep_relay.transport.deadlines import Deadlines
from tests.fakes.wire import MemoryWire

if TYPE_CHECKING:
    from collections.abc import Mapping

TOKEN = "t0ken-of-the-tests"
HEADERS = {"Host": "localhost"}


async def settle() -> None:
    """Let the relay do all it can without more input."""
    await trio.testing.wait_all_tasks_blocked()


@dataclass(frozen=True)
class Answer:
    """One HTTP response as it was received."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def refusal(self) -> tuple[int, str]:
        """Status and error code; checks what every refusal has to have."""
        assert self.headers["content-type"] == "application/json"
        assert isinstance(self.json["detail"], str)
        assert self.json["detail"]
        return self.status, self.json["error"]


def take_answer(data: bytes, *, to_head: bool = False) -> tuple[Answer, bytes]:
    """Take the first response from ``data``; return it and the rest."""
    head, found, rest = data.partition(b"\r\n\r\n")
    assert found, f"no whole response: {data!r}"
    status, headers = parse_head(head)
    size = 0 if status == 204 or to_head or status < 200 else int(headers["content-length"])
    assert len(rest) >= size
    return Answer(status, headers, rest[:size]), rest[size:]


def parse_head(head: bytes) -> tuple[int, dict[str, str]]:
    """Return the status and the headers, names in lower case; none may occur twice."""
    line, *fields = head.decode("latin-1").split("\r\n")
    version, status, _ = line.split(" ", 2)
    assert version == "HTTP/1.1"
    pairs = [field.split(": ", 1) for field in fields]
    headers = {name.lower(): value for name, value in pairs}
    assert len(headers) == len(pairs)
    return int(status), headers


def request(
    method: str,
    target: str,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    *,
    version: str = "1.1",
) -> bytes:
    """Return a request as it goes over the wire."""
    lines = {**HEADERS, **(headers or {})}
    if body is not None:
        lines.setdefault("Content-Length", str(len(body)))
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"{method} {target} HTTP/{version}\r\n{head}\r\n".encode("latin-1") + (body or b"")


JSON = {"AEP-Version": "0.1", "Content-Type": "application/json"}
NDJSON = {"AEP-Version": "0.1", "Content-Type": "application/x-ndjson"}
BEARER = {"Authorization": f"Bearer {TOKEN}"}


class Served:
    """A relay without listeners: ``connect`` stands for an accepted connection."""

    def __init__(self, nursery: trio.Nursery, config: Config) -> None:
        self.nursery = nursery
        authority = Authority(config.auth, config.tokens)
        self.service = Service(config, Relay(config.limits), authority, Deadlines())
        nursery.start_soon(self.service.deadlines.run)
        nursery.start_soon(self.service.flush_left_over)

    @property
    def relay(self) -> Relay:
        return self.service.relay

    def connect(self, *, capacity_bytes: int | None = None) -> MemoryWire:
        assert self.service.admit()
        wire = MemoryWire(capacity_bytes=capacity_bytes)
        self.nursery.start_soon(router.serve, self.service, wire)
        return wire

    async def ask(
        self,
        method: str,
        target: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        version: str = "1.1",
    ) -> Answer:
        """Send one request on a connection of its own and return the one response to it."""
        wire = self.connect()
        wire.feed(request(method, target, body, headers, version=version))
        await settle()
        answer, rest = take_answer(wire.take_sent(), to_head=method == "HEAD")
        assert rest == b""
        wire.feed_end()
        await settle()
        return answer

    async def chunked(self, target: str, chunks: bytes, headers: Mapping[str, str]) -> Answer:
        """POST a body as it stands in chunked framing, its end included."""
        wire = self.connect()
        wire.feed(request("POST", target, None, {**headers, "Transfer-Encoding": "chunked"}) + chunks)
        wire.feed_end()
        await settle()
        return take_answer(wire.take_sent())[0]

    async def post(self, *events: bytes, headers: Mapping[str, str] | None = None) -> Answer:
        """POST one Event, or several as a batch."""
        kind = JSON if len(events) == 1 else NDJSON
        return await self.ask("POST", "/events", b"\n".join(events), {**kind, **(headers or {})})

    async def stream(
        self,
        query: str = "",
        headers: Mapping[str, str] | None = None,
        *,
        version: str = "1.1",
        capacity_bytes: int | None = None,
    ) -> Stream:
        """Open a stream."""
        wire = self.connect(capacity_bytes=capacity_bytes)
        wire.feed(request("GET", f"/stream{query}", None, headers, version=version))
        await settle()
        return Stream(wire)

    async def socket(
        self, query: str = "", headers: Mapping[str, str] | None = None, *, capacity_bytes: int | None = None
    ) -> Socket:
        """Open a WebSocket; nothing is said on it yet."""
        socket = Socket(self.connect(capacity_bytes=capacity_bytes))
        socket.shake_hands(query, headers or {})
        await settle()
        return socket

    async def greeted(
        self,
        role: str = "both",
        agent: str = "tester",
        capabilities: Mapping[str, object] | None = None,
        *,
        query: str = "",
        headers: Mapping[str, str] | None = None,
        capacity_bytes: int | None = None,
    ) -> Socket:
        """Open a WebSocket and exchange hellos."""
        socket = await self.socket(query, headers, capacity_bytes=capacity_bytes)
        answer = await socket.ask(hello(role, agent, capabilities))
        assert answer[0]["type"] == "hello"
        assert len(answer) == 1
        return socket


def hello(
    role: str = "both", agent: str = "tester", capabilities: Mapping[str, object] | None = None
) -> dict[str, object]:
    return {
        "type": "hello",
        "versions": ["0.1"],
        "role": role,
        "identity": {"agent": agent, "instance": f"{agent}/1"},
        "capabilities": dict(capabilities or {}),
    }


@asynccontextmanager
async def serving(
    limits: Limits | None = None, *, token: str | None = None, origins: tuple[str, ...] = (), **auth: Any
) -> AsyncIterator[Served]:
    """Serve with the given settings."""
    config = Config(
        limits=limits or Limits(), auth=Auth(token=token, **auth), cors=Cors(allowed_origins=origins)
    )
    async with trio.open_nursery() as nursery:
        yield Served(nursery, config)
        nursery.cancel_scope.cancel()


@dataclass
class Message:
    """One SSE message."""

    event: str
    id: str | None
    data: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.data)


@dataclass
class Stream:
    """The client's side of a stream; checks the framing of all it reads."""

    wire: MemoryWire
    head: Answer | None = None
    chunked: bool = True
    ended: bool = False
    _rest: bytes = b""

    def read(self) -> list[Message | str]:
        """Return what has come since the last time: messages, and comments as strings."""
        return list(self._parse(self.text()))

    def messages(self) -> list[Message]:
        """Return the messages that have come; comments are passed over."""
        return [item for item in self.read() if isinstance(item, Message)]

    def events(self) -> list[bytes]:
        """Return the Events that have come, as their bytes."""
        return [message.data for message in self.messages()]

    def comments(self) -> list[str]:
        return [item for item in self.read() if isinstance(item, str)]

    def text(self) -> bytes:
        """Return the body's bytes that have come since the last time."""
        data = self._rest + self.wire.take_sent()
        if self.head is None:
            if b"\r\n\r\n" not in data:
                self._rest = data
                return b""
            raw, _, data = data.partition(b"\r\n\r\n")
            status, headers = parse_head(raw)
            if status != 200:
                self.head = take_answer(raw + b"\r\n\r\n" + data)[0]
                return b""
            self.chunked = headers.get("transfer-encoding") == "chunked"
            self.head = Answer(status, headers, b"")
        if not self.chunked:
            self._rest = b""
            return data
        body = b""
        while b"\r\n" in data and not self.ended:
            line, _, rest = data.partition(b"\r\n")
            size = int(line, 16)
            if len(rest) < size + 2:
                break
            assert rest[size : size + 2] == b"\r\n"
            chunk, data = rest[:size], rest[size + 2 :]
            if size == 0:
                self.ended = True
            else:
                # Readers in the field decode each chunk by itself.
                assert chunk.endswith(b"\n\n")
                chunk.decode()
            body += chunk
        assert not (self.ended and data), f"{data!r} after the last chunk"
        self._rest = data
        return body

    def _parse(self, body: bytes) -> Iterator[Message | str]:
        blocks = body.split(b"\n\n")
        assert blocks.pop() == b"", f"a torn message: {body[-80:]!r}"
        for block in blocks:
            if block.startswith(b":"):
                assert b"\n" not in block
                yield block[1:].decode().removeprefix(" ")
                continue
            fields = [line.split(b": ", 1) for line in block.split(b"\n")]
            names = [name for name, _ in fields]
            assert names in ([b"event", b"data"], [b"event", b"id", b"data"]), block
            assert not any(bad in block for bad in (b"\r", b"\0"))
            found = dict(fields)
            id_ = found.get(b"id")
            yield Message(found[b"event"].decode(), None if id_ is None else id_.decode(), found[b"data"])


@dataclass
class Socket:
    """The client's side of a WebSocket."""

    wire: MemoryWire
    protocol: ClientProtocol = field(
        default_factory=lambda: ClientProtocol(parse_uri("ws://localhost/socket"), max_size=None)
    )
    refused: Answer | None = None
    _texts: list[bytes] = field(default_factory=list)

    def shake_hands(self, query: str, headers: Mapping[str, str]) -> None:
        handshake = self.protocol.connect()
        handshake.path = f"/socket{query}"
        for name, value in headers.items():
            handshake.headers[name] = value
        self.protocol.send_request(handshake)
        self._feed()

    def _feed(self) -> None:
        for data in self.protocol.data_to_send():
            self.wire.feed(data)

    def say(self, *messages: Mapping[str, object] | bytes) -> None:
        """Send each message as one text frame."""
        self._take()
        for message in messages:
            text = message if isinstance(message, bytes) else json.dumps(message).encode()
            self.protocol.send_text(text)
        # In one piece: whatever is said together arrives together.
        self.wire.feed(b"".join(self.protocol.data_to_send()))

    def say_frame(self, frame: Frame) -> None:
        """Send any frame."""
        self.wire.feed(frame.serialize(mask=True))

    async def ask(self, *messages: Mapping[str, object] | bytes) -> list[Any]:
        """Send ``messages`` and return all that comes by then."""
        self.say(*messages)
        await settle()
        return self.heard()

    def raw(self) -> list[bytes]:
        """Return the text messages that have come since the last time."""
        self._take()
        texts, self._texts = self._texts, []
        return texts

    def _take(self) -> None:
        self.protocol.receive_data(self.wire.take_sent())
        for item in self.protocol.events_received():
            if isinstance(item, HandshakeResponse):
                if item.status_code != 101:
                    headers = {name.lower(): value for name, value in item.headers.raw_items()}
                    self.refused = Answer(item.status_code, headers, bytes(item.body or b""))
                continue
            assert isinstance(item, Frame)
            if item.opcode is Opcode.TEXT:
                # Readers in the field drop continuation frames.
                assert item.fin
                self._texts.append(bytes(item.data))
            else:
                assert item.opcode in (Opcode.CLOSE, Opcode.PONG), item

    def heard(self) -> list[Any]:
        """Return the messages that have come since the last time, as values."""
        return [json.loads(text) for text in self.raw()]

    @property
    def closed(self) -> int | None:
        """The relay's close code; None as long as it has not closed."""
        self._take()
        frame = self.protocol.close_rcvd
        return None if frame is None else frame.code


def event(
    seq: int | None = 0, session: str | None = "s", type_: str = "tool.requested", **members: object
) -> bytes:
    """Return a valid Event; a member given as None is left out."""
    found: dict[str, object] = {
        "aep": "0.1",
        "id": f"{session}-{members.get('epoch', 0)}-{seq}",
        "type": type_,
        "time": "2026-07-03T10:14:00Z",
        "source": f"aep://host/{quote(str(session))}",
        "agent": "tester",
        "session": session,
        "seq": seq,
        **members,
    }
    return json.dumps({name: value for name, value in found.items() if value is not None}).encode()


def command(session: str = "s", type_: str = "control.cancel", id_: str = "c-1", **members: object) -> bytes:
    """Return a valid command."""
    return event(None, session, type_, id=id_, source="aep://host/operator", agent="operator", **members)
