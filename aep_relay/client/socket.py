"""A WebSocket to a relay, past its hello: requests with their answers, Events and frames as they come.

One task reads. It answers heartbeats at once, hands answers to whoever asked, and puts everything else into a bounded
queue, so that a client that is slow is read from slowly. Invariants: what the relay refuses is a ``Refused``; an end
of the connection, however it comes, is an ``Unreachable`` that says why. AEP-0003 §3.5, §4, §4.1, §6.5.
"""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
import trio
from trio_websocket import ConnectionClosed, ConnectionRejected, wrap_client_stream

from aep_relay.client.connect import CONNECT_SECONDS, open_stream
from aep_relay.client.errors import Refused, TimedOut, Unreachable
from aep_relay.client.http import Response, refusal
from aep_relay.protocol import frames
from aep_relay.protocol.discovery import VERSIONS
from aep_relay.protocol.errors import ProtocolError
from aep_relay.protocol.event import Event

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from trio_websocket import WebSocketConnection

    from aep_relay.client.target import Target

Frame = dict[str, object]
Item = Event | Frame

MAX_MESSAGE_BYTES: Final = 64 << 20
RECEIVE_BYTES: Final = 64 * 1024
QUEUED_ITEMS: Final = 1000
ANSWER_SECONDS: Final = 10.0
SILENCE_SECONDS: Final = 95.0
"""A relay pings every 30 s; after three times that it is gone."""
CLOSE_SECONDS: Final = 1.0

_UPGRADE = (
    "a proxy in front of the relay has to pass on the WebSocket upgrade; `aep-relay doctor` looks for it"
)


class _Handshake:
    """Stands in for the nursery that ``wrap_client_stream`` starts its reader in.

    The reader raises when the relay rejects the upgrade and just ends when the connection does; either way whoever
    waits for the handshake has to know.
    """

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self.waiting = trio.CancelScope()
        self.rejected: ConnectionRejected | None = None

    def start_soon(self, reader: Callable[[], Awaitable[None]]) -> None:
        self._nursery.start_soon(self._run, reader)

    async def _run(self, reader: Callable[[], Awaitable[None]]) -> None:
        try:
            await reader()
        except ConnectionRejected as error:
            self.rejected = error
        finally:
            self.waiting.cancel()


class Socket:
    """An open connection. ``hello`` is the relay's."""

    def __init__(self, target: Target, connection: WebSocketConnection) -> None:
        self.target = target
        self.hello: Frame = {}
        self._connection = connection
        self._numbers = itertools.count(1)
        self._waiting: dict[str, trio.Event] = {}
        self._answers: dict[str, Frame] = {}
        self._send, self._receive = trio.open_memory_channel[Item](QUEUED_ITEMS)
        self._farewell = ""
        self._broken: Unreachable | None = None

    @property
    def instance(self) -> str:
        """Names this run of the relay, as far as it says."""
        identity = self.hello.get("identity")
        return str(identity.get("instance", "")) if isinstance(identity, dict) else ""

    async def receive(self) -> Item:
        """Return the next Event or frame. Raises ``Unreachable`` when the connection is over."""
        try:
            return await self._receive.receive()
        except trio.EndOfChannel:
            raise self._over() from None

    def receive_nowait(self) -> Item | None:
        """Return what has come already, if anything has. Raises ``Unreachable`` when the connection is over."""
        try:
            return self._receive.receive_nowait()
        except trio.WouldBlock:
            return None
        except trio.EndOfChannel:
            raise self._over() from None

    async def say(self, message: Frame | bytes) -> None:
        """Send a frame, or an Event's text. Raises ``Unreachable``."""
        text = message if isinstance(message, bytes) else msgspec.json.encode(message)
        try:
            await self._connection.send_message(text.decode())
        except ConnectionClosed:
            raise self._over() from None

    async def subscribe(
        self, filter_: Frame, from_: object = None, capture: str | None = None, *, id_: str | None = None
    ) -> str:
        """Subscribe; return the subscription's id. Raises ``Refused``, ``TimedOut`` and ``Unreachable``."""
        frame: Frame = {"type": "subscribe", "id": id_ or f"s{next(self._numbers)}", "filter": filter_}
        if from_ is not None:
            frame["from"] = from_
        if capture is not None:
            frame["capture"] = capture
        await self._ask(str(frame["id"]), frame)
        return str(frame["id"])

    async def roster(self) -> list[dict[str, Any]]:
        """Return the roster's entries. Raises like ``subscribe``."""
        id_ = f"r{next(self._numbers)}"
        answer = await self._ask(id_, {"type": "roster", "id": id_})
        entries = answer.get("entries")
        return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []

    async def fence(self) -> None:
        """Wait until the relay has handled all that was sent before. Raises like ``subscribe``."""
        t = f"p{next(self._numbers)}"
        await self._ask(t, {"type": "ping", "t": t})

    async def _ask(self, id_: str, frame: Frame) -> Frame:
        arrived = self._waiting[id_] = trio.Event()
        try:
            await self.say(frame)
            with trio.fail_after(ANSWER_SECONDS):
                await arrived.wait()
        except trio.TooSlowError:
            text = f"{self.target.url} did not answer {frame['type']} within {ANSWER_SECONDS:g} s"
            raise TimedOut(text) from None
        finally:
            self._waiting.pop(id_, None)
        answer = self._answers.pop(id_, None)
        if answer is None:
            raise self._over()
        if answer.get("type") == "error":
            raise Refused(str(answer.get("code", "error")), str(answer.get("detail", "")))
        return answer

    async def greet(self, role: str, agent: str, capabilities: Frame) -> None:
        """Exchange hellos (AEP-0003 §4). Raises ``Refused``, ``TimedOut`` and ``Unreachable``."""
        identity = {"agent": agent, "instance": agent}
        await self.say(
            {
                "type": "hello",
                "versions": list(VERSIONS),
                "role": role,
                "identity": identity,
                "capabilities": capabilities,
            }
        )
        try:
            with trio.fail_after(ANSWER_SECONDS):
                answer = await self.receive()
        except trio.TooSlowError:
            raise TimedOut(f"{self.target.url} did not answer hello within {ANSWER_SECONDS:g} s") from None
        if isinstance(answer, Event) or answer.get("type") not in ("hello", "error"):
            raise Unreachable(f"{self.target.url} does not begin with hello", "check that it is a relay")
        if answer["type"] == "error":
            raise Refused(str(answer.get("code", "error")), str(answer.get("detail", "")))
        self.hello = answer

    async def read(self) -> None:
        """Read until the connection is over."""
        async with self._send:
            try:
                while True:
                    with trio.fail_after(SILENCE_SECONDS):
                        text = await self._connection.get_message()
                    await self._take(text.encode() if isinstance(text, str) else text)
            except ConnectionClosed as error:
                closed = error.reason
                said = self._farewell or (closed.reason if closed is not None else None)
                code = "" if closed is None else f" ({closed.code})"
                self._end(f"{self.target.url} closed the connection{code}{f': {said}' if said else ''}")
            except Unreachable as error:
                self._end(error.message)
            except trio.TooSlowError:
                self._end(f"{self.target.url} has fallen silent")

    async def _take(self, text: bytes) -> None:
        try:
            item = frames.parse(text, MAX_MESSAGE_BYTES)
        except ProtocolError as error:
            item = {"type": "unreadable", "detail": error.detail}
        if not isinstance(item, Event):
            kind = item.get("type")
            if kind == "ping":
                await self.say({"type": "pong", "t": item.get("t")})
                return
            if kind == "closing":
                self._farewell = str(item.get("reason", ""))
            id_ = item.get("t" if kind == "pong" else "id")
            waiting = self._waiting.get(id_) if isinstance(id_, str) else None
            if waiting is not None:
                self._answers[cast("str", id_)] = item
                waiting.set()
                return
        await self._send.send(item)

    def _end(self, text: str) -> None:
        self._broken = Unreachable(text)
        for waiting in self._waiting.values():
            waiting.set()

    def _over(self) -> Unreachable:
        return self._broken or Unreachable(f"the connection to {self.target.url} is over")


