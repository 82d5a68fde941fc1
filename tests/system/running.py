"""A running relay, and what clients that no one here wrote get from it: httpx, trio-websocket, curl."""

from __future__ import annotations

import json
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import trio
from trio_websocket import WebSocketConnection, wrap_client_stream

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.installed import Installed

JSON = {"AEP-Version": "0.1", "Content-Type": "application/json"}
NDJSON = {"AEP-Version": "0.1", "Content-Type": "application/x-ndjson"}
PATIENCE_SECONDS = 20.0


@dataclass(frozen=True)
class Message:
    """One SSE message."""

    event: str
    id: str | None
    data: bytes


class Running:
    """The process, its port and its token."""

    def __init__(self, relay: Installed, port: int, token: str | None) -> None:
        self.relay = relay
        self.port = port
        self.token = token
        self.url = f"http://127.0.0.1:{port}"
        self.bearer = {} if token is None else {"Authorization": f"Bearer {token}"}
        # Nobody is to be trusted here, and reading the system's certificates takes longer than most tests.
        nobody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.client = httpx.Client(
            base_url=self.url, headers=self.bearer, timeout=PATIENCE_SECONDS, verify=nobody
        )

    def post(self, *events: bytes) -> None:
        """POST ``events``, several as one batch."""
        kind = JSON if len(events) == 1 else NDJSON
        answer = self.client.post("/events", content=b"\n".join(events), headers=kind)
        assert (answer.status_code, answer.json()) == (202, {"accepted": len(events)})

    def get(self, path: str) -> Any:
        answer = self.client.get(path)
        assert answer.status_code == 200
        return answer.json()

    def curl(self, *arguments: str, **parameters: str) -> bytes:
        """Return what curl prints for ``/stream`` with ``parameters``, ``from_`` being ``from``."""
        if shutil.which("curl") is None:
            pytest.skip("curl is not installed")
        query = [f"{name.rstrip('_')}={value}" for name, value in parameters.items()]
        encoded = [part for pair in query for part in ("--data-urlencode", pair)]
        headers = [part for name, value in self.bearer.items() for part in ("-H", f"{name}: {value}")]
        command = ["curl", "-sSNG", "--max-time", str(PATIENCE_SECONDS), *headers, *encoded, *arguments]
        return subprocess.run([*command, f"{self.url}/stream"], capture_output=True, check=True).stdout

    @asynccontextmanager
    async def stream(
        self, headers: Mapping[str, str] | None = None, **parameters: str
    ) -> AsyncIterator[Stream]:
        """Open a stream with httpx, ``from_`` being ``from``."""
        query = {name.rstrip("_"): value for name, value in parameters.items()}
        with self.client.stream("GET", "/stream", params=query, headers=headers) as response:
            assert response.status_code == 200, response.read()
            stream = Stream(response)
            assert await stream.next() == "stream open"
            yield stream

    async def replay(self, headers: Mapping[str, str] | None = None, **parameters: str) -> list[Message]:
        """Return what a stream with ``live=0`` brings."""
        async with self.stream(headers, live="0", **parameters) as stream:
            items = [item async for item in stream]
            assert items.pop() == "replay-complete"
            return [item for item in items if isinstance(item, Message)]

    @asynccontextmanager
    async def socket(
        self, role: str = "consumer", agent: str = "tester", capabilities: Mapping[str, object] | None = None
    ) -> AsyncIterator[Socket]:
        """Open a WebSocket with trio-websocket and exchange hellos."""
        headers = [(name.encode(), value.encode()) for name, value in self.bearer.items()]
        # The stream is opened and closed here: trio-websocket forgets it when the other side ends first.
        async with (
            await trio.open_tcp_stream("127.0.0.1", self.port) as stream,
            trio.open_nursery() as nursery,
        ):
            connection = await wrap_client_stream(
                nursery, stream, "127.0.0.1", "/socket", extra_headers=headers, max_message_size=32 << 20
            )
            socket = Socket(connection)
            await socket.say(
                {
                    "type": "hello",
                    "versions": ["0.1"],
                    "role": role,
                    "identity": {"agent": agent, "instance": f"{agent}/1"},
                    "capabilities": dict(capabilities or {}),
                }
            )
            assert (await socket.hear())["type"] == "hello"
            try:
                yield socket
            finally:
                with trio.move_on_after(PATIENCE_SECONDS):
                    await connection.aclose()


class Stream:
    """The items of a stream in order: messages, and comments as strings."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._chunks = response.iter_raw()
        self._rest = b""

    def __aiter__(self) -> AsyncIterator[Message | str]:
        return self._items()

    async def _items(self) -> AsyncIterator[Message | str]:
        while (item := await self.next()) is not None:
            yield item

    async def next(self) -> Message | str | None:
        """Return the next item, None at the end."""
        while b"\n\n" not in self._rest:
            chunk = await trio.to_thread.run_sync(next, self._chunks, None)
            if chunk is None:
                assert self._rest == b""
                return None
            self._rest += chunk
        block, _, self._rest = self._rest.partition(b"\n\n")
        return item(block)

    async def messages(self, count: int) -> list[Message]:
        """Return the next ``count`` messages."""
        found: list[Message] = []
        with trio.fail_after(PATIENCE_SECONDS):
            while len(found) < count:
                item = await self.next()
                assert item is not None, found
                if isinstance(item, Message):
                    found.append(item)
        return found


def item(block: bytes) -> Message | str:
    """Return the message or comment that ``block`` is."""
    if block.startswith(b":"):
        return block[1:].decode().removeprefix(" ")
    fields = dict(line.split(b": ", 1) for line in block.split(b"\n"))
    id_ = fields.get(b"id")
    return Message(fields[b"event"].decode(), None if id_ is None else id_.decode(), fields[b"data"])


def items(body: bytes) -> Iterator[Message | str]:
    """Yield the items of a whole body."""
    *blocks, rest = body.split(b"\n\n")
    assert rest == b""
    yield from map(item, blocks)


class Socket:
    """A WebSocket whose messages are JSON."""

    def __init__(self, connection: WebSocketConnection) -> None:
        self.connection = connection

    async def say(self, *messages: Mapping[str, object] | bytes) -> None:
        for message in messages:
            text = message if isinstance(message, bytes) else json.dumps(message).encode()
            await self.connection.send_message(text.decode())

    async def hear_text(self) -> bytes:
        with trio.fail_after(PATIENCE_SECONDS):
            text = await self.connection.get_message()
        assert isinstance(text, str)
        return text.encode()

    async def hear(self) -> Any:
        return json.loads(await self.hear_text())

    async def events(self, count: int) -> list[bytes]:
        """Return the next ``count`` messages, as their bytes."""
        return [await self.hear_text() for _ in range(count)]

    async def subscribe(self, id_: str = "a", **members: object) -> None:
        await self.say(
            {"type": "subscribe", "id": id_, **{name.rstrip("_"): value for name, value in members.items()}}
        )
        assert await self.hear() == {"type": "subscribed", "id": id_}

    async def processed(self) -> None:
        """Wait until all that was said has been processed; nothing else may come meanwhile."""
        await self.say({"type": "ping", "t": 1})
        assert await self.hear() == {"type": "pong", "t": 1}
