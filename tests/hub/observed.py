"""A consumer under test: what it is owed, in order, against what its connection was handed.

What was *handed* is all bytes its sink took and all that are queued for it, so that it is known after every step. It is
compared with what the naive model expects, frame by frame and byte for byte.
"""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aep_relay.hub.outbox import Batch
from aep_relay.protocol import frames, sse
from aep_relay.protocol.capture import downlevel
from aep_relay.protocol.framing import Framing, encode
from tests.fakes.sink import MemorySink, split, text
from tests.hub.build import sink
from tests.hub.model import BEFORE_ALL, NaiveCursor, NaiveStore, follows

if TYPE_CHECKING:
    from aep_relay.hub.peer import Peer
    from aep_relay.hub.relay import Relay
    from aep_relay.hub.replay import From
    from aep_relay.protocol.event import Event
    from aep_relay.protocol.filters import Filter
    from aep_relay.protocol.position import Position
    from tests.hub.model import Item

NOTICE = 2


@dataclass(eq=False)
class Sub:
    """A subscription as its consumer sees it."""

    id: str
    filter: Filter
    ceiling: int | None
    ends: bool = False
    requested: dict[str, Position] = field(default_factory=dict)
    behind: dict[str, NaiveCursor] = field(default_factory=dict)
    replaying: bool = False
    had: set[tuple[str, str]] = field(default_factory=set)
    """Commands it was handed as their target while it was behind."""
    told: set[str] = field(default_factory=set)
    """Sessions of which it was told that something is gone."""
    owed: dict[Event, Position | None] = field(default_factory=dict)
    """Events of severity notice and above that it must be sent or told of, with their keys."""

    def wants(self, event: Event) -> bool:
        return self.filter.matches(event) and event.key not in self.had

    def owes(self, event: Event, key: Position | None) -> None:
        if event.severity >= NOTICE and event.session is not None and self.wants(event):
            self.owed[event] = key


@dataclass(eq=False)
class Entry:
    """One frame that a connection is to be handed."""

    data: bytes
    subs: tuple[Sub, ...] = ()
    event: Event | None = None
    key: Position | None = None
    """Where its Event stands in the session's history; None where it has no place there."""
    droppable: bool = False
    is_replayed: bool = False

    def is_of(self, session: str) -> bool:
        return self.event is not None and self.event.session == session

    def holds_down(self, position: Position) -> bool:
        """Say whether ``position`` must not be reported while this is unsent."""
        if self.event is None:
            return False
        if self.event.position is not None:
            return self.event.position <= position
        return self.key is not None and self.key != BEFORE_ALL and self.key < position


