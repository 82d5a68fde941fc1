"""Hypercorn behind the relay's own sockets: one connection of the operator plane at a time.

Hypercorn's Trio worker does HTTP here, and nothing else of it is used: sockets are accepted by
``transport.listener``, which survives a lack of descriptors and keeps what one connection raises away from all others
(an upgrade request with a trailing byte makes Hypercorn raise). The worker shields its writes from cancellation, so a
reader that stalls could be neither dropped nor shut down: ``Plug`` gives every write a deadline of its own and every
connection an end that no shield stops.
"""

from __future__ import annotations

import logging
import socket
from typing import TYPE_CHECKING, cast

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config as HypercornConfig
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState

from aep_relay.protocol.errors import Refusal
from aep_relay.transport import listener
from aep_relay.transport.response import refusal
from aep_relay.transport.wire import BrokenWire, Interrupted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hypercorn.typing import ASGIFramework, LifespanState

    from aep_relay.transport.wire import Wire

MAX_CONNECTIONS = 64
WRITE_TIMEOUT_SECONDS = 20.0
"""For a client to take one piece of an answer, 64 KiB at most: then it is dropped."""
KEEP_ALIVE_SECONDS = 30.0
"""Between two requests, and for a request's head to come in."""

_LOGGER = logging.getLogger("aep_relay.operator")
_TURNED_AWAY = refusal(Refusal("limit-exceeded", "the operator plane has as many connections as it takes"))


class _Address:
    """Stands in for the socket, of which Hypercorn only wants addresses that nothing here uses."""

    family = socket.AF_UNIX

    def getpeername(self) -> str:
        return ""

    def getsockname(self) -> str:
        return ""


class Plug:
    """A wire as Hypercorn wants its streams."""

    socket = _Address()

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send ``data``; a client that does not take it in time is dropped. Raises ``BrokenResourceError``."""
        try:
            with trio.fail_after(WRITE_TIMEOUT_SECONDS):
                await self._wire.send_all(data)
        except trio.TooSlowError:
            self._wire.abort()
            raise trio.BrokenResourceError("the client does not read") from None
        except BrokenWire as error:
            raise trio.BrokenResourceError(str(error)) from None

    async def receive_some(self, max_bytes: int) -> bytes:
        """Receive up to ``max_bytes``, none at the end. Raises ``BrokenResourceError``."""
        while True:
            try:
                return await self._wire.receive_some(max_bytes)
            except Interrupted:
                continue
            except BrokenWire as error:
                raise trio.BrokenResourceError(str(error)) from None

    async def send_eof(self) -> None:
        """Say that nothing more will be sent."""
        self._wire.shutdown_write()

    async def aclose(self) -> None:
        """Close."""
        self._wire.close()


class _Connection(TCPServer):
    """One connection, which is over when its client has closed it, and not only when it would have timed out."""

    async def _read_data(self) -> None:
        await super()._read_data()
        await self.idle_task.stop()


class _Plane:
    """The connections of one operator plane, each served by Hypercorn."""

    def __init__(self, app: ASGIFramework) -> None:
        self._wrapper = ASGIWrapper(app)
        self._config = _config()
        self._context = WorkerContext(None)
        self._wires: set[Wire] = set()

    async def handle(self, wire: Wire) -> None:
        """Serve one connection to its end."""
        self._wires.add(wire)
        try:
            stream = cast("trio.SSLStream[trio.SocketStream]", Plug(wire))
            state = cast("LifespanState", ConnectionState({}))
            await _Connection(self._wrapper, self._config, self._context, state, stream)
        finally:
            self._wires.discard(wire)

    def turn_away(self, wire: Wire) -> bytes | None:
        """Return the refusal of one connection too many."""
        return _TURNED_AWAY if len(self._wires) >= MAX_CONNECTIONS else None

    def abort(self) -> None:
        """End all: cancellation alone does not reach a shielded write, the end of its socket does."""
        for wire in list(self._wires):
            wire.abort()


def _crashed(wire: Wire, error: Exception) -> None:
    _LOGGER.warning("connection failed: %s: %s", type(error).__name__, error)


async def serve(
    app: ASGIFramework,
    listeners: Sequence[socket.socket],
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve ``app`` on ``listeners`` until cancelled; then every connection ends at once, stalled or not.

    Raises ``OSError`` when a listener is of no use.
    """
    for sock in listeners:
        _give_up_on_silence(sock)
    plane = _Plane(app)
    async with trio.open_nursery() as connections:
        try:
            await listener.serve(
                listeners,
                plane.handle,
                connections=connections,
                crashed=_crashed,
                turn_away=plane.turn_away,
                task_status=task_status,
            )
        finally:
            plane.abort()


def _give_up_on_silence(sock: socket.socket) -> None:
    """Have the kernel drop connections on which what was sent stays unacknowledged. What is accepted inherits it."""
    option = getattr(socket, "TCP_USER_TIMEOUT", None)
    if option is not None and sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, option, int(WRITE_TIMEOUT_SECONDS * 1000))


def _config() -> HypercornConfig:
    config = HypercornConfig()
    config.accesslog = None
    config.errorlog = _LOGGER
    config.include_server_header = False
    config.keep_alive_timeout = KEEP_ALIVE_SECONDS
    return config
