"""Following a relay's Events: live ones over WebSocket, across interruptions without a gap.

A connection resumes each session that has been heard of after its last position, which the protocol makes exact
(AEP-0003 §7). Sessions that began while the connection was lost are not among those: they are read from what the
relay holds, before anything that came live in the meantime, at the cost of a transfer of it all. Invariants: an Event
is handed on once as long as it is remembered, and noted as processed after that; what a relay no longer holds is told,
not passed over.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

import trio

from aep_relay.client.backoff import STABLE_SECONDS, Backoff
from aep_relay.client.errors import Refused, TimedOut, Unreachable
from aep_relay.client.history import gone, held, points
from aep_relay.client.positions import Positions
from aep_relay.client.socket import open_socket
from aep_relay.client.times import moment
from aep_relay.protocol.event import Event

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from aep_relay.client.socket import Socket
    from aep_relay.client.target import Target
    from aep_relay.protocol.position import Position

    Points = Sequence[tuple[str, Position]]

POINTS_IN_FRAME: Final = 500
POINTS_IN_URL: Final = 50
SETTLE_SECONDS: Final = 0.5
"""So often, at least, what was processed is made durable."""

_PASSING = ("draining", "limit-exceeded")
"""Refusals of a relay that took this client before."""


class Sink(Protocol):
    """Who follows."""

    def event(self, event: Event) -> None:
        """Process one Event."""

    def tell(self, text: str) -> None:
        """Be told what goes on."""

    def settle(self) -> None:
        """Make durable what has been processed."""


@dataclass(slots=True)
class Follower:
    """Follows ``filter`` at ``capture``. ``positions`` is what has been had already, and is kept up to date."""

    target: Target
    filter: dict[str, object]
    capture: str | None
    sink: Sink
    positions: Positions = field(default_factory=Positions)
    since: datetime | None = None
    """Of sessions that have not been heard of, only Events of this time and later; None: from their start."""
    from_all: bool = False
    resuming: bool = False
    """Whether there is a time before, from which sessions may be unknown."""
    insistent: bool = False
    """Whether to go on trying although no connection has been made yet."""
    _instance: str = ""
    _connected: bool = False
    _settled_at: float = 0.0

    async def follow(self) -> None:
        """Follow until cancelled. Raises ``Refused``, and ``Unreachable`` or ``TimedOut`` at the first connection."""
        backoff = Backoff()
        while True:
            began = trio.current_time()
            try:
                async with open_socket(self.target) as socket:
                    await self._begin(socket)
                    self._connected = True
                    await self._read(socket)
            except (Unreachable, TimedOut) as error:
                if not self._connected and not self.insistent:
                    raise
                problem = error.message
            except Refused as error:
                if not self._connected or error.code not in _PASSING:
                    raise
                problem = error.message
            self.sink.settle()
            if trio.current_time() - began >= STABLE_SECONDS:
                backoff.succeeded()
            wait_seconds = backoff.next_seconds()
            self.sink.tell(f"{problem}; trying again in {wait_seconds:.1f} s")
            await trio.sleep(wait_seconds)

    async def replay(self) -> None:
        """Read what is held and has not been had. Raises ``Refused``, ``Unreachable`` and ``TimedOut``."""
        known = self.positions.resume_from()
        for at in range(0, len(known), POINTS_IN_URL):
            part = known[at : at + POINTS_IN_URL]
            filter_ = self._narrowed(part)
            await held(self.target, filter_, self._take, self.sink.tell, from_=part, capture=self.capture)
        if self.from_all or self.resuming:
            await self._unknown(known)
        self.sink.settle()

    async def _begin(self, socket: Socket) -> None:
        restarted = self._instance and socket.instance != self._instance
        self._instance = socket.instance
        known = self.positions.resume_from()
        if not self.resuming and not known:
            await socket.subscribe(self.filter, "all" if self.from_all else None, self.capture)
        else:
            await self._resume(socket, known)
            if self.resuming:
                await self._unknown(known)
        if self._connected:
            lost = "; it was restarted, and may have lost what it held" if restarted else ""
            self.sink.tell(f"connected again to {self.target.url}{lost}")
        self.resuming = True

    async def _resume(self, socket: Socket, known: Points) -> None:
        size = POINTS_IN_FRAME
        while True:
            try:
                first = points(known[:size]) or None
                await socket.subscribe(self.filter, first, self.capture, id_="main")
                for at in range(size, len(known), size):
                    part = known[at : at + size]
                    await socket.subscribe(self._narrowed(part), points(part), self.capture, id_=f"more-{at}")
                return
            except Refused as error:
                if error.code != "limit-exceeded" or size == 1 or len(known) < 2:
                    raise
                size = min(size, len(known)) // 2

    async def _unknown(self, known: Points) -> None:
        """Read the sessions that are not ``known`` from their start."""
        names = {name for name, _ in known}

        def take(event: Event) -> None:
            if event.session not in names and self._is_recent(event):
                self._take(event)

        await held(self.target, self.filter, take, self.sink.tell, capture=self.capture)

    def _narrowed(self, part: Points) -> dict[str, object]:
        return {**self.filter, "session": [name for name, _ in part]}

    def _is_recent(self, event: Event) -> bool:
        if self.since is None:
            return True
        when = moment(event.time)
        return when is None or when >= self.since

    async def _read(self, socket: Socket) -> None:
        while True:
            item = socket.receive_nowait()
            if item is None:
                self._settle()
                item = await socket.receive()
            elif trio.current_time() - self._settled_at > SETTLE_SECONDS:
                self._settle()
                await trio.lowlevel.checkpoint()
            if isinstance(item, Event):
                self._take(item)
            else:
                self._frame(item)

    def _settle(self) -> None:
        self._settled_at = trio.current_time()
        self.sink.settle()

    def _take(self, event: Event) -> None:
        if self.positions.is_new(event):
            self.sink.event(event)
            self.positions.note(event)

    def _frame(self, frame: dict[str, object]) -> None:
        kind = frame.get("type")
        if kind == "replay-exhausted":
            earliest = frame.get("earliest")
            found = earliest if isinstance(earliest, dict) else {}
            self.sink.tell(gone(str(frame.get("session")), f"{found.get('epoch')}:{found.get('seq')}"))
        elif kind == "error":
            self.sink.tell(f"the relay says {frame.get('code')}: {frame.get('detail')}")
        elif kind == "unreadable":
            self.sink.tell(f"an Event that can't be read is left out: {frame.get('detail')}")