class Consumer:
    """One connection: its subscriptions, what is expected of the relay, what came."""

    def __init__(self, relay: Relay, store: NaiveStore, framing: Framing, capacity_bytes: int | None) -> None:
        self.relay = relay
        self.store = store
        self.framing = framing
        self.peer: Peer = relay.attach("test", framing, MemorySink(capacity_bytes))
        self.subs: dict[str, Sub] = {}
        self.over = False
        self.handed: list[Entry] = []
        """What was handed, in order."""
        self.expected: deque[Entry] = deque()
        """What is to be handed next."""
        self._parsed_bytes = 0
        self._dropped_events = 0

    @property
    def is_websocket(self) -> bool:
        return self.framing is Framing.WEBSOCKET

    @property
    def is_complete(self) -> bool:
        """Whether all it asked for was handed to it, and no more will be."""
        return self.peer.closing == "replay-complete"

    # What is to come

    def subscribe(self, id_: str, filter_: Filter, ceiling: int | None, from_: From, *, ends: bool) -> None:
        sub = Sub(id_, filter_, ceiling, ends)
        points = from_ if isinstance(from_, list) else []
        for point in points:
            sub.requested[point.session] = min(
                point.position, sub.requested.get(point.session, point.position)
            )
        sessions = list(self.store.sessions) if from_ == "all" else list(sub.requested)
        if filter_.sessions is not None:
            sessions = [session for session in sessions if session in filter_.sessions]
            if from_ == "all":
                sessions.sort()
        for session in sessions:
            sub.behind[session] = self._cursor(sub, session)
        sub.replaying = from_ is not None or ends
        refusal = self.relay.subscribe(self.peer, id_, filter_, ceiling, from_, ends=ends)
        assert refusal is None
        if self.peer.closing is not None:
            return  # what it was to be handed before was too much
        self.subs.pop(id_, None)
        self.subs[id_] = sub
        if self.is_websocket:
            self.push(frames.text_frame(frames.subscribed(id_)))

    def _cursor(self, sub: Sub, session: str) -> NaiveCursor:
        items = self.store.held(session)
        after = sub.requested.get(session)
        unread = {item for item in items if after is None or follows(item, after)}
        cursor = NaiveCursor(after, unread)
        cursor.overtaken = after is not None and self.store.exhausted(session, after)
        if sub.ends:
            cursor.until = max((item.key for item in items), default=BEFORE_ALL)
            cursor.unread = {item for item in unread if item.key <= cursor.until}
        for item in cursor.unread:
            sub.owes(item.event, item.key)
        return cursor

    def push(self, frame: bytes) -> None:
        """Have ``frame`` sent that is no Event of a subscription."""
        self.expected.append(Entry(frame))
        self.peer.push(frame)

    def inserted(self, item: Item) -> None:
        """Have every cursor know of an Event that was admitted."""
        session = item.event.session or ""
        for sub in self.subs.values():
            if session in sub.behind:
                sub.behind[session].inserted(item, self.store.held(session))

    def evicted(self, item: Item) -> None:
        """Have every cursor know of an Event that was evicted."""
        for sub in self.subs.values():
            cursor = sub.behind.get(item.event.session or "")
            if cursor is not None:
                cursor.evicted(item)

    def published(self, event: Event, item: Item | None, *, is_target: bool = False) -> None:
        """Expect what ``event``, just ingested, means for this connection."""
        if is_target:
            # As the target, and for none of its subscriptions.
            self.expected.append(Entry(frames.text_frame(event.raw), (), event))
        key = None if item is None else item.key
        serving = []
        for sub in self.subs.values():
            left = self._left(sub, event, item)
            if is_target and (event.session or "") in sub.behind:
                if not left and not sub.ends and sub.filter.matches(event):
                    self._tell_what_this_would_hide(sub, event, key)
                sub.had.add(event.key)
            elif not sub.ends and not is_target and sub.wants(event):
                sub.owes(event, key)
                if not left:
                    self._tell_what_this_would_hide(sub, event, key)
                    serving.append(sub)
        if serving:
            ceilings = [sub.ceiling for sub in serving]
            ceiling = None if None in ceilings else max(c for c in ceilings if c is not None)
            self.expected.append(
                Entry(self._frame(event, ceiling), tuple(serving), event, key, event.severity < NOTICE)
            )

    def _tell_what_this_would_hide(self, sub: Sub, event: Event, key: Position | None) -> None:
        """Expect to be told of a loss first, if resuming after ``event`` would not tell of it."""
        session = event.session or ""
        at = event.position if key is None else key
        cursor = sub.behind.get(session)
        if cursor is not None and cursor.overtaken and at == self.store.lost(session):
            self.expected.append(Entry(self._exhausted(sub, session)))
            self._told(sub, session)

    def _left(self, sub: Sub, event: Event, item: Item | None) -> bool:
        """Say whether ``event`` is left to a cursor of ``sub``."""
        session = event.session or ""
        cursor = sub.behind.get(session)
        if cursor is not None:
            if item is not None:
                return item in cursor.unread
            return event.position is not None and any(
                other.event.key == event.key and other.key == event.position for other in cursor.unread
            )
        subscription = self.peer.subscriptions.get(sub.id)
        if subscription is None or subscription.replay is None or session not in subscription.replay.behind:
            return False
        # The relay has chosen to pace this consumer.
        outbox, cohort = self.peer.outbox, self.peer.cohort
        assert cohort is not None
        assert outbox.queued_bytes + cohort.waiting_bytes(self.peer) > outbox.soft_limit_bytes
        assert item is not None
        items = self.store.held(session)
        at = items.index(item)
        sub.behind[session] = NaiveCursor(None, set(items[at:]), set(items[:at]))
        sub.replaying = True
        return True

    def _frame(self, event: Event, ceiling: int | None) -> bytes:
        raw = event.raw if ceiling is None else downlevel(event, ceiling)
        return encode(self.framing, event, raw)

    # What came

    def check(self) -> None:
        """Compare what was handed since the last check, which nothing was drained in between, with what is expected."""
        if self.over:
            return
        if self.peer.closing is not None and not self.is_complete:
            self.ended()
        else:
            assert not self._align(self._newly_handed()), "handed what nobody asked for"
            self._check_drops()

    def drain(self) -> bool:
        """Let the relay send what the sink takes; check it; say whether there is more."""
        replaying = [sub for sub in self.subs.values() if sub.replaying and not self.over]
        # Whose turn it is is the relay's to say, as is which of its sessions comes first.
        turn = min(replaying, key=lambda sub: self.peer.subscriptions[sub.id].served, default=None)
        more = self.relay.drain_peer(self.peer)
        if self.over:
            return more
        if self.peer.closing is not None and not self.is_complete:
            self.ended()
        else:
            self._replayed(turn, self._without_dropped(self._align(self._newly_handed())))
            self._check_drops()
            assert not self.is_complete or not any(sub.replaying for sub in self.subs.values())
        return more

    def _newly_handed(self) -> list[bytes]:
        outbox = self.peer.outbox
        pending = b"".join(item.data() if isinstance(item, Batch) else item for item in outbox.queue or ())
        data = bytes(sink(self.peer).taken) + pending[outbox.head_sent_bytes :]
        found, rest = split(self.framing, data[self._parsed_bytes :])
        assert rest == b"", "what is queued ends in mid-frame"
        self._parsed_bytes = len(data)
        return found

    def _align(self, found: list[bytes]) -> list[bytes]:
        """Match frames with what is expected, where ``debug`` and ``info`` may be missing; return what is left over."""
        left = deque(found)
        while left and self.expected:
            entry = self.expected.popleft()
            if entry.data == left[0]:
                self.handed.append(entry)
                left.popleft()
            else:
                assert entry.droppable, f"expected {entry.data!r}, came {left[0]!r}"
                self._dropped_events += 1
        return list(left)

    def _without_dropped(self, left: list[bytes]) -> list[bytes]:
        """Take back what was matched with Events that were dropped: they look like what a replay has sent since."""
        while self.peer.outbox.dropped_events > self._dropped_events + len(self.expected):
            if not self.handed or not self.handed[-1].droppable or self.handed[-1].is_replayed:
                break
            left.insert(0, self.handed.pop().data)
            self._dropped_events += 1
        return left

    def _check_drops(self) -> None:
        """Where everything was handed over, what is missing was dropped: counted, and above the soft limit only."""
        outbox, cohort = self.peer.outbox, self.peer.cohort
        if cohort is None or (cohort.open is None and not cohort.missing(self.peer)):
            self._align([])
            assert all(entry.droppable for entry in self.expected), "never handed over"
            self._dropped_events += len(self.expected)
            self.expected.clear()
            assert outbox.dropped_events == self._dropped_events
        assert outbox.dropped_events >= self._dropped_events

    def _replayed(self, sub: Sub | None, found: list[bytes]) -> None:
        """Match frames with what the replay of ``sub`` has next."""
        left = deque(found)
        if sub is None:
            assert not left, f"nothing to replay, but {left[0]!r} came"
            return
        subscription = self.peer.subscriptions[sub.id]
        actual = {} if subscription.replay is None else subscription.replay.behind
        for session, cursor in list(sub.behind.items()):
            if not self._read_on(sub, session, left, finished=session not in actual):
                last = actual[session].last
                items = self.store.held(session)
                for item in [item for item in items if item.event.key is last]:
                    cursor.read_through(item, items)
                break
            del sub.behind[session]
        if subscription.replay is not None:
            sub.behind = {session: sub.behind.pop(session) for session in actual} | sub.behind
        else:
            assert not sub.behind, "turned live with Events unread"
            sub.replaying = False
            sub.had.clear()
            if sub.ends and self.framing is not Framing.JSONL:
                assert left.popleft() == self._comment(sse.REPLAY_COMPLETE)
        assert not left, f"not to be replayed now: {left[0]!r}"

    def _read_on(self, sub: Sub, session: str, left: deque[bytes], *, finished: bool) -> bool:
        """Match frames with what follows in one session; say whether its end was reached."""
        cursor, items = sub.behind[session], self.store.held(session)
        if cursor.overtaken:
            exhausted = self._exhausted(sub, session)
            if left and left[0] == exhausted:
                self.handed.append(Entry(left.popleft()))
                self._told(sub, session)
            else:
                assert not finished, f"{session!r} was evicted in part, and that was not said"
                return False
        for item in cursor.next_items(items, sub.wants):
            frame = self._frame(item.event, sub.ceiling)
            if not left or left[0] != frame:
                assert not finished, f"{item.event.id} was not replayed"
                return False
            self.handed.append(Entry(left.popleft(), (sub,), item.event, item.key, is_replayed=True))
            cursor.read_through(item, items)
        return finished

    def _told(self, sub: Sub, session: str) -> None:
        """Go on from what is held, and miss nothing of what is gone."""
        items = self.store.held(session)
        sub.behind[session].skip_lost(items)
        sub.told.add(session)
        for event in [event for event in sub.owed if event.session == session]:
            if all(item.event is not event for item in items):
                del sub.owed[event]

    def _exhausted(self, sub: Sub, session: str) -> bytes:
        earliest = self.store.earliest(session)
        if self.is_websocket:
            return frames.text_frame(frames.replay_exhausted(sub.id, session, earliest))
        return self._comment(sse.replay_exhausted(session, earliest))

    def _comment(self, comment: bytes) -> bytes:
        return sse.chunk(comment) if self.framing is Framing.SSE else comment

    # How it ends

    def ended(self) -> tuple[list[dict[str, Any]], list[Entry]]:
        """Take what the connection is sent last; return the positions it was told and what it was not sent."""
        self.over = True
        sink(self.peer).capacity_bytes = None
        while self.relay.drain_peer(self.peer):
            pass
        sent, rest = split(self.framing, bytes(sink(self.peer).taken))
        assert rest == b"", "ended in mid-frame"
        delivered: list[dict[str, Any]] = []
        if self.is_websocket:
            closing = json.loads(text(self.framing, sent.pop()))
            assert closing["type"] == "closing"
            assert closing["reason"] == self.peer.closing
            delivered = closing["delivered"]
        before = [entry.data for entry in self.handed[: len(sent)]]
        assert before == sent[: len(before)]
        self._replayed_if_any(self._align(sent[len(before) :]))
        unsent = self.handed[len(sent) :] + list(self.expected)
        del self.handed[len(sent) :]
        return delivered, unsent

    def _replayed_if_any(self, found: list[bytes]) -> None:
        """Match what the step that ended the connection had sent of a replay."""
        sub = next((sub for sub in self.subs.values() if sub.replaying), None)
        left = deque(found)
        for session in [] if sub is None else sub.behind:
            assert sub is not None
            self._read_on(sub, session, left, finished=False)
        assert not left
