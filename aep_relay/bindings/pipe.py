"""The hub's ``Sink`` over a pipe: lines out, one or more whole ones with each write (AEP-0003 §3.1).

Invariants: one write is under way at a time, and the next takes what has queued up since; no line is cut in two but by
the pipe itself; a pipe that breaks ends the peer and nothing else.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import trio

from aep_relay.hub.outbox import BROKEN
from aep_relay.protocol.framing import Framing
from aep_relay.transport import large

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aep_relay.hub.peer import Peer
    from aep_relay.hub.relay import Relay

_NOBODY_THERE = (errno.EPIPE, errno.ECONNRESET, errno.EBADF)


class Pipe:
    """One peer that reads lines."""

    def __init__(self, relay: Relay, binding: str, write: Callable[[bytes], Awaitable[None]]) -> None:
        self._relay = relay
        self._write = write
        self.translate: Callable[[bytes], bytes] | None = None
        """Turns whole lines, as the hub has them, into what is written; None where that is the same."""
        self._data: bytes | None = None
        self._more = trio.Event()
        self._moved = trio.Event()
        self._broken = False
        self.over = trio.Event()
        """Set when the peer is to end or has ended."""
        self.reason: str | None = None
        """Why the hub ended it, ``broken`` if the pipe did; None as long as neither has."""
        self.problem: str | None = None
        """Why it broke, if not because nobody reads it any more: a full disk, say."""
        self.peer: Peer = relay.attach(binding, Framing.JSONL, self)
        self.peer.patient = True

    # hub.peer.Sink

    def send(self, data: bytes | memoryview) -> int:
        """Take ``data`` to be written, unless something is (``Sink``)."""
        if self._broken:
            return BROKEN
        if self._data is not None:
            return 0
        self._data = bytes(data)
        self._more.set()
        return len(self._data)

    def wake(self) -> None:
        """Have what is pending written: the writer looks for it whenever it is done (``Sink``)."""
        self._more.set()

    def close(self, reason: str, code: int) -> None:
        """End the peer (``Sink``)."""
        self.reason = self.reason or reason
        self.over.set()

    def abort(self, reason: str) -> None:
        """End the peer at once (``Sink``)."""
        self._broken = True
        self.close(reason, 0)

    @property
    def backlog_bytes(self) -> int:
        """What is still to be written."""
        return self.peer.outbox.queued_bytes + len(self._data or b"")

    async def run(self) -> None:
        """Write what the hub has for the peer, until cancelled or the pipe breaks."""
        while True:
            while self._data is None:
                if self._relay.drain_peer(self.peer) and self._data is None:
                    await trio.lowlevel.checkpoint()
                elif self._data is None:
                    self._moved.set()
                    self._more = trio.Event()
                    await self._more.wait()
            data, translate = self._data, self.translate
            if translate is not None:
                large_ = len(data) >= large.LARGE_BYTES
                data = await large.aside(translate, data) if large_ else translate(data)
            try:
                await self._write(data)
            except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
                self._broken = True
                self._data = None
                self._moved.set()
                if isinstance(error, OSError) and error.errno not in _NOBODY_THERE:
                    self.problem = error.strerror or "it cannot be written"
                self.close("broken", 0)
                return
            self._data = None
            self._moved.set()

    async def below(self, size_bytes: int) -> None:
        """Wait until no more than ``size_bytes`` are still to be written, or the pipe is broken."""
        while self.backlog_bytes > size_bytes and not self._broken:
            self._moved = trio.Event()
            await self._moved.wait()

    async def finish(self) -> None:
        """Wait until everything is written, replay included, or the pipe is broken."""
        while (self.backlog_bytes or self.peer.replaying) and not self._broken and self.peer.closing is None:
            self._moved = trio.Event()
            self._more.set()
            await self._moved.wait()
        while self._data is not None and not self._broken:
            self._moved = trio.Event()
            await self._moved.wait()

    def detach(self) -> None:
        """Leave the hub; once is enough."""
        if self.peer.id in self._relay.peers:
            self._relay.detach(self.peer)
