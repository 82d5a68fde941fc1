"""What has to go up and is not confirmed yet: pure state, nothing here waits.

An Event that was taken in is *live* in a lane (the way it goes up) until its flight is confirmed. When a lane is down,
or too much is unconfirmed, a session is *behind* instead: nothing of it is kept but a cursor into its replay buffer,
from which it goes on later. What is evicted from there before it was sent is kept by reference, within a bound.

Invariants: an Event that the buffers or this ledger hold is never given up; ``debug`` and ``info`` are given up first,
and whatever is given up is counted. What is kept is charged for as in the buffers, and bounded. Each session goes up in
order: by one lane at a time, the next one waits for what the last one has in flight. Duplicates are legal, losses are
not: where it is not known whether an Event arrived, it is sent again. AEP-0003 §8.4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aep_relay.hub.replay import overtaken
from aep_relay.protocol.event import Shape
from aep_relay.protocol.registry import SEVERITIES
from aep_relay.upstream.kept import NOTICE, Kept
from aep_relay.upstream.lane import Behind, Flight

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aep_relay.hub.store import Store
    from aep_relay.protocol.event import Event
    from aep_relay.upstream.kept import Refs
    from aep_relay.upstream.lane import Lane


class Ledger:
    """All that one upstream is still owed."""

    def __init__(
        self,
        store: Store,
        buffer_bytes: int,
        *,
        matches: Callable[[Event], bool],
        is_fed: Callable[[str], bool] = lambda session: False,
    ) -> None:
        self._store = store
        self._matches = matches
        self._is_fed = is_fed
        """Whether a session comes down from the same upstream: then its buffer holds what must not go up again."""
        self._max_live_bytes = buffer_bytes // 2
        self.kept = Kept(buffer_bytes // 2, self._shed)
        self.live_bytes = 0
        """Of what is pending and in flight."""
        self.behind: dict[str, Behind] = {}
        self.given_up_events = [0] * len(SEVERITIES)
        """Events that will not go up, by the rank of their severity."""
        self.resent_events = 0
        """Events that were sent and not confirmed, so that they are sent again."""
        self.confirmed_events = 0
        self._routes: dict[str, Lane] = {}
        store.watchers.append(self._evicted)

    def close(self) -> None:
        """Watch the buffers no longer."""
        self._store.watchers.remove(self._evicted)

    def change(self, buffer_bytes: int, matches: Callable[[Event], bool]) -> None:
        """Go on within another bound, with another filter for what is read from the buffers."""
        self._matches = matches
        self._max_live_bytes = buffer_bytes // 2
        self.kept.bound(buffer_bytes // 2)

    @property
    def dropped_events(self) -> int:
        """``debug`` and ``info`` Events that were given up."""
        return sum(self.given_up_events[:NOTICE])

    @property
    def lost_events(self) -> int:
        """Events of ``notice`` and above that were given up."""
        return sum(self.given_up_events[NOTICE:])

    @property
    def unconfirmed_bytes(self) -> int:
        """What is kept, replay buffers aside."""
        return self.live_bytes + self.kept.size_bytes

    # Events in

    def accept(self, events: Sequence[Event], lane: Lane) -> None:
        """Take in ``events``, all of one session or one of none, which are to go up by ``lane``."""
        session = events[0].session
        size_bytes = sum([event.held_bytes for event in events])
        if len(events) > 1 and self.live_bytes + size_bytes > self._max_live_bytes:
            for event in events:
                self.accept((event,), lane)
            return
        if (
            lane.is_up
            and self.live_bytes < self._max_live_bytes
            and (session is None or (session not in self.behind and self._routes.get(session, lane) is lane))
        ):
            if session is not None and session not in self._routes:
                self._route(session, lane)
            lane.pending += events
            lane.appended += len(events)
            self.live_bytes += size_bytes
        else:
            for event in events:
                if session is None:
                    lane.loose.append(self.kept.add(event))
                else:
                    self._leave(event, session, lane)
        self._wake(lane)

    @staticmethod
    def _wake(lane: Lane) -> None:
        if lane.is_idle and lane.is_up:
            lane.is_idle = False
            lane.wake()

    def _route(self, session: str, lane: Lane) -> None:
        if len(self._routes) >= 4 * self._store.limits.max_sessions:
            self._routes = {name: known for name, known in self._routes.items() if name in self.behind}
        self._routes[session] = lane

    def _leave(self, event: Event, session: str, lane: Lane) -> None:
        """Leave ``event`` to the replay buffer of its session, or keep it if that does not hold it."""
        behind = self.behind.get(session)
        if behind is None:
            behind = self._fall_behind(session, lane)
        elif behind.lane is not lane and (lane.claims or not behind.lane.is_up):
            self._move(behind, lane)
        if not self._awaits(behind, event) and not self._rewind(behind, event, first=True):
            behind.refs.append(self.kept.add(event))

    def _fall_behind(self, session: str, lane: Lane) -> Behind:
        if len(self.behind) >= 2 * self._store.limits.max_sessions:
            for name in [
                name for name, b in self.behind.items() if not b.refs and self._store.get(name) is None
            ]:
                self._catch_up(self.behind[name])
        behind = self.behind[session] = lane.behind[session] = Behind(session, lane)
        before = self._routes.get(session)
        self._route(session, lane)
        if before is lane:
            behind.mark = lane.appended
        elif before is not None:
            self._take_over(behind, before)
        return behind

    def _take_over(self, behind: Behind, before: Lane) -> None:
        """Let ``behind`` begin with what its session has pending on the lane ``before``, and wait for its flights."""
        session, pending = behind.session, before.pending
        taken: list[Event] = []
        for index, event in enumerate(pending):
            if event is not None and event.session == session:
                taken.append(event)
                pending[index] = None
                self.live_bytes -= event.held_bytes
        self._put_first(behind, taken)
        if any(event.session == session for flight in before.flying for event in flight.events):
            behind.after = (before, before.serial)
            before.waiters[behind.lane] = before.serial

    def _put_first(self, behind: Behind, events: list[Event]) -> None:
        """Let ``behind`` go on with ``events``, which came before all that was left of its session so far."""
        first = [
            event for event in events if not self._awaits(behind, event) and not self._rewind(behind, event)
        ]
        behind.refs.put_first([self.kept.add(event) for event in first])

    def _move(self, behind: Behind, lane: Lane) -> None:
        before = behind.lane
        del before.behind[behind.session]
        lane.behind[behind.session] = behind
        behind.lane = self._routes[behind.session] = lane
        behind.mark = 0
        if behind.after is None:
            self._take_over(behind, before)
        else:
            earlier, serial = behind.after
            earlier.waiters[lane] = serial

    def _awaits(self, behind: Behind, event: Event) -> bool:
        """Say whether the cursor will come to ``event``, or to an earlier delivery of it."""
        cursor, position = behind.cursor, event.position
        if cursor is None:
            return False
        if position is None:
            buffer = self._store.get(behind.session)
            key = None if buffer is None else buffer.key_of(event)
            return key is not None and buffer is not None and buffer.awaits(cursor, event, key)
        if position <= cursor.key:
            return False
        lost = self._store.lost(behind.session)
        return lost is None or position > lost.position

    def _rewind(self, behind: Behind, event: Event, *, first: bool = False) -> bool:
        """Let the cursor, which is past ``event``, go on from there, if that very delivery is held.

        With ``first`` only if there is no cursor yet.
        """
        if first and behind.cursor is not None:
            return False
        buffer = self._store.get(behind.session)
        if buffer is None or self._is_fed(behind.session):
            return False
        key = buffer.key_of(event)
        cursor = None if key is None else buffer.cursor_before(event, key)
        if cursor is None:
            return False
        behind.cursor = cursor
        return True

    # What becomes of the buffers meanwhile

    def _evicted(self, event: Event) -> None:
        """Keep ``event``, which is about to be evicted, if a cursor has yet to come to it."""
        behind = self.behind.get(event.session or "")
        if (
            behind is None
            or behind.cursor is None
            or event.shape is Shape.COMMAND
            or not self._matches(event)
        ):
            return
        cursor, key = behind.cursor, event.position
        if key is None:
            # A rider goes with its entry, or right before it.
            lost = self._store.lost(behind.session)
            is_ahead = lost is not None and lost.position >= cursor.key
        else:
            is_ahead = key > cursor.key or (key == cursor.key and cursor.last != event.key)
        if is_ahead:
            behind.refs.append(self.kept.add(event))

    def _shed(self, event: Event) -> None:
        """Give ``event`` up, of which there was no room for a reference, unless it can be read from its buffer."""
        behind = self.behind.get(event.session or "")
        if behind is None or not (self._awaits(behind, event) or self._rewind(behind, event)):
            self.give_up(event)

    def give_up(self, event: Event) -> None:
        """Count ``event`` as one that will not go up."""
        self.given_up_events[event.severity] += 1

    # Events out

    def take(self, lane: Lane, max_events: int, max_bytes: int) -> Flight | None:
        """Return what ``lane`` is to send next, in flight from now on.

        None when there is nothing, or nothing yet: in the latter case the lane is not idle.
        """
        events: list[Event] = []
        size = self._take_kept(lane.loose, events, max_events, max_bytes)
        # What is live must not keep what is behind from catching up, nor the other way round.
        share = 2 if lane.behind else 1
        size += self._take_pending(lane, events, -(-max_events // share), max_bytes // share - size)
        if lane.behind:
            size += self._take_behind(lane, events, max_events, max_bytes - size)
        if not events:
            lane.is_idle = not lane.pending and not any(behind.is_ready for behind in lane.behind.values())
            return None
        lane.serial += 1
        flight = Flight(lane.serial, events, size, sum(event.held_bytes for event in events))
        lane.flying.append(flight)
        return flight

    def _take_kept(self, refs: Refs, events: list[Event], max_events: int, max_bytes: int) -> int:
        size = 0
        while refs and len(events) < max_events and size < max_bytes:
            event = self.kept.take(refs.popleft())
            if event is not None:
                events.append(event)
                size += len(event.raw)
                self.live_bytes += event.held_bytes
        return size

    def _take_pending(self, lane: Lane, events: list[Event], max_events: int, max_bytes: int) -> int:
        pending = lane.pending
        size = 0
        while pending and len(events) < max_events and size < max_bytes:
            event = pending.popleft()
            lane.popped += 1
            if event is not None:
                events.append(event)
                size += len(event.raw)
        return size

    def _take_behind(self, lane: Lane, events: list[Event], max_events: int, max_bytes: int) -> int:
        size = 0
        for behind in list(lane.behind.values()):
            if len(events) >= max_events or size >= max_bytes:
                break
            if not behind.is_ready:
                continue
            size += self._take_kept(behind.refs, events, max_events, max_bytes - size)
            if behind.refs:
                break
            size += self._read(behind, events, max_events, max_bytes - size)
        return size

    def _read(self, behind: Behind, events: list[Event], max_events: int, max_bytes: int) -> int:
        """Read on in the buffer of ``behind``; at its end the session is live again."""
        session, cursor = behind.session, behind.cursor
        buffer = self._store.get(session)
        if cursor is None or buffer is None:
            self._catch_up(behind)
            return 0
        if len(events) >= max_events or max_bytes <= 0:
            return 0
        # What was evicted before the cursor came to it has been kept, or counted.
        overtaken(self._store, session, cursor)
        read, at_end = buffer.read(cursor, max_events - len(events), max_bytes)
        size = 0
        for event in read:
            if event.shape is not Shape.COMMAND and self._matches(event):
                events.append(event)
                size += len(event.raw)
                self.live_bytes += event.held_bytes
        if at_end:
            self._catch_up(behind)
        else:
            # The next one's turn.
            behind.lane.behind[session] = behind.lane.behind.pop(session)
        return size

    def _catch_up(self, behind: Behind) -> None:
        del self.behind[behind.session]
        del behind.lane.behind[behind.session]

    # What becomes of flights

    def confirm(self, lane: Lane, serial: int) -> None:
        """Note that all flights of ``lane`` up to ``serial`` have arrived."""
        flying = lane.flying
        while flying and flying[0].serial <= serial:
            flight = flying.popleft()
            self.live_bytes -= flight.charged_bytes
            self.confirmed_events += len(flight.events)
            lane.confirmed = flight.serial
        self._over(lane)

    def _over(self, lane: Lane) -> None:
        """Let those go on who waited for flights of ``lane``."""
        for waiter, serial in list(lane.waiters.items()):
            self._wake(waiter)
            if lane.confirmed >= serial:
                del lane.waiters[waiter]

    def confirm_first(self, lane: Lane, count: int, *, arrived: bool = True) -> None:
        """Note that the first ``count`` Events of the oldest flight have arrived, or have been refused for good."""
        flight = lane.flying[0]
        over = flight.events[:count]
        charged = sum(event.held_bytes for event in over)
        del flight.events[:count]
        flight.size_bytes -= sum(len(event.raw) for event in over)
        flight.charged_bytes -= charged
        self.live_bytes -= charged
        if arrived:
            self.confirmed_events += count
        if not flight.events:
            lane.flying.popleft()
            lane.confirmed = flight.serial
            self._over(lane)

    def up(self, lane: Lane) -> None:
        """Note that ``lane`` can send."""
        lane.is_up = True

    def down(self, lane: Lane) -> None:
        """Note that ``lane`` cannot send: whatever it has not confirmed is left to the buffers, or kept."""
        lane.is_up = lane.is_idle = False
        unconfirmed = [event for flight in lane.flying for event in flight.events]
        self.resent_events += len(unconfirmed)
        unconfirmed += [event for event in lane.pending if event is not None]
        self.live_bytes -= sum(event.held_bytes for event in unconfirmed)
        lane.flying.clear()
        lane.pending.clear()
        lane.popped = lane.appended
        lane.confirmed = lane.serial
        by_session: dict[str | None, list[Event]] = {}
        for event in unconfirmed:
            by_session.setdefault(event.session, []).append(event)
        loose = by_session.pop(None, [])
        lane.loose.put_first([self.kept.add(event) for event in loose])
        for session, events in by_session.items():
            if session is not None:
                self._put_first(self.behind.get(session) or self._fall_behind(session, lane), events)
        self._over(lane)

    def retire(self, lane: Lane, heir: Lane) -> None:
        """Let ``heir`` go on with all that ``lane``, which is no more, was to send."""
        self.down(lane)
        for behind in list(lane.behind.values()):
            self._move(behind, heir)
        heir.loose.extend(lane.loose.take_all())
        if not heir.is_empty:
            self._wake(heir)

    def restore(self, lane_of: Callable[[str], Lane]) -> None:
        """Send whatever the buffers hold, each session by its lane: of what was sent nothing is known to be there.

        Of what was held before the start, that is, or since the upstream has begun anew.
        """
        for session in list(self._store):
            buffer = self._store.get(session)
            if buffer is None or self._is_fed(session):
                continue
            lane = lane_of(session)
            behind = self.behind.get(session) or self._fall_behind(session, lane)
            behind.cursor = buffer.cursor_at_start()
            self._wake(behind.lane)
