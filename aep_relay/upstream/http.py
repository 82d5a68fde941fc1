"""``POST`` to an upstream, one request after the other on a connection that is kept (AEP-0003 §3.2).

Parsed by ``httptools``, which the relay needs anyhow: a request takes half the CPU that ``httpx`` takes under Trio.
Invariants: what comes back is bounded; a connection whose answer was not read to its end is not used again; whatever
goes wrong is a ``Down``.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import httptools
import trio

from aep_relay import __version__
from aep_relay.upstream.errors import UNREACHABLE, Down

if TYPE_CHECKING:
    from aep_relay.upstream.dial import Dial

MAX_HEAD_BYTES: Final = 64 * 1024
MAX_BODY_BYTES: Final = 64 * 1024
RECEIVE_BYTES: Final = 64 * 1024


@dataclass(slots=True)
class Answer:
    """What the upstream answered; ``body`` holds at most ``MAX_BODY_BYTES`` of it."""

    status: int = 0
    body: bytes = b""
    headers: dict[bytes, bytes] = field(default_factory=dict)
    """By name in lower case, the last of several."""

    @property
    def retry_after_seconds(self) -> float:
        """What ``Retry-After`` asks for, 0 where it does not say it in seconds."""
        value = self.headers.get(b"retry-after", b"")
        return float(value) if value.isdigit() and len(value) < 6 else 0.0


class _Over(Down):
    """The connection ended, and nothing had come."""


class _Reader:
    """Collects one answer from the parser's callbacks."""

    def __init__(self) -> None:
        self.answer = Answer()
        self.began = False
        self.ended = False
        self.keeps_alive = False
        self._head_bytes = 0
        self.parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes | bytearray) -> None:
        self.began = True
        self.parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > MAX_HEAD_BYTES:
            raise ValueError("the head of the answer is too long")
        self.answer.headers[name.lower()] = value

    def on_body(self, data: bytes) -> None:
        self.answer.body += data[: MAX_BODY_BYTES - len(self.answer.body)]

    def on_message_complete(self) -> None:
        status = self.parser.get_status_code()
        if status >= 200:
            self.answer.status = status
            self.ended = True
            # Asked afterwards, the parser speaks of the next message.
            self.keeps_alive = self.parser.should_keep_alive()
        else:
            self.answer = Answer()


class Client:
    """One connection to one upstream, opened when it is needed."""

    def __init__(self, dial: Dial, token: str | None, answer_timeout_seconds: float) -> None:
        self._dial = dial
        self._seconds = answer_timeout_seconds
        self._stream: trio.abc.Stream | None = None
        head = (
            f"POST {dial.target.base}/events HTTP/1.1\r\nHost: {dial.target.authority}\r\nAEP-Version: 0.1\r\n"
            f"User-Agent: aep-relay/{__version__}\r\n"
        )
        if token is not None:
            head += f"Authorization: Bearer {token}\r\n"
        self._head = head.encode("ascii")

    async def post(self, body: bytes, content_type: bytes) -> Answer:
        """Send ``body`` and return the answer. Raises ``Down`` when there is none."""
        head = b"%bContent-Type: %b\r\nContent-Length: %d\r\n\r\n" % (self._head, content_type, len(body))
        if self._stream is not None:
            try:
                return await self._ask(self._stream, head + body)
            except _Over:
                # A kept connection may have been closed on the other side in the meantime: that is no failure.
                pass
        self._stream = await self._dial()
        return await self._ask(self._stream, head + body)

    async def _ask(self, stream: trio.abc.Stream, request: bytes) -> Answer:
        """Return the answer. Raises ``Down``, and of it ``_Over`` where the connection ended without a word."""
        reader = _Reader()
        reusable = False
        try:
            with trio.fail_after(self._seconds):
                # It may be answered before it was read, and cut off then: the answer is there all the same.
                with contextlib.suppress(trio.BrokenResourceError):
                    await stream.send_all(request)
                while not reader.ended:
                    data = await stream.receive_some(RECEIVE_BYTES)
                    if not data:
                        raise trio.BrokenResourceError
                    reader.feed(data)
            reusable = reader.keeps_alive
            return reader.answer
        except trio.TooSlowError:
            raise Down(UNREACHABLE, f"no answer within {self._seconds:g} s") from None
        except trio.BrokenResourceError:
            over = Down if reader.began else _Over
            raise over(UNREACHABLE, "the connection ended before the answer") from None
        except httptools.HttpParserError as error:
            raise Down(UNREACHABLE, f"the answer is not HTTP: {error.__context__ or error}") from None
        finally:
            if not reusable:
                await self.close()

    async def close(self) -> None:
        """Give the connection up."""
        stream, self._stream = self._stream, None
        if stream is not None:
            await trio.aclose_forcefully(stream)
