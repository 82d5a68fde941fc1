"""One session's replay buffer: its held Events in order of position.

Owns the order, the dedupe on ``(source, id)`` and the exact record of what was evicted.

Invariants:

* Items are sorted by key. An Event with a position has that position as its key; a *rider* (an Event of a foreign
  emitter, which holds no position) has the key of the entry it arrived after, stands behind it and is evicted with it.
* ``lost`` is the highest position that was evicted, and whether riders of that very position went with it, so that
  exhaustion is a comparison and never a guess (AEP-0003 §5, §7).
* An Event at or below ``lost`` is never admitted again: the buffer could not say truthfully what it holds.
* A cursor that stands still has something unread before it, unless that was evicted.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, NamedTuple

from aep_relay.hub.positions import before
from aep_relay.protocol.position import MAX_POSITION

if TYPE_CHECKING:
    from aep_relay.protocol.event import Event
    from aep_relay.protocol.position import Position

START: Position = (-1, -1)
"""The key of riders in a session that had no entry yet: before every position."""


class Lost(NamedTuple):
    """What a buffer no longer holds."""

    position: Position
    """Highest evicted position."""
    riders: bool
    """Whether riders of that position are gone as well."""

    def after(self, position: Position) -> bool:
        """Say whether something after ``position`` is gone (AEP-0003 §5)."""
        return position < self.position or (self.riders and position == self.position)


class Cursor:
    """A place in a buffer that survives insertion and eviction around it.

    ``key`` and ``last`` name the item read last, ``last`` by its ``(source, id)`` so that no evicted Event is kept
    alive. ``after`` is set until something beyond it was read and holds the requested position, whose own entries are
    skipped while its riders are not. ``lost`` is what was gone when the cursor was made or read last: each eviction
    makes a new ``Lost``, so its identity tells whether there was one since.
    """

    __slots__ = ("after", "key", "last", "lost", "until")

    def __init__(self, key: Position, *, after: Position | None = None, lost: Lost | None = None) -> None:
        self.key = key
        self.last: tuple[str, str] | None = None
        self.after = after
        self.lost = lost
        self.until: Position | None = None


class SessionBuffer:
    """The held Events of one session."""

    __slots__ = (
        "_admitted",
        "_arrival",
        "_evicted_after",
        "_evicted_last",
        "_head",
        "_items",
        "_keys",
        "_rider_keys",
        "_trimmed",
        "held",
        "lost",
        "session",
        "size_bytes",
    )

    def __init__(self, session: str, lost: Lost | None = None) -> None:
        self.session = session
        self.lost = lost
        self.size_bytes = 0
        self._keys: list[Position] = []
        self._items: list[Event] = []
        self._head = 0
        self.held: dict[tuple[str, str], int] = {}
        """What is held, by ``(source, id)``: the number of its admission. Items of one key stand in this order."""
        self._rider_keys: dict[tuple[str, str], Position] = {}
        """Where each rider is held, by its ``(source, id)``: it does not say so itself."""
        self._admitted = 0
        self._arrival = START
        self._evicted_last: tuple[str, str] | None = None
        self._evicted_after: Lost | None = None
        """What was gone when ``_evicted_last`` went, if that was alone and riders behind it had gone before."""
        self._trimmed: Lost | None = None
        """What was gone when a rider of the only entry had just gone, as long as nothing else has gone since."""

    def __len__(self) -> int:
        return len(self.held)

    def admit(self, event: Event) -> Position | None:
        """Insert ``event`` and return the key it stands at, or None when it is not admitted.

        Not admitted are an Event whose ``(source, id)`` is held and one at or below the eviction mark.
        """
        identity, held = event.key, self.held
        if identity in held:
            return None
        keys = self._keys
        position = event.position
        if position is None:
            position = self._rider_keys[identity] = self._rider_key()
        elif self.lost is not None and position <= self.lost.position:
            return None
        else:
            self._arrival = position
        if not keys or position >= keys[-1]:
            keys.append(position)
            self._items.append(event)
        else:
            at = bisect_right(keys, position, self._head)
            keys.insert(at, position)
            self._items.insert(at, event)
        held[identity] = self._admitted = self._admitted + 1
        self.size_bytes += event.held_bytes
        return position

    def admit_all(self, events: list[Event]) -> bool:
        """Insert ``events``, entries in rising positions, as ``admit`` would one by one.

        False, and nothing is done, unless all of them come behind all that is held and none of them is held.
        """
        keys, first = self._keys, events[0].position
        if not keys or first is None or first <= keys[-1]:
            return False
        number = self._admitted + 1
        numbers = dict(zip([event.key for event in events], range(number, number + len(events)), strict=True))
        if len(numbers) != len(events) or not self.held.keys().isdisjoint(numbers):
            return False
        self.held.update(numbers)
        self._admitted += len(events)
        keys += [event.position for event in events]  # type: ignore[misc]  # entries have one
        self._items += events
        self._arrival = keys[-1]
        self.size_bytes += sum([event.held_bytes for event in events])
        return True

    def _rider_key(self) -> Position:
        if len(self._items) == self._head:
            # Whoever resumes from the highest position there was has not seen it.
            return START if self.lost is None else self.lost.position
        if self._arrival < self._keys[self._head]:
            # The entry it arrived after is gone: behind the newest one nobody who resumes can miss it.
            return self._keys[-1]
        return self._arrival

    def holds(self, identity: tuple[str, str]) -> bool:
        """Say whether an Event of this ``(source, id)`` is held."""
        return identity in self.held

    def evict_oldest(self) -> list[Event]:
        """Evict the oldest entry with its riders and return what went.

        When one entry is all that is left, its riders go one at a time, oldest first, before it does.
        """
        keys, items, head = self._keys, self._items, self._head
        first = items[head]
        position = keys[head]
        if first.position is None:
            self.lost = Lost(position, riders=True)
            return self._forget(head, head + 1)
        end = head + 1
        while end < len(items) and items[end].position is None:
            end += 1
        if end == len(items) and end > head + 1:
            self.lost = Lost(position, riders=True)
            gone = self._forget(head + 1, head + 2)
            self._trimmed = self.lost
            return gone
        riders = end > head + 1 or (self.lost is not None and self.lost == (position, True))
        self.lost = Lost(position, riders)
        return self._forget(head, end)

    def evict(self, least_bytes: int, least_events: int = 0) -> list[Event]:
        """Evict as ``evict_oldest``, again and again until ``least_bytes`` are freed and ``least_events`` gone, would;
        not the last entry, if it is not the only one.

        In one go: evicting thousands one by one takes several times as long.
        """
        keys, items, head = self._keys, self._items, self._head
        end = 0 if least_bytes else self._end_of_entries(least_events)
        if not end:
            end = self._end_of_surplus(least_bytes, least_events)
        if not end:
            return self.evict_oldest()
        position = keys[end - 1]
        first = bisect_left(keys, position, head, end)
        riders = self.lost == (position, True) or any(item.position is None for item in items[first:end])
        self.lost = Lost(position, riders)
        return self._forget(head, end)

    def _end_of_entries(self, number: int) -> int:
        """Return where the first ``number`` items end, if neither they nor what follows them are riders; else 0."""
        end = self._head + number
        first = [item.position for item in self._items[self._head : end + 1]]
        return 0 if len(first) <= number or None in first else end

    def _end_of_surplus(self, least_bytes: int, least_events: int) -> int:
        items, head = self._items, self._head
        end = freed_bytes = 0
        riders_only = True
        for index in range(head, len(items)):
            is_rider = items[index].position is None
            # Riders that stand before every entry go one by one, others with theirs.
            if index > head and (riders_only or not is_rider):
                end = index
                if freed_bytes >= least_bytes and end - head >= least_events:
                    break
            riders_only = riders_only and is_rider
            freed_bytes += items[index].held_bytes
        return end

    def lose(self, position: Position) -> list[Event]:
        """Know from now on that what came before ``position`` is gone, and return what went with it."""
        mark = before(position)
        if mark is None or (self.lost is not None and self.lost.position >= mark):
            return []
        end = bisect_right(self._keys, mark, self._head)
        gone = self._forget(self._head, end) if end > self._head else []
        self.lost = Lost(mark, riders=bool(gone) and gone[-1].position is None)
        return gone

    def _forget(self, start: int, end: int) -> list[Event]:
        items, held = self._items, self.held
        gone = items[start:end]
        for event in gone:
            del held[event.key]
        if self._rider_keys:
            for event in gone:
                self._rider_keys.pop(event.key, None)
        self.size_bytes -= sum([event.held_bytes for event in gone])
        self._evicted_last = gone[-1].key
        self._evicted_after = self._trimmed if start == self._head and len(gone) == 1 else None
        self._trimmed = None
        if start != self._head:
            del items[start:end]
            del self._keys[start:end]
            return gone
        if end == len(items):
            items.clear()
            self._keys.clear()
            self._head = 0
            return gone
        # The front moves by an index, with the list cut now and then: constant cost for each eviction.
        items[start:end] = items[-1:] * len(gone)
        self._head = end
        if end >= 64 and end * 2 >= len(items):
            del items[:end]
            del self._keys[:end]
            self._head = 0
        return gone

    def earliest(self) -> Position:
        """Return the earliest held position; without one, the position after the highest evicted one."""
        for index in range(self._head, len(self._items)):
            if self._items[index].position is not None:
                return self._keys[index]
        return after_lost(self.lost)

    def tail(self) -> Position:
        """Return the key of the last item, ``START`` when nothing is held."""
        return self._keys[-1] if len(self) else START

    def cursor_at_start(self) -> Cursor:
        """Return a cursor at the earliest held Event, which notices whatever is evicted from now on."""
        return Cursor(START if self.lost is None else self.lost.position, lost=self.lost)

    def key_of(self, event: Event) -> Position | None:
        """Return the key at which ``event``, this very delivery, is held; None when it is not."""
        key = event.position
        if key is None:
            # Thousands may be asked for at once: no scan.
            key = self._rider_keys.get(event.key)
        return None if key is None or self._find(event.key, key) < 0 else key

    def cursor_before(self, event: Event, key: Position) -> Cursor | None:
        """Return a cursor whose next item is ``event``, admitted at ``key``; None when it is not held any more."""
        at = self._find(event.key, key)
        return None if at < 0 else self.cursor_at(at)

    def cursor_at(self, place: int) -> Cursor:
        """Return a cursor whose next item is the one at ``place``."""
        if place == self._head:
            return self.cursor_at_start()
        cursor = Cursor(self._keys[place - 1], lost=self.lost)
        cursor.last = self._items[place - 1].key
        return cursor

    def place(self, event: Event, key: Position) -> int:
        """Return where ``event``, or another delivery of it, stands that is held at ``key``, until the next change; -1
        when there is none."""
        return self._held_at(event.key, key)

    def awaits(self, cursor: Cursor, event: Event, key: Position) -> bool:
        """Say whether ``cursor`` has yet to read ``event``, held at ``key``, and does not skip it.

        Which delivery of it is held does not matter: another one, at another ceiling say, has no way past what comes
        before it either, or whoever resumes from it would lose that.
        """
        at = self._held_at(event.key, key)
        return at >= 0 and self.awaits_at(cursor, event, key, at)

    def awaits_at(self, cursor: Cursor, event: Event, key: Position, place: int) -> bool:
        """Say the same of an Event whose ``place`` is known."""
        if event.position is not None and event.position == cursor.after:
            return False
        return place >= self._index(cursor) if key == cursor.key else key > cursor.key

    def is_split(self, cursor: Cursor) -> bool:
        """Say whether an entry at the very position that ``cursor`` read last is still to be read."""
        start = self._index(cursor)
        end = bisect_right(self._keys, cursor.key, start)
        return any(item.position not in (None, cursor.after) for item in self._items[start:end])

    def overtaken(self, cursor: Cursor) -> bool:
        """Say whether something that ``cursor`` has yet to read was evicted."""
        lost = self.lost
        if lost is None or lost is cursor.lost:
            return False
        if cursor.last is None:
            return cursor.after is None or lost.after(cursor.after)
        if cursor.key != lost.position:
            return cursor.key < lost.position
        at = self._find(cursor.last, cursor.key)
        if at < 0:
            trimmed = self._evicted_after
            return cursor.last is not self._evicted_last or (
                trimmed is not None and cursor.lost is not trimmed
            )
        # What was read last is held: of what follows it, riders can have gone before it does.
        return self._trimmed is not None and self._items[at].position is not None

    def _find(self, identity: tuple[str, str], key: Position) -> int:
        """Return the index of the very item that ``identity`` was taken from, -1 when it is gone."""
        at = self._held_at(identity, key)
        return at if at >= 0 and self._items[at].key is identity else -1

    def _held_at(self, identity: tuple[str, str], key: Position) -> int:
        """Return the index of the item of this ``(source, id)`` that stands at ``key``, -1 when there is none."""
        keys, items, ids = self._keys, self._items, self.held
        number = ids.get(identity)
        if number is None:
            return -1
        start = bisect_left(keys, key, self._head)
        end = bisect_right(keys, key, start)
        # Thousands of riders may stand behind one entry.
        index = bisect_left(items, number, start, end, key=lambda item: ids[item.key])
        return index if index < end and items[index].key == identity else -1

    def read(self, cursor: Cursor, max_events: int, max_bytes: int) -> tuple[list[Event], bool]:
        """Read on from ``cursor`` and advance it; return the Events and whether the end was reached.

        At least one Event is read when there is one, so that a large one cannot stop a replay.
        """
        start = self._index(cursor)
        stop = len(self._items)
        if cursor.until is not None:
            stop = bisect_right(self._keys, cursor.until, self._head)
        end = min(stop, start + max_events)
        if start >= end:
            return [], True
        events = self._items[start:end]
        size = 0
        for count, event in enumerate(events, 1):
            size += len(event.raw)
            if size >= max_bytes:
                del events[count:]
                break
        end = start + len(events)
        after = cursor.after
        while after is not None and end < stop and self._items[end].position == after:
            end += 1  # what is skipped is never what a cursor has yet to read
        cursor.key = self._keys[end - 1]
        cursor.last = self._items[end - 1].key
        cursor.lost = self.lost
        if after is not None:
            events = [event for event in events if event.position != after]
            # While riders of the requested position may still come, its own entries stay skipped.
            if cursor.key != after:
                cursor.after = None
        return events, end >= stop

    def _index(self, cursor: Cursor) -> int:
        if cursor.last is not None:
            found = self._find(cursor.last, cursor.key)
            if found >= 0:
                return found + 1
        at = bisect_left(self._keys, cursor.key, self._head)
        # A rider that was read last and is gone had its entry before it, which is held still.
        return at + 1 if self._trimmed and cursor.last is not None else at

    def below(self, position: Position, max_items: int = 1000) -> list[Event]:
        """Return the held entries among the ``max_items`` items below ``position``, highest first."""
        end = bisect_left(self._keys, position, self._head)
        start = max(self._head, end - max_items)
        return [event for event in reversed(self._items[start:end]) if event.position is not None]


def after_lost(lost: Lost | None) -> Position:
    """Return the earliest position that may still come for a session of which nothing is held."""
    if lost is None or lost.position == START:
        return (0, 0)
    epoch, seq = lost.position
    return (epoch, seq + 1) if seq < MAX_POSITION else (epoch + 1, 0)