@contextlib.asynccontextmanager
async def open_socket(
    target: Target, *, role: str = "consumer", agent: str = "aep-relay-cli", capabilities: Frame | None = None
) -> AsyncIterator[Socket]:
    """Connect to ``/socket`` and exchange hellos. Raises ``Refused``, ``TimedOut`` and ``Unreachable``."""
    stream = await open_stream(target)
    try:
        async with trio.open_nursery() as nursery:
            try:
                connection = await _upgrade(nursery, stream, target)
                socket = Socket(target, connection)
                nursery.start_soon(socket.read)
                await socket.greet(role, agent, capabilities or {})
                yield socket
                with trio.move_on_after(CLOSE_SECONDS):
                    await connection.aclose()
            finally:
                nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise only(group) from None
    finally:
        await trio.aclose_forcefully(stream)


async def _upgrade(nursery: trio.Nursery, stream: Any, target: Target) -> WebSocketConnection:
    handshake = _Handshake(nursery)
    headers = [(name.encode(), value.encode()) for name, value in target.authorization()]
    connection: WebSocketConnection | None = None
    with trio.move_on_after(CONNECT_SECONDS) as patience, handshake.waiting:
        connection = await wrap_client_stream(
            cast("trio.Nursery", handshake),
            stream,
            target.authority,
            target.resource("/socket"),
            extra_headers=headers,
            message_queue_size=1,
            max_message_size=MAX_MESSAGE_BYTES,
            receive_buffer_size=RECEIVE_BYTES,
        )
    if connection is not None:
        return connection
    if handshake.rejected is not None:
        raise _rejection(target, handshake.rejected)
    if patience.cancelled_caught:
        raise TimedOut(f"{target.url} did not answer the WebSocket upgrade", _UPGRADE)
    raise Unreachable(
        f"{target.url} ended the connection instead of answering the WebSocket upgrade", _UPGRADE
    )


def _rejection(target: Target, error: ConnectionRejected) -> Refused:
    found = refusal(Response(error.status_code, {}, error.body or b""))
    if found.code.startswith("HTTP"):
        return Refused(found.code, f"{target.url} did not take the WebSocket upgrade", _UPGRADE)
    return found


def only(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the one exception of ``group`` that matters: what its nursery's block raised, not what that ended."""
    leaves = list(_leaves(group))
    for kind in (KeyboardInterrupt, Exception, SystemExit, BaseException):
        for leaf in leaves:
            if isinstance(leaf, kind):
                return leaf
    return group


def _leaves(error: BaseException) -> Sequence[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for each in error.exceptions for leaf in _leaves(each)]
    return [error]
