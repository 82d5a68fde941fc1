"""Server-Sent Events as a client reads them (WHATWG HTML §9.2.6; AEP-0003 §3.3), and a relay's streams of them.

Invariants: what is read does not depend on how the bytes were cut; a message is bounded.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio

from aep_relay.client.connect import open_stream
from aep_relay.client.errors import TimedOut, Unreachable
from aep_relay.client.http import Exchange, refusal
from aep_relay.protocol.sse import REPLAY_COMPLETE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from aep_relay.client.target import Target

MAX_MESSAGE_BYTES: Final = 64 << 20
HEAD_SECONDS: Final = 30.0
SILENCE_SECONDS: Final = 95.0
"""A relay sends something every 30 s; after three times that it is gone."""

COMPLETE: Final = REPLAY_COMPLETE.decode().strip(": \n")


@dataclass(frozen=True, slots=True)
class Message:
    """One message: ``data`` is the Event's text."""

    event: str
    id: str | None
    data: bytes


@dataclass(frozen=True, slots=True)
class Comment:
    """A line that begins with a colon: heartbeats, ``replay-complete``, ``replay-exhausted``."""

    text: str


class Reader:
    """Cuts a stream's bytes into messages and comments."""

    def __init__(self, max_message_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self._max_message_bytes = max_message_bytes
        self._pending = bytearray()
        self._event = ""
        self._id: str | None = None
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[Message | Comment]:
        """Take in more bytes; return what is whole by now. Raises ``Unreachable`` for a message without end."""
        self._pending += chunk
        found: list[Message | Comment] = []
        if b"\n" in chunk:
            *lines, self._pending = self._pending.split(b"\n")
            for line in lines:
                self._line(bytes(line.removesuffix(b"\r")), found)
        if self._size + len(self._pending) > self._max_message_bytes:
            raise Unreachable(f"the stream holds a message of more than {self._max_message_bytes} bytes")
        return found

    def _line(self, line: bytes, found: list[Message | Comment]) -> None:
        if not line:
            if self._data:
                found.append(Message(self._event, self._id, b"\n".join(self._data)))
            self._event, self._id, self._data, self._size = "", None, [], 0
            return
        self._size += len(line)
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if not name:
            found.append(Comment(value.decode("utf-8", "replace")))
        elif name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._event = value.decode("utf-8", "replace")
        elif name == b"id":
            self._id = value.decode("utf-8", "replace")


class Stream:
    """An open stream."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._reader = Reader()
        self.complete = False
        """Whether the relay said that it has replayed all that was asked for."""

    async def receive(self) -> list[Message | Comment] | None:
        """Return what comes next, ``None`` once the replay is complete.

        Raises ``Unreachable`` if the stream ends in any other way, ``TimedOut`` if nothing comes.
        """
        while not self.complete:
            try:
                with trio.fail_after(SILENCE_SECONDS):
                    chunk = await self._exchange.read()
            except trio.TooSlowError:
                raise TimedOut(f"{self._exchange.target.url} has fallen silent") from None
            if not chunk:
                raise Unreachable(f"the stream of {self._exchange.target.url} ended")
            items = self._reader.feed(chunk)
            self.complete = Comment(COMPLETE) in items
            if items:
                return items
        return None


@contextlib.asynccontextmanager
async def open_events(target: Target, query: Mapping[str, str]) -> AsyncIterator[Stream]:
    """Open ``/stream`` (AEP-0003 §3.3.1). Raises ``Refused``, ``Unreachable`` and ``TimedOut``."""
    exchange = Exchange(target, await open_stream(target))
    try:
        try:
            with trio.fail_after(HEAD_SECONDS):
                resource = target.resource("/stream", query)
                await exchange.send("GET", resource, [("Accept", "text/event-stream")])
                response = await exchange.head()
                kind = response.headers.get("content-type", "")
                if response.status != 200 or not kind.startswith("text/event-stream"):
                    raise refusal(await exchange.whole())
        except trio.TooSlowError:
            raise TimedOut(f"{target.url} did not answer within {HEAD_SECONDS:g} s") from None
        yield Stream(exchange)
    finally:
        await exchange.aclose()
