"""The composition root: build the relay, start it, drain it, stop it.

Shutdown goes inward: accepting stops, every stream and socket is told and ended, what is not over within
``drain_timeout_seconds`` is cancelled. A second signal ends the process at once.
"""

from __future__ import annotations

import os
import random
import secrets
import signal
import socket
from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING, Protocol

import structlog
import trio

from aep_relay import __version__, process, stderr, systemd
from aep_relay.bindings import cards, router
from aep_relay.bindings.auth import Authority
from aep_relay.bindings.service import Service
from aep_relay.config import inheriting, split_bind
from aep_relay.config.capturing import redactor
from aep_relay.hub.relay import Relay
from aep_relay.journal.wiring import Journal
from aep_relay.protocol.errors import Refusal
from aep_relay.reload import Reloader, watch_expiry
from aep_relay.transport import listener, sockets
from aep_relay.transport.deadlines import Deadlines
from aep_relay.transport.response import refusal
from aep_relay.transport.turn import Turn
from aep_relay.upstream.chain import Chain

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from aep_relay.config import Config
    from aep_relay.transport.wire import Wire

DRAIN_SPREAD_SECONDS = 2.0
"""Over so long, at most, the ends of many connections are spread, so that their peers don't all return at once."""

SPREAD_SECONDS_EACH = 0.002

DRAIN_GROUP = 8
"""So many are ended between two pauses."""

FINISH_SECONDS = 2.0
"""So long upstreams have to confirm what they were sent, when all connections have ended."""

FIRST_REQUEST_SECONDS = 0.5
"""So long a connection that was accepted before the drain has for its first request, which is answered then."""

_TURNED_AWAY = refusal(
    Refusal("limit-exceeded", "this relay has as many connections as it takes"),
    # Said before anything is read, the Origin too, and of no use to a page that may not read anything else.
    [("Access-Control-Allow-Origin", "*")],
)

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class Companion(Protocol):
    """What the relay was started for, and ends with: standard streams, a process."""

    async def run(self, service: Service) -> int:
        """Do what it is for; return the exit code of the whole."""

    def signalled(self, number: int) -> None:
        """Be told of SIGHUP, SIGINT or SIGTERM, in the relay's place: it ends when this has."""


