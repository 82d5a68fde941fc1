"""Sockets that accept, and what becomes of what they accept: a wire each, with a handler.

``serve`` owns its listeners (``sockets`` opens them) and closes them when it ends. Connections live in a
nursery of the caller's, so that accepting can stop while they go on::

    async with trio.open_nursery() as connections:
        async with trio.open_nursery() as accepting:
            await accepting.start(partial(serve, listeners, handler, connections=connections, ...))

Invariants: whatever goes wrong with one connection, accepting goes on: a lack of descriptors or memory is
waited out, and an exception of a handler goes to a hook and no further. A wire is closed when its handler
ends, however it ends.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import trio

from aep_relay.transport.sockets import open_inherited, open_tcp, open_unix
from aep_relay.transport.wire import BrokenWire, Wire, linger

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, Sequence
    from typing import NoReturn

__all__ = ["open_inherited", "open_tcp", "open_unix", "serve"]

ACCEPTS_PER_TURN = 64
"""So many connections are accepted before other tasks get a turn."""
OVERLOAD_PAUSE_SECONDS = 0.1
OVERLOAD_REPORT_SECONDS = 1.0
REFUSED_LINGER_SECONDS = 1.0
MAX_LINGERING_REFUSALS = 64
"""So many connections that were turned away may wait for their peer to take the answer."""

_MAX_REFUSED_BYTES = 64 * 1024
_OVERLOAD = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
# What accept says when the listener itself is of no use. Anything else concerns the connection it would have
# been.
_LISTENER_IS_BROKEN = frozenset({errno.EBADF, errno.EFAULT, errno.EINVAL, errno.ENOTSOCK, errno.EOPNOTSUPP})


def _ignore_overload(error: OSError) -> None:
    """Tell nobody."""


def _admit_all(wire: Wire) -> bytes | None:
    """Turn nobody away."""
    return None


async def serve(
    listeners: Sequence[socket.socket],
    handler: Callable[[Wire], Awaitable[None]],
    *,
    connections: trio.Nursery,
    crashed: Callable[[Wire, Exception], None],
    overloaded: Callable[[OSError], None] = _ignore_overload,
    turn_away: Callable[[Wire], bytes | None] = _admit_all,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Accept from ``listeners`` until cancelled, and close them then.

    Each connection gets a task in ``connections`` that runs ``handler``. ``crashed`` is told what a handler
    raised; ``overloaded`` that the system has no descriptors or memory for another connection, at most once
    every ``OVERLOAD_REPORT_SECONDS``. ``turn_away`` may answer with the bytes a connection is sent instead of
    being served. Raises ``OSError`` when a listener is of no use.
    """
    acceptor = _Acceptor(handler, connections, crashed, overloaded, turn_away)
    try:
        async with trio.open_nursery() as nursery:
            for listener in listeners:
                listener.setblocking(False)
                nursery.start_soon(acceptor.accept_from, listener)
            task_status.started()
    finally:
        for listener in listeners:
            listener.close()


class _Acceptor:
    """What the listeners of one ``serve`` share."""

    def __init__(
        self,
        handler: Callable[[Wire], Awaitable[None]],
        connections: trio.Nursery,
        crashed: Callable[[Wire, Exception], None],
        overloaded: Callable[[OSError], None],
        turn_away: Callable[[Wire], bytes | None],
    ) -> None:
        self._handler = handler
        self._connections = connections
        self._crashed = crashed
        self._overloaded = overloaded
        self._turn_away = turn_away
        self._lingering = 0
        self._next_report = 0.0

    async def accept_from(self, listener: socket.socket) -> NoReturn:
        while True:
            await trio.lowlevel.wait_readable(listener)
            try:
                for _ in range(ACCEPTS_PER_TURN):
                    self._start(Wire(listener.accept()[0]))
            except BlockingIOError:
                continue
            except OSError as error:
                if error.errno in _LISTENER_IS_BROKEN:
                    raise
                if error.errno in _OVERLOAD:
                    self._report(error)
                    await trio.sleep(OVERLOAD_PAUSE_SECONDS)

    def _start(self, wire: Wire) -> None:
        refusal = self._turn_away(wire)
        if refusal is None:
            self._connections.start_soon(self._run, wire)
        elif self._lingering < MAX_LINGERING_REFUSALS:
            self._lingering += 1
            self._connections.start_soon(self._refuse, wire, refusal)
        else:
            self._say(wire, refusal)
            wire.close()

    def _report(self, error: OSError) -> None:
        now = trio.current_time()
        if now >= self._next_report:
            self._next_report = now + OVERLOAD_REPORT_SECONDS
            self._overloaded(error)

    async def _run(self, wire: Wire) -> None:
        try:
            await self._handler(wire)
        except* Exception as group:
            self._crashed(wire, _sole(group))
        finally:
            wire.close()

    async def _refuse(self, wire: Wire, refusal: bytes) -> None:
        try:
            self._say(wire, refusal)
            await linger(wire, seconds=REFUSED_LINGER_SECONDS, max_bytes=_MAX_REFUSED_BYTES)
        finally:
            wire.close()
            self._lingering -= 1

    def _say(self, wire: Wire, refusal: bytes) -> None:
        try:
            # What has come already is taken, so that closing does not reset what is being said.
            wire.receive_nowait()
            wire.send(refusal)
        except BrokenWire:
            # Then there is no one to turn away.
            pass


def _sole(group: ExceptionGroup[Exception]) -> Exception:
    """Return the one exception that ``group`` stands for, or ``group`` itself."""
    error: Exception = group
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
