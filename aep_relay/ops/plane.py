"""The operator plane as a whole: its binds, its exception barrier, its restarts.

Invariants: ``run`` raises nothing but ``Cancelled`` and ends at once when it is cancelled, stalled readers or not;
whatever happens here costs the data plane nothing but the time it takes. A bind that is taken is reported and tried
again; the relay goes on without it.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import structlog
import trio

from aep_relay.ops import access, app, server
from aep_relay.ops.observer import Observer
from aep_relay.transport import sockets

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aep_relay.ops.observed import Observed

    Open = Callable[[], Awaitable[list[socket.socket]]]

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0
STABLE_SECONDS = 60.0
"""Having served for so long, the next restart comes soon again."""

UNIX_MODE = 0o600

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


async def run(service: Observed) -> None:
    """Serve the operator plane of ``service`` until cancelled; do nothing when it is switched off."""
    operator = service.config.operator
    if not operator.enabled:
        return
    observer = Observer(service)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_again_and_again, "observer", observer.run)
        host, path = operator.host, operator.unix
        if host is not None:

            async def open_tcp() -> list[socket.socket]:
                return await sockets.open_tcp(host, operator.port)

            nursery.start_soon(_again_and_again, "tcp", lambda: _serve(observer, open_tcp))
        if path is not None:

            async def open_unix() -> list[socket.socket]:
                # Waits for whoever else starts in that directory.
                return [await trio.to_thread.run_sync(sockets.open_unix, path, UNIX_MODE)]

            nursery.start_soon(_again_and_again, "unix", lambda: _serve(observer, open_unix))


async def _serve(observer: Observer, open_: Open) -> None:
    listeners = await open_()
    bound = [sock.getsockname() for sock in listeners]
    observer.service.own_origins |= access.own_origins(observer.service.config.operator.host, bound)
    log.info("operator plane listening", addresses=[_address(address) for address in bound])
    unix = all(sock.family == socket.AF_UNIX for sock in listeners)
    await server.serve(app.build(observer, unix=unix), listeners)


def _address(address: object) -> str:
    if isinstance(address, tuple):
        host, port = address[0], address[1]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return f"unix:{os.fsdecode(address)}" if isinstance(address, str | bytes) else str(address)


async def _again_and_again(part: str, work: Callable[[], Awaitable[None]]) -> None:
    """Do ``work``, again after a pause whenever it fails: the exception barrier of this plane."""
    pause_seconds = FIRST_PAUSE_SECONDS
    while True:
        began = trio.current_time()
        try:
            await work()
        except* OSError as group:
            log.warning(
                "operator plane cannot listen; the relay goes on without it",
                part=part,
                error=_text(group),
                remedy="set operator.port, or operator.enabled = false, in the configuration",
            )
        except* Exception as group:
            log.error("operator plane failed; the relay goes on without it", part=part, exc_info=group)
        if trio.current_time() - began >= STABLE_SECONDS:
            pause_seconds = FIRST_PAUSE_SECONDS
        await trio.sleep(pause_seconds)
        pause_seconds = min(pause_seconds * 2, LONGEST_PAUSE_SECONDS)


def _text(group: BaseExceptionGroup[OSError]) -> str:
    return "; ".join(str(error) for error in group.exceptions)
