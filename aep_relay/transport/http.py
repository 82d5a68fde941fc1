"""HTTP/1.0 and 1.1, the server's side: the requests of one connection, one after the other.

An ``HttpReader`` stands between a wire and its handler::

    try:
        while (request := await reader.next_request()) is not None:
            body = await reader.read_body(limit_bytes)
            await reader.answer(response(202, keep_alive=reader.keep_alive))
    except HttpRefusal as problem:
        await reader.answer(refusal(problem))
    await reader.close()

Invariants:

* The verdict on a request does not depend on how its bytes were cut on their way; pipelined requests are
  served in order, and every ``next_request`` is a checkpoint.
* A head is bounded in bytes and in time, a body too; both deadlines are totals, so a byte a second does not
  hold them up. An idle connection holds no buffer, no parser and no task but its own.
* After a refusal, and when a body was left unread that can't be skipped cheaply, the connection ends;
  ``close`` ends it so that the answer arrives (no reset overtakes it).
* ``Expect: 100-continue`` is answered when, and only when, the body is about to be read.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

import trio

from aep_relay.transport.chunked import ChunkedDecoder, ChunkedError, ChunkedOverflow
from aep_relay.transport.request import HttpRefusal, Request, check_partial_head, parse_head
from aep_relay.transport.response import refusal, response, stream_head
from aep_relay.transport.wire import RECEIVE_BYTES, BrokenWire, Interrupted, linger

if TYPE_CHECKING:
    from typing import NoReturn

    from aep_relay.transport.deadlines import Deadlines
    from aep_relay.transport.wire import Wire

__all__ = [
    "BodyTooLarge",
    "HttpLimits",
    "HttpReader",
    "HttpRefusal",
    "Request",
    "refusal",
    "response",
    "stream_head",
]

MAX_SKIPPED_BYTES = 64 * 1024
"""A body up to this long that nobody asked for is skipped; a longer one ends the connection."""
LINGER_SECONDS = 2.0
MAX_LINGER_BYTES = 64 * 1024 * 1024

_BODY_RECEIVE_BYTES = 256 * 1024
_CHUNKED_BYTES = 16 * 1024
"""So much is decoded at once: of chunks of a byte, that is a few milliseconds' worth."""
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class BodyTooLarge(HttpRefusal):
    """The body is longer than the limit of who asked for it (413)."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(413, "limit-exceeded", f"the body is longer than {limit_bytes} bytes")


class HttpLimits(Protocol):
    """The limits that the reader keeps, under the names they have in the configuration."""

    @property
    def max_head_bytes(self) -> int:
        """Request line and headers together."""

    @property
    def head_timeout_seconds(self) -> float:
        """From the first byte of a head to its last."""

    @property
    def body_timeout_seconds(self) -> float:
        """From the head to the last byte of the body, and for a peer to take an answer."""

    @property
    def idle_timeout_seconds(self) -> float:
        """From an answer to the first byte of the next request."""


class HttpReader:
    """The requests of one connection.

    ``deadlines.run`` has to be running, or no deadline is kept. To give the connection to something that is
    not HTTP any more, or to a response that does not end, take what was received too far with ``take_rest``
    and forget the reader: it holds nothing that would have to be freed.
    """

    __slots__ = (
        "_at",
        "_buffer",
        "_continue_due",
        "_deadlines",
        "_left_bytes",
        "_limits",
        "_mid_message",
        "_persistent",
        "_unread_chunks",
        "_wire",
        "deadline",
    )

    def __init__(self, wire: Wire, limits: HttpLimits, deadlines: Deadlines) -> None:
        self._wire = wire
        self._limits = limits
        self._deadlines = deadlines
        self._buffer = b""
        self._at = 0
        self._persistent = True
        self._mid_message = False
        self._left_bytes = 0
        self._unread_chunks = False
        self._continue_due = False
        self.deadline = math.inf
        """When what is awaited now is late (``deadlines.Waiting``)."""

    def expire(self) -> None:
        """End the wait for more bytes (``deadlines.Waiting``)."""
        self._wire.interrupt()

    @property
    def idle(self) -> bool:
        """Whether a request is awaited of which nothing has come yet: ``expire`` ends it, and loses nothing."""
        return not self._mid_message and self in self._deadlines.waiting

    @property
    def keep_alive(self) -> bool:
        """Whether another request can follow the present one: what the answer has to say."""
        if not self._persistent or self._mid_message or self._unread_chunks:
            return False
        # With an Expect that was not answered, the client may send the body or not: there is no telling.
        return self._left_bytes == 0 or (self._left_bytes <= MAX_SKIPPED_BYTES and not self._continue_due)

    async def next_request(self) -> Request | None:
        """Return the next request; None when there is none: the last one was, or the peer ended or was idle
        too long.

        What is left of the body before it is skipped. Raises ``HttpRefusal`` (400, 408, 417, 431, 501, 505),
        to be answered before the connection is closed, and ``BrokenWire``.
        """
        if not self.keep_alive or (self._left_bytes and not await self._skip_body()):
            return None
        if not await self._head_begins():
            return None
        self._mid_message = True
        head = await self._head()
        try:
            request = parse_head(head)
        except HttpRefusal as problem:
            problem.head = head
            raise
        self._mid_message = False
        self._persistent = request.keep_alive
        self._left_bytes = request.content_length or 0
        self._unread_chunks = request.chunked
        self._continue_due = request.expect_continue
        return request

    async def read_body(self, limit_bytes: int) -> bytes:
        """Return the body of the present request, at most ``limit_bytes``; ``b""`` if there is none.

        Raises ``BodyTooLarge`` as soon as the size is known, before the rest is received, ``HttpRefusal``
        (400 for broken framing or an early end, 408) and ``BrokenWire``.
        """
        if not self._left_bytes and not self._unread_chunks:
            return b""
        if self._left_bytes > limit_bytes:
            raise BodyTooLarge(limit_bytes)
        end = self._at + self._left_bytes
        if not self._unread_chunks and end <= len(self._buffer):
            body = self._buffer[self._at : end]
            self._left_bytes = 0
            self._advance(end)
            return body
        self._mid_message = True
        self.deadline = trio.current_time() + self._limits.body_timeout_seconds
        body = await (self._chunked_body(limit_bytes) if self._unread_chunks else self._plain_body())
        self._mid_message = False
        return body

    async def answer(self, data: bytes) -> None:
        """Send a whole response. A checkpoint only if the peer's window is full.

        A peer that does not take it within the body's time is aborted. Raises ``BrokenWire``.
        """
        sent = self._wire.send(data)
        if sent == len(data):
            return
        with trio.move_on_after(self._limits.body_timeout_seconds):
            await self._wire.send_all(memoryview(data)[sent:])
            return
        self._wire.abort()
        raise BrokenWire("the answer was not taken in time")

    async def close(self) -> None:
        """End the connection after the last answer, in such a way that the answer arrives."""
        if self._mid_message or self._left_bytes or self._unread_chunks or self._at < len(self._buffer):
            await linger(self._wire, seconds=LINGER_SECONDS, max_bytes=MAX_LINGER_BYTES)
        else:
            self._wire.close()

    def take_rest(self) -> bytes:
        """Return what was received after the present head, and forget it."""
        rest = self._buffer[self._at :]
        self._advance(len(self._buffer))
        return rest

    def put_back(self, rest: bytes) -> None:
        """Read on with ``rest``, which ``take_rest`` has returned, since nobody else came to read it."""
        self._buffer, self._at = rest, 0

    async def _receive(self, max_bytes: int = RECEIVE_BYTES) -> bytes:
        if trio.current_time() >= self.deadline:
            # Whoever sends without a pause is never found waiting by the timer.
            raise Interrupted
        waiting = self._deadlines.waiting
        waiting.add(self)
        try:
            return await self._wire.receive_some(max_bytes)
        finally:
            waiting.discard(self)

    def _advance(self, at: int) -> None:
        if at >= len(self._buffer):
            self._buffer, self._at = b"", 0
        else:
            self._at = at

    async def _head_begins(self) -> bool:
        """Wait for the first byte of a head; False when the peer ends or is idle for too long."""
        if self._buffer:
            await trio.lowlevel.checkpoint()
        self.deadline = trio.current_time() + self._limits.idle_timeout_seconds
        while True:
            while self._buffer.startswith(b"\r\n", self._at):
                # Some clients end a body with a line break that they don't count (RFC 9112 §2.2).
                self._at += 2
            rest = self._buffer[self._at :]
            if rest and rest != b"\r":
                return True
            try:
                data = await self._receive()
            except Interrupted:
                return False
            if not data:
                return False
            self._buffer, self._at = rest + data, 0

    async def _head(self) -> bytes:
        """Return the next head and leave what follows it in the buffer."""
        buffer, at = self._buffer, self._at
        end = buffer.find(b"\r\n\r\n", at) + 4
        if end < 4:
            self._buffer, self._at = b"", 0
            partial = bytearray(buffer[at:])
            try:
                return await self._slow_head(partial)
            except HttpRefusal as problem:
                problem.head = bytes(partial)
                raise
        head = buffer[at:end]
        if len(head) > self._limits.max_head_bytes:
            try:
                self._refuse_long_head(head)
            except HttpRefusal as problem:
                problem.head = head
                raise
        self._advance(end)
        return head

    async def _slow_head(self, partial: bytearray) -> bytes:
        """Receive the rest of a head that comes in pieces, of which ``partial`` is the first."""
        self.deadline = trio.current_time() + self._limits.head_timeout_seconds
        checked = 0
        while True:
            if len(partial) > self._limits.max_head_bytes:
                self._refuse_long_head(partial)
            check_partial_head(partial, checked)
            checked = len(partial)
            try:
                data = await self._receive()
            except Interrupted:
                raise HttpRefusal(408, "timeout", "the head took too long") from None
            if not data:
                raise HttpRefusal(400, "bad-request", "the head ends early")
            partial += data
            end = partial.find(b"\r\n\r\n", max(0, checked - 3)) + 4
            if end >= 4:
                if end > self._limits.max_head_bytes:
                    self._refuse_long_head(partial)
                self._buffer = bytes(partial[end:])
                return bytes(partial[:end])

    def _refuse_long_head(self, head: bytes | bytearray) -> NoReturn:
        # What is wrong with its beginning counts first, since in pieces it would have been seen first.
        check_partial_head(head[: self._limits.max_head_bytes], 0)
        raise HttpRefusal(
            431, "limit-exceeded", f"the head is longer than {self._limits.max_head_bytes} bytes"
        )

    async def _body_bytes(self, max_bytes: int) -> bytes:
        """Return the next bytes of a body, at least one."""
        if self._continue_due:
            self._continue_due = False
            await self.answer(_CONTINUE)
        try:
            data = await self._receive(max_bytes)
        except Interrupted:
            raise HttpRefusal(408, "timeout", "the body took too long") from None
        if not data:
            raise HttpRefusal(400, "bad-request", "the body ends early")
        return data

    async def _plain_body(self) -> bytes:
        body = bytearray(self.take_rest())
        if body:
            # A client that sends without waiting needs no permission.
            self._continue_due = False
        size = self._left_bytes
        while len(body) < size:
            body += await self._body_bytes(min(size - len(body), _BODY_RECEIVE_BYTES))
        self._left_bytes = 0
        return bytes(body)

    async def _chunked_body(self, limit_bytes: int) -> bytes:
        decoder = ChunkedDecoder(limit_bytes)
        data = self.take_rest()
        if data:
            self._continue_due = False
        try:
            rest = decoder.feed(data[:_CHUNKED_BYTES])
            for start in range(_CHUNKED_BYTES, len(data), _CHUNKED_BYTES):
                await trio.lowlevel.checkpoint()
                rest += decoder.feed(data[start : start + _CHUNKED_BYTES])
            while not decoder.done:
                size = RECEIVE_BYTES if decoder.in_long_chunk else _CHUNKED_BYTES
                rest = decoder.feed(await self._body_bytes(size))
        except ChunkedOverflow:
            raise BodyTooLarge(limit_bytes) from None
        except ChunkedError as error:
            raise HttpRefusal(400, "bad-request", str(error)) from None
        self._buffer, self._at = rest, 0
        self._unread_chunks = False
        return bytes(decoder.body)

    async def _skip_body(self) -> bool:
        """Skip the rest of a short body that nobody read; False when it does not come."""
        here = min(self._left_bytes, len(self._buffer) - self._at)
        self._advance(self._at + here)
        self._left_bytes -= here
        self.deadline = trio.current_time() + self._limits.body_timeout_seconds
        try:
            while self._left_bytes:
                self._left_bytes -= len(await self._body_bytes(self._left_bytes))
        except HttpRefusal:
            # The request has its answer; it gets no second one.
            return False
        return True
