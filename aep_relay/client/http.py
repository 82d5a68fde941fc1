"""HTTP/1.1 to a relay: requests with one answer, and answers that go on.

Parsed by ``httptools``. Invariants: heads and whole bodies are bounded; whatever comes back, and however it is cut,
what is raised is a ``ClientError``. RFC 9112; AEP-0003 §3.2 to §3.4.
"""

from __future__ import annotations

import contextlib
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import httptools
import msgspec
import trio

from aep_relay import __version__
from aep_relay.client.connect import ByteStream, open_stream, reason
from aep_relay.client.errors import Refused, TimedOut, Unreachable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from aep_relay.client.target import Target

    Headers = Sequence[tuple[str, str]]

ANSWER_SECONDS: Final = 30.0
MAX_HEAD_BYTES: Final = 64 * 1024
MAX_BODY_BYTES: Final = 16 << 20
RECEIVE_BYTES: Final = 64 * 1024

_INFORMATIONAL = 200


@dataclass(slots=True)
class Response:
    """One answer; ``body`` is empty where it is read piece by piece."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    """By name in lower case, the last of several."""
    body: bytes = b""


class Exchange:
    """One connection, used for one request after the other."""

    def __init__(self, target: Target, stream: ByteStream) -> None:
        self.target = target
        self._stream = stream
        self._parser = httptools.HttpResponseParser(self)
        self._response = Response()
        self._pieces: deque[bytes] = deque()
        self._head_bytes = 0
        self._has_head = False
        self._ended = False
        self.reusable = False
        """Whether another request may follow."""

    # httptools calls these

    def on_message_begin(self) -> None:
        """A response begins."""
        self._response = Response()
        self._has_head = self._ended = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self._response.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """The head is whole."""
        self._response.status = self._parser.get_status_code()
        self._has_head = self._response.status >= _INFORMATIONAL

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._pieces.append(body)

    def on_message_complete(self) -> None:
        """The response is whole."""
        self._ended = self._has_head
        self.reusable = self._ended and self._parser.should_keep_alive()

    async def send(self, method: str, resource: str, headers: Headers, body: bytes = b"") -> None:
        """Send a request. Raises ``Unreachable``."""
        lines = [f"{method} {resource} HTTP/1.1", f"Host: {self.target.authority}"]
        given = [("User-Agent", f"aep-relay/{__version__}"), *self.target.authorization(), *headers]
        if body or method == "POST":
            given.append(("Content-Length", str(len(body))))
        lines += [f"{name}: {value}" for name, value in given]
        self.reusable = self._has_head = self._ended = False
        self._head_bytes = 0
        try:
            await self._stream.send_all("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
        except trio.BrokenResourceError:
            # The relay may have answered before it stopped reading: that is for whoever reads.
            return

    async def head(self) -> Response:
        """Wait for the head of the answer. Raises ``Unreachable``."""
        while not self._has_head:
            received = await self._feed()
            self._head_bytes += received
            if not received:
                raise Unreachable(f"{self.target.url} closed the connection without an answer")
            if not self._has_head and self._head_bytes > MAX_HEAD_BYTES:
                raise Unreachable(
                    f"{self.target.url} answers with a head of more than {MAX_HEAD_BYTES} bytes"
                )
        return self._response

    async def read(self) -> bytes:
        """Return the next piece of the body, none at its end. Raises ``Unreachable`` if it breaks off."""
        while not self._pieces:
            if self._ended:
                return b""
            if not await self._feed():
                if _ends_with_connection(self._response):
                    return b""
                raise Unreachable(f"{self.target.url} broke off in mid-answer")
        return self._pieces.popleft()

    async def whole(self) -> Response:
        """Return the answer with its body. Raises ``Unreachable``."""
        response = await self.head()
        pieces = []
        size = 0
        while piece := await self.read():
            pieces.append(piece)
            size += len(piece)
            if size > MAX_BODY_BYTES:
                raise Unreachable(f"{self.target.url} answers with more than {MAX_BODY_BYTES} bytes")
        response.body = b"".join(pieces)
        return response

    async def _feed(self) -> int:
        try:
            data = await self._stream.receive_some(RECEIVE_BYTES)
        except trio.BrokenResourceError as error:
            raise Unreachable(f"the connection to {self.target.url} broke: {reason(error)}") from None
        if data:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserError as error:
                raise Unreachable(f"{self.target.url} does not speak HTTP: {error}") from None
        return len(data)

    async def aclose(self) -> None:
        """Drop the connection."""
        await trio.aclose_forcefully(self._stream)


def _ends_with_connection(response: Response) -> bool:
    return not {"content-length", "transfer-encoding"} & response.headers.keys()


class Client:
    """Asks one relay, over one connection as long as that lasts."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._kept: Exchange | None = None

    async def ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Headers = (),
        body: bytes = b"",
        seconds: float = ANSWER_SECONDS,
    ) -> Response:
        """Return the whole answer, whatever its status. Raises ``Unreachable`` and ``TimedOut``."""
        resource = self.target.resource(path, query)
        kept, self._kept = self._kept, None
        try:
            with trio.fail_after(seconds):
                if kept is not None:
                    # It may have been closed meanwhile. Nothing that is asked for here does harm when it comes twice.
                    with contextlib.suppress(Unreachable):
                        return await self._ask(kept, method, resource, headers, body)
                exchange = Exchange(self.target, await open_stream(self.target))
                return await self._ask(exchange, method, resource, headers, body)
        except trio.TooSlowError:
            raise TimedOut(f"{self.target.url} did not answer within {seconds:g} s") from None

    async def _ask(
        self, exchange: Exchange, method: str, resource: str, headers: Headers, body: bytes
    ) -> Response:
        try:
            await exchange.send(method, resource, headers, body)
            response = await exchange.whole()
        except BaseException:
            await exchange.aclose()
            raise
        if exchange.reusable:
            self._kept = exchange
        else:
            await exchange.aclose()
        return response

    async def aclose(self) -> None:
        """Drop the connection that is kept."""
        if self._kept is not None:
            await self._kept.aclose()
            self._kept = None


@contextlib.asynccontextmanager
async def asking(target: Target) -> AsyncIterator[Client]:
    """Provide a client whose connection ends with the block."""
    client = Client(target)
    try:
        yield client
    finally:
        await client.aclose()


def refusal(response: Response) -> Refused:
    """Return what an answer that is no success says."""
    try:
        body = msgspec.json.decode(response.body)
    except (ValueError, RecursionError):
        body = None
    found = body if isinstance(body, dict) else {}
    code, detail = found.get("error"), found.get("detail")
    if isinstance(code, str):
        return Refused(code, detail if isinstance(detail, str) else "", status=response.status)
    return Refused(
        f"HTTP {response.status}",
        "this is not the answer of a relay",
        "check that --relay or AEP_RELAY names a relay, and look at the proxy in front of it, if there is one",
        response.status,
    )
