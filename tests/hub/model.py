"""What the relay holds and what a replay has yet to read, written down naively: lists, sets and full scans."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aep_relay.protocol.event import HELD_OVERHEAD_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aep_relay.hub.limits import Limits
    from aep_relay.protocol.event import Event
    from aep_relay.protocol.position import Position

BEFORE_ALL: Position = (-1, -1)


@dataclass(eq=False)
class Item:
    """A held Event and where it stands."""

    event: Event
    key: Position

    @property
    def is_rider(self) -> bool:
        return self.event.position is None


class NaiveStore:
    """The replay buffers by the letter of the invariants."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.sessions: dict[str, list[Item]] = {}
        """In the order in which they were last written."""
        self.evicted: dict[str, list[Item]] = {}
        self._newest: dict[str, Item] = {}
        """The entry that arrived last."""

    def held(self, session: str | None) -> list[Item]:
        return [] if session is None else self.sessions.get(session, [])

    def insert(self, event: Event) -> Item | None:
        """Admit ``event``, without regard to bounds."""
        session = event.session
        if session is None:
            return None
        items = self.held(session)
        lost = self.lost(session)
        if any(item.event.key == event.key for item in items):
            return None
        if event.position is None:
            item = Item(event, self._rider_key(session, items, lost))
        elif lost is not None and event.position <= lost:
            return None
        else:
            item = self._newest[session] = Item(event, event.position)
        at = sum(other.key <= item.key for other in items)
        self.sessions.pop(session, None)
        self.sessions[session] = [*items[:at], item, *items[at:]]
        return item

    def _rider_key(self, session: str, items: list[Item], lost: Position | None) -> Position:
        if not items:
            return BEFORE_ALL if lost is None else lost
        newest = self._newest.get(session)
        if newest is None:
            return items[-1].key
        return newest.key if newest in items else items[-1].key

    def enforce(self, session: str) -> Iterator[Item]:
        """Evict what exceeds the bounds after ``session`` was written."""
        limits = self.limits
        while len(self.sessions) > limits.max_sessions:
            yield from self._evict(next(iter(self.sessions)))
        while len(self.held(session)) > limits.buffer_events or size_bytes(self.held(session)) > (
            limits.max_session_bytes
        ):
            yield from self._evict(session)
        while sum(map(size_bytes, self.sessions.values())) > limits.max_buffer_bytes:
            yield from self._evict(next(iter(self.sessions)))

    def _evict(self, session: str) -> list[Item]:
        items = self.sessions[session]
        riders = 0
        while riders + 1 < len(items) and items[riders + 1].is_rider:
            riders += 1
        if items[0].is_rider:
            gone = items[:1]
        elif riders and riders + 1 == len(items):
            gone = items[1:2]
        else:
            gone = items[: riders + 1]
        left = [item for item in items if item not in gone]
        self.sessions[session] = left
        if not left:
            del self.sessions[session]
        self.evicted.setdefault(session, []).extend(gone)
        return gone

    def lost(self, session: str) -> Position | None:
        """The highest position that was evicted."""
        return max((item.key for item in self.evicted.get(session, [])), default=None)

    def exhausted(self, session: str, position: Position) -> bool:
        return any(follows(item, position) for item in self.evicted.get(session, []))

    def earliest(self, session: str) -> Position:
        for item in self.held(session):
            if not item.is_rider:
                return item.key
        lost = max((item.key for item in self.evicted.get(session, [])), default=BEFORE_ALL)
        return (0, 0) if lost == BEFORE_ALL else (lost[0], lost[1] + 1)


def size_bytes(items: list[Item]) -> int:
    return sum(len(item.event.raw) + HELD_OVERHEAD_BYTES for item in items)


def follows(item: Item, position: Position) -> bool:
    """Say whether who resumes after ``position`` is owed ``item``: riders of that very position, too."""
    return item.key > position or (item.key == position and item.is_rider)


@dataclass(eq=False)
class NaiveCursor:
    """What a replay has yet to read of one session, Event by Event."""

    after: Position | None
    unread: set[Item]
    read: set[Item] = field(default_factory=set)
    until: Position | None = None
    begun: bool = False
    overtaken: bool = False
    """Whether something unread was evicted, and that has not been said yet."""

    def inserted(self, item: Item, items: list[Item]) -> None:
        """``item`` is unread if nothing behind it was read already."""
        asked = self.after is None or follows(item, self.after)
        later = items[items.index(item) + 1 :]
        if asked and self._before_end(item) and not any(other in self.read for other in later):
            self.unread.add(item)

    def evicted(self, item: Item) -> None:
        self.read.discard(item)
        # Until it has read something, a cursor stands for the requested position.
        requested = not self.begun and self.after is not None and follows(item, self.after)
        if item in self.unread or requested:
            self.unread.discard(item)
            self.overtaken = True

    def skip_lost(self, items: list[Item]) -> None:
        """Go on from the earliest held Event."""
        self.after = None
        self.begun = True
        self.overtaken = False
        self.read.clear()
        self.unread = set(filter(self._before_end, items))

    def read_through(self, item: Item, items: list[Item]) -> None:
        self.begun = True
        passed = items[: items.index(item) + 1]
        self.unread.difference_update(passed)
        self.read.update(passed)

    def next_items(self, items: list[Item], wanted: Callable[[Event], bool]) -> list[Item]:
        return [item for item in items if item in self.unread and wanted(item.event)]

    def _before_end(self, item: Item) -> bool:
        return self.until is None or item.key <= self.until
