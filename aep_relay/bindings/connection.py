"""One live connection between hub and wire: the hub's ``Sink`` over a ``Wire``.

Invariants: at most one task writes what is pending, and there is none while nothing is; ``end`` runs once, whoever
began it, and takes at most ``closing_timeout_seconds`` before the wire is aborted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from aep_relay.hub.outbox import BROKEN
from aep_relay.hub.peer import NOWHERE
from aep_relay.transport.deadlines import SWEEP_SECONDS
from aep_relay.transport.wire import BrokenWire, linger

if TYPE_CHECKING:
    from aep_relay.bindings.auth import Holder
    from aep_relay.bindings.service import Service
    from aep_relay.hub.peer import Peer
    from aep_relay.protocol.framing import Framing
    from aep_relay.transport.wire import Wire

LINGER_SECONDS = 1.0
LINGER_BYTES = 16 * 1024 * 1024


class Connection:
    """A stream or socket that stays: what the hub sends through, and how it ends."""

    __slots__ = (
        "_nursery",
        "_peer",
        "_writing",
        "_written",
        "close_code",
        "close_reason",
        "deadline",
        "heard_at",
        "holder",
        "service",
        "wire",
    )

    def __init__(
        self, service: Service, wire: Wire, nursery: trio.Nursery, binding: str, framing: Framing
    ) -> None:
        self.service = service
        self.wire = wire
        self.close_reason: str | None = None
        """Why this side ends the connection, None as long as it does not."""
        self.close_code = 1000
        self.heard_at = trio.current_time()
        self.deadline = self.heard_at + self.interval_seconds
        """When the next heartbeat is due (``deadlines.Watched``)."""
        self.holder: Holder | None = None
        """Whose token opened it; None where there are no tokens, as on a pipe."""
        self._nursery = nursery
        self._writing = False
        self._written: trio.Event | None = None
        self._peer = service.relay.attach(binding, framing, self)
        self._peer.name = wire.peer_name
        service.deadlines.watch(self)

    @property
    def peer(self) -> Peer:
        """The connection as the hub knows it."""
        return self._peer

    @property
    def interval_seconds(self) -> float:
        """Between heartbeats, less what the timer may be late, and a little for a busy event loop."""
        return max(0.0, self.service.limits.ping_interval_seconds - 1.25 * SWEEP_SECONDS)

    def belong_to(self, holder: Holder) -> None:
        """Do what ``holder`` may do, and end when it does."""
        self.holder = holder
        self._peer.grants = holder.grants
        holder.connections.add(self)

    def detach(self) -> None:
        """Leave the hub, at once and for good."""
        if self.holder is not None:
            self.holder.connections.discard(self)
        self.service.deadlines.forget(self)
        if self._peer.outbox:
            # Whoever reads on must not take a torn frame for the end.
            self.wire.abort()
        self.service.relay.detach(self._peer)
        # Whatever ends leaves no cycle behind: full collections are rare.
        self._peer.sink = NOWHERE

    # hub.peer.Sink

    def send(self, data: bytes | memoryview) -> int:
        """Hand ``data`` to the socket without waiting (``Sink``)."""
        try:
            return self.wire.send(data)
        except BrokenWire:
            self.interrupt()
            return BROKEN

    def wake(self) -> None:
        """Write what is pending as the socket takes it (``Sink``)."""
        if not self._writing:
            self._writing = True
            self._nursery.start_soon(self._write)

    def close(self, reason: str, code: int) -> None:
        """Begin to end the connection; its reader does the rest (``Sink``)."""
        if self.close_reason is None:
            self.close_reason = reason
            self.close_code = code
            self.interrupt()

    def abort(self, reason: str) -> None:
        """Drop the connection (``Sink``)."""
        if self.close_reason is None:
            self.close_reason = reason
        self.interrupt()
        self.wire.abort()

    def interrupt(self) -> None:
        """Call the reader off whatever it waits for: there is news of the connection itself."""
        self.wire.interrupt()

    # deadlines.Watched

    def fall_due(self, now: float) -> None:
        """Send a heartbeat, or end a connection that has been silent for too long."""
        self.deadline = now + self.interval_seconds
        self.heartbeat(now)

    def heartbeat(self, now: float) -> None:
        """What is due once every ``ping_interval_seconds``, at ``now``; bindings say what."""

    async def _write(self) -> None:
        service, peer = self.service, self._peer
        service.writers += 1
        try:
            while service.relay.drain_peer(peer, service.writers):
                if peer.outbox:
                    service.writers -= 1
                    try:
                        await self.wire.wait_writable()
                    finally:
                        service.writers += 1
                else:
                    await trio.lowlevel.checkpoint()
        except BrokenWire:
            self.interrupt()
        finally:
            service.writers -= 1
            self._writing = False
            if self._written is not None:
                self._written.set()

    async def end(self, farewell: bytes) -> None:
        """Hand over what the hub still has for the peer, then ``farewell``, and close."""
        if not self._peer.outbox.sent_bytes:
            # Not even the head of the response was taken: there is nothing that a farewell could follow.
            self.wire.abort()
            return
        if farewell:
            self._peer.outbox.force(farewell)
        self._written = trio.Event()
        self.wake()
        with trio.move_on_after(self.service.limits.closing_timeout_seconds):
            await self._written.wait()
        if self._peer.outbox:
            self.wire.abort()
        else:
            await linger(self.wire, seconds=LINGER_SECONDS, max_bytes=LINGER_BYTES)
