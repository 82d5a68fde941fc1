"""All replay buffers, their common bounds, and the memory of sessions that are wholly gone.

Invariants: the sum over all buffers stays within ``max_buffer_bytes`` and ``max_sessions``; a session stays within
``buffer_events`` and ``max_session_bytes``; what exceeds the common bounds is taken from the session that was written
longest ago. A burst exceeds them until its ``trim``, by what ``burst`` lets one be at most. AEP-0003 §5.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b
from typing import TYPE_CHECKING

from aep_relay.hub.buffer import Lost, SessionBuffer, after_lost
from aep_relay.hub.positions import before

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aep_relay.hub.limits import Limits
    from aep_relay.protocol.event import Event
    from aep_relay.protocol.position import Position


MAX_REMEMBERED_CHARS = 128
"""Session names up to this long are remembered as they are when all else of the session is gone."""


class Store:
    """The replay buffers by session name, in the order in which they were last written."""

    __slots__ = (
        "_gone",
        "_last",
        "_sessions",
        "events",
        "evicted_events",
        "limits",
        "size_bytes",
        "watchers",
    )

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.size_bytes = 0
        self.events = 0
        self.evicted_events = 0
        self.watchers: list[Callable[[Event], None]] = []
        """Who is told of each Event that is evicted. Must not change what is held."""
        self._sessions: OrderedDict[str, SessionBuffer] = OrderedDict()
        self._gone: OrderedDict[str | bytes, Lost] = OrderedDict()
        self._last: SessionBuffer | None = None

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[str]:
        return iter(self._sessions)

    def get(self, session: str) -> SessionBuffer | None:
        """Return the buffer of ``session``, or None when nothing of it is held."""
        return self._sessions.get(session)

    def admit(self, event: Event) -> Position | None:
        """Hold ``event`` for replay and return its key in its session's buffer, or None when it is not admitted."""
        session = event.session
        if session is None:
            return None
        buffer = self._last
        if buffer is None or buffer.session != session:
            buffer = self._sessions.get(session)
            if buffer is None:
                buffer = SessionBuffer(session, self._gone.get(_short(session)))
        key = buffer.admit(event)
        if key is None:
            return None
        if buffer is not self._last:
            self._written(buffer)
        self.size_bytes += event.held_bytes
        self.events += 1
        limits = self.limits
        if (
            len(buffer.held) > limits.buffer_events
            or buffer.size_bytes > limits.max_session_bytes
            or self.size_bytes > limits.max_buffer_bytes
        ):
            self._enforce(buffer)
        return key

    def admit_all(self, events: list[Event]) -> bool:
        """Hold ``events``, a burst, if ``SessionBuffer.admit_all`` does; the caller has to ``trim`` then."""
        session = events[0].session
        buffer = self._last
        if buffer is None or buffer.session != session:
            buffer = None if session is None else self._sessions.get(session)
        if buffer is None:
            return False
        size_bytes = buffer.size_bytes
        if not buffer.admit_all(events):
            return False
        if buffer is not self._last:
            self._written(buffer)
        self.size_bytes += buffer.size_bytes - size_bytes
        self.events += len(events)
        return True

    def trim(self) -> None:
        """Evict what exceeds the bounds since the session that was written last was."""
        if self._last is not None:
            self._enforce(self._last)

    def _written(self, buffer: SessionBuffer) -> None:
        self._last = buffer
        session = buffer.session
        if session in self._sessions:
            self._sessions.move_to_end(session)
            return
        self._gone.pop(_short(session), None)
        self._sessions[session] = buffer
        while len(self._sessions) > self.limits.max_sessions:
            oldest = next(iter(self._sessions.values()))
            while oldest.held:
                self._evict(oldest, oldest.size_bytes)
            self._drop(oldest)

    def _enforce(self, buffer: SessionBuffer) -> None:
        limits = self.limits
        while (surplus := len(buffer.held) - limits.buffer_events) > 0:
            self._evict(buffer, least_events=surplus)
        while buffer.size_bytes > limits.max_session_bytes:
            self._evict(buffer, buffer.size_bytes - limits.max_session_bytes)
        if not buffer.held:
            self._drop(buffer)
        while self.size_bytes > limits.max_buffer_bytes and self._sessions:
            oldest = next(iter(self._sessions.values()))
            self._evict(oldest, self.size_bytes - limits.max_buffer_bytes)
            if not oldest.held:
                self._drop(oldest)

    def _evict(self, buffer: SessionBuffer, least_bytes: int = 0, least_events: int = 0) -> None:
        size_bytes = buffer.size_bytes
        one = least_events == 1 and not least_bytes
        gone = buffer.evict_oldest() if one else buffer.evict(least_bytes, least_events)
        self._went(buffer, gone, size_bytes)

    def _went(self, buffer: SessionBuffer, gone: list[Event], size_bytes: int) -> None:
        """Account for ``gone``, evicted from ``buffer``, whose size was ``size_bytes`` before."""
        self.size_bytes -= size_bytes - buffer.size_bytes
        self.events -= len(gone)
        self.evicted_events += len(gone)
        if self.watchers:
            for event in gone:
                for tell in self.watchers:
                    tell(event)

    def _drop(self, buffer: SessionBuffer) -> None:
        session = buffer.session
        if buffer is self._last:
            self._last = None
        del self._sessions[session]
        if buffer.lost is not None:
            self._remember(session, buffer.lost)

    def _remember(self, session: str, lost: Lost) -> None:
        """Remember what is gone of a session of which nothing is held."""
        name = _short(session)
        self._gone[name] = lost
        self._gone.move_to_end(name)
        while len(self._gone) > self.limits.max_evicted_sessions:
            self._gone.popitem(last=False)

    def lose(self, session: str, earliest: Position) -> None:
        """Know from now on that of ``session`` nothing before ``earliest`` can be had, and something was there.

        A relay that this one is fed by has said so. What is held from before is evicted, so that whoever resumes from
        there is told of the loss (AEP-0003 §5).
        """
        buffer = self._sessions.get(session)
        if buffer is not None:
            size_bytes = buffer.size_bytes
            self._went(buffer, buffer.lose(earliest), size_bytes)
            if not len(buffer):
                self._drop(buffer)
            return
        mark, known = before(earliest), self._gone.get(_short(session))
        if mark is not None and (known is None or known.position < mark):
            self._remember(session, Lost(mark, riders=False))

    def holds(self, event: Event) -> bool:
        """Say whether an Event of the same ``(source, id)`` is held."""
        buffer = None if event.session is None else self._sessions.get(event.session)
        return buffer is not None and buffer.holds(event.key)

    def lost(self, session: str) -> Lost | None:
        """Return what is gone of ``session``, None when nothing is."""
        buffer = self._sessions.get(session)
        return self._gone.get(_short(session)) if buffer is None else buffer.lost

    def earliest(self, session: str) -> Position:
        """Return the earliest held position of ``session``, or the one after its highest evicted position."""
        buffer = self._sessions.get(session)
        return after_lost(self._gone.get(_short(session))) if buffer is None else buffer.earliest()


def _short(session: str) -> str | bytes:
    """Return what a session is remembered by: its name, or the digest of a name that is much longer than one."""
    if len(session) <= MAX_REMEMBERED_CHARS:
        return session
    return blake2b(session.encode()).digest()