async def serve(
    config: Config,
    reread: Callable[[], Config] | None = None,
    *,
    companion: Companion | None = None,
    task_status: trio.TaskStatus[list[tuple[str, int]]] = trio.TASK_STATUS_IGNORED,
) -> int:
    """Run the relay until SIGINT or SIGTERM, or until ``companion`` ends; return the process's exit code.

    On SIGHUP the configuration that ``reread`` returns is taken over. ``task_status`` gets the addresses of the data
    port once it listens. Raises ``ConfigError`` for files named in ``config`` and for passed sockets that it does not
    allow, and ``OSError`` when it cannot listen.
    """
    manager = systemd.Manager(os.environ)
    descriptors = process.raise_descriptor_limit()
    passed = sockets.open_inherited(os.environ)
    parts = _Parts(config, reread, passed)
    service = parts.service
    listeners = passed or await _open(config)
    with trio.open_signal_receiver(signal.SIGHUP, signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as background:
            parts.start(background)
            async with trio.open_nursery() as connections:
                async with trio.open_nursery() as accepting:
                    await accepting.start(_accept, service, listeners, connections)
                    task_status.started(_listening(service, listeners, descriptors))
                    background.start_soon(_report, manager, service, parts.reloader)
                    code = await _until_over(signals, parts.reloader, service, companion)
                    background.start_soon(_force, signals)
                    service.draining = True
                    manager.stopping(_status(service))
                    accepting.cancel_scope.cancel()
                connections.cancel_scope.deadline = trio.current_time() + service.limits.drain_timeout_seconds
                await drain(service)
            # What the emitters sent last goes up behind them.
            with trio.move_on_after(FINISH_SECONDS):
                await parts.chain.finish()
            background.cancel_scope.cancel()
    log.info("stopped")
    return code


class _Parts:
    """What a relay is made of, put together. Raises ``ConfigError`` for files that ``config`` names.

    With ``passed`` sockets, it is their addresses that have to be allowed, now and whenever ``config`` is re-read.
    """

    def __init__(
        self, config: Config, reread: Callable[[], Config] | None, passed: Sequence[socket.socket]
    ) -> None:
        hosts = tuple(sock.getsockname()[0] for sock in passed if sock.family != socket.AF_UNIX)
        config = inheriting(config, hosts) if passed else config
        inspector = cards.inspector(config.cards)
        relay = Relay(config.limits, instance=secrets.token_hex(8), redact=redactor(config.capture))
        self.service = Service(config, relay, Authority(config.auth, config.tokens), Deadlines())
        self.service.inspector = inspector
        self._journal = Journal(config, relay, self.service.flush)
        self.service.counts = self._journal.counts
        self.chain = Chain(self.service, config.upstreams)
        self.service.links = self.chain.describe
        self.reloader = Reloader(self.service, lambda: inheriting(reread(), hosts) if reread else config)
        self.reloader.add(self.chain.prepare, "upstreams")
        self.reloader.add(self._journal.prepare, "archive", "tail")

    def start(self, background: trio.Nursery) -> None:
        """Start what goes on beside the connections, as long as the relay runs."""
        service = self.service
        background.start_soon(service.deadlines.run)
        background.start_soon(service.attendant.run)
        background.start_soon(service.flush_left_over)
        background.start_soon(_abort_stalled, service)
        background.start_soon(watch_expiry, service)
        background.start_soon(process.collect_now_and_then)
        background.start_soon(self._journal.run)
        background.start_soon(self.reloader.run)
        background.start_soon(self.chain.run)
        if service.config.operator.enabled:
            background.start_soon(_operate, service)


def _listening(
    service: Service, listeners: Sequence[socket.socket], descriptors: int
) -> list[tuple[str, int]]:
    """Say where the relay listens and how many ``descriptors`` it may have; return the addresses."""
    addresses = [sock.getsockname() for sock in listeners]
    service.addresses = addresses
    if addresses:
        log.info(
            "listening",
            version=__version__,
            addresses=[_text(address) for address in addresses],
            needs_token=not service.authority.open,
            descriptors=descriptors,
        )
    return addresses


async def _operate(service: Service) -> None:
    """Run the operator plane, which takes a quarter of a second to import: in a thread, so that nobody waits for it."""
    run = await trio.to_thread.run_sync(_load_operator_plane)
    await run(service)


def _load_operator_plane() -> Callable[[Service], Awaitable[None]]:
    # It brings more modules than all the rest: who does not want it should not wait for them either.
    from aep_relay.ops import plane

    return plane.run


async def _report(manager: systemd.Manager, service: Service, reloader: Reloader) -> None:
    """Tell the service manager how the relay is, as long as it runs."""
    refused = False

    def status() -> str:
        return f"{_status(service)}{'; the configuration read last was refused' if refused else ''}"

    def reloaded(done: bool) -> None:
        nonlocal refused
        refused = not done
        manager.ready(status())

    reloader.begins, reloader.ends = manager.reloading, reloaded
    manager.ready(status())
    await manager.beat(status)


def _status(service: Service) -> str:
    addresses = ", ".join(_text(address) for address in service.addresses)
    doing = "draining" if service.draining else f"listening on {addresses}"
    return f"{doing}; {service.open_connections} connections, {len(service.relay.store)} sessions held"


async def _until_over(
    signals: AsyncIterator[int], reloader: Reloader, service: Service, companion: Companion | None
) -> int:
    """Wait until the relay is to end; return the exit code."""
    if companion is None:
        await _until_told_to_end(signals, reloader)
        return 0
    codes: list[int] = []
    async with trio.open_nursery() as nursery:

        async def accompany() -> None:
            codes.append(await companion.run(service))
            nursery.cancel_scope.cancel()

        nursery.start_soon(accompany)
        async for number in signals:
            companion.signalled(number)
    return codes[0]


async def _until_told_to_end(signals: AsyncIterator[int], reloader: Reloader) -> None:
    async for number in signals:
        if number != signal.SIGHUP:
            log.info("draining", signal=signal.Signals(number).name)
            return
        reloader.ask()


async def _open(config: Config) -> list[socket.socket]:
    listen = config.listen
    listeners: list[socket.socket] = []
    try:
        if listen.host is not None:
            listeners += await sockets.open_tcp(listen.host, listen.port)
        paths = [] if listen.unix is None else [listen.unix]
        for place in map(split_bind, listen.also):
            if isinstance(place, tuple):
                listeners += await sockets.open_tcp(*place)
            elif place is not None:
                paths.append(place)
        for path in paths:
            # In a thread: it may have to wait for another relay that starts in that directory.
            open_unix = partial(sockets.open_unix, path, listen.unix_mode, owner=listen.unix_owner)
            listeners.append(await trio.to_thread.run_sync(open_unix))
    except OSError:
        for sock in listeners:
            sock.close()
        raise
    return listeners


async def _accept(
    service: Service,
    listeners: list[socket.socket],
    connections: trio.Nursery,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    def crashed(wire: Wire, error: Exception) -> None:
        log.error("connection failed", remote=wire.peer_name, exc_info=error)

    def overloaded(error: OSError) -> None:
        log.error("cannot accept connections", error=error.strerror)

    def turn_away(wire: Wire) -> bytes | None:
        return None if service.admit() else _TURNED_AWAY

    async def handle(wire: Wire) -> None:
        await router.serve(service, wire)

    await listener.serve(
        listeners,
        handle,
        connections=connections,
        crashed=crashed,
        overloaded=overloaded,
        turn_away=turn_away,
        task_status=task_status,
    )


async def _abort_stalled(service: Service) -> None:
    while True:
        await trio.sleep(min(5.0, service.limits.stalled_timeout_seconds / 4))
        while service.relay.abort_stalled(trio.current_time()):
            await trio.lowlevel.checkpoint()


async def _force(signals: AsyncIterator[int]) -> None:
    """End the process at once on the next signal to end, with the exit code that names it."""
    async for number in signals:
        if number != signal.SIGHUP:
            stderr.finish()
            os._exit(128 + number)


async def drain(service: Service) -> None:
    """End every connection on purpose, each with its farewell (AEP-0003 §3.5.4), spread by jitter."""
    relay = service.relay
    await service.flush()
    await service.end_idle()
    peers = list(relay.peers.values())
    random.shuffle(peers)
    spread = min(
        DRAIN_SPREAD_SECONDS, service.limits.drain_timeout_seconds / 2, len(peers) * SPREAD_SECONDS_EACH
    )
    for start in range(0, len(peers), DRAIN_GROUP):
        turn = Turn()
        for peer in peers[start : start + DRAIN_GROUP]:
            relay.close(peer, "shutdown", 1001)
            if turn.over:
                # To work out what was delivered may take some milliseconds each.
                await turn.pass_on()
        await trio.sleep(spread / len(peers) * DRAIN_GROUP * 2 * random.random())  # noqa: S311
    if service.unused:
        await trio.sleep(min(FIRST_REQUEST_SECONDS, service.limits.drain_timeout_seconds / 2))
        await service.end_idle(unused=True)


def _text(address: object) -> str:
    if isinstance(address, tuple):
        host, port = address[0], address[1]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return f"unix:{os.fsdecode(address)}" if isinstance(address, str | bytes) else str(address)
