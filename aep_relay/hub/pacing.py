"""What of a live Event a connection is sent that replays: now, or later, by a cursor that has yet to come to it.

Invariants: an Event that a cursor has yet to read, or its redelivery, is left to the cursor, so that order is kept; a
consumer that replays is paced, not ended, as long as the buffers hold what it has yet to read; what eviction has taken
from a cursor is told before anything that would hide it (AEP-0003 §5, §7).
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from aep_relay.hub import notices
from aep_relay.hub.buffer import START
from aep_relay.hub.cohort import Cohort
from aep_relay.hub.outbox import ANY
from aep_relay.hub.positions import higher, highest_since
from aep_relay.hub.replay import Replay, overtaken

if TYPE_CHECKING:
    from collections.abc import Collection

    from aep_relay.hub.buffer import SessionBuffer
    from aep_relay.hub.outbox import Batch
    from aep_relay.hub.peer import Peer
    from aep_relay.hub.stats import Stats
    from aep_relay.hub.store import Store
    from aep_relay.hub.subscriptions import Group, Subscription
    from aep_relay.protocol.event import Event
    from aep_relay.protocol.position import Position

FORGOTTEN_AT_A_TIME = 4
"""Sessions that a full table is looked through for, with each one that it takes in."""


class Found(NamedTuple):
    """What is known of an Event that is being published."""

    event: Event
    session: str | None
    at: Position
    """Where it stands in its session's history, or would; ``START`` where it has no place in any."""
    buffer: SessionBuffer | None
    """What holds it; None when nothing does."""
    place: int
    is_new: bool
    """Whether it has just been admitted."""
    hides_loss: bool


class Pacing:
    """Decides for connections that replay, and tells them what is gone."""

    __slots__ = ("_stats", "_store")

    def __init__(self, store: Store, stats: Stats) -> None:
        self._store = store
        self._stats = stats

    def look_up(self, event: Event, key: Position | None) -> Found:
        """Find what is to be known of ``event``, admitted at ``key`` if at all, whoever replays."""
        session = event.session
        at = event.position if key is None else key
        buffer = None if session is None else self._store.get(session)
        if session is None or at is None:
            return Found(event, session, START, None, -1, is_new=False, hides_loss=False)
        place = -1 if buffer is None else buffer.place(event, at)
        lost = self._store.lost(session)
        # The last that was evicted, sent again: who resumed after it would not learn that eviction has overtaken a
        # cursor, since nothing after it is gone.
        hides_loss = lost is not None and at == lost.position
        held = buffer if place >= 0 else None
        return Found(event, session, at, held, place, is_new=key is not None, hides_loss=hides_loss)

    def serving(self, peer: Peer, found: Found, matching: Collection[Group]) -> list[Group]:
        """Return those of the ``matching`` groups of which ``peer``, who replays, is to get the Event live."""
        cohort, session, buffer = peer.cohort, found.session, found.buffer
        event, at, place = found.event, found.at, found.place
        crowded = found.is_new and buffer is not None and self._is_crowded(peer)
        may_be_dropped = crowded and _waits_droppable(peer, session)
        serving: dict[Group, None] = {}
        for subscription in peer.subscriptions.values():
            group = subscription.group
            if group is None or group not in matching:
                continue
            replay = subscription.replay
            cursor = None if replay is None or session is None else replay.behind.get(session)
            if buffer is not None:
                if cursor is not None:
                    # A redelivery of what the cursor has yet to read would overtake what comes before it.
                    if buffer.awaits_at(cursor, event, at, place):
                        continue
                elif crowded and self._paces(
                    peer, subscription, buffer, place, may_be_dropped=may_be_dropped
                ):
                    continue
            serving[group] = None
            if not found.hides_loss or cohort is None or cursor is None or session is None:
                continue
            if overtaken(self._store, session, cursor):
                # Nothing may end the connection before this Event is queued: it would be passed over.
                self.tell_loss(peer, subscription, session, cohort)
        return list(serving)

    def _is_crowded(self, peer: Peer) -> bool:
        outbox, cohort = peer.outbox, peer.cohort
        queued_bytes = outbox.weight_bytes + (0 if cohort is None else cohort.waiting_bytes(peer))
        return queued_bytes > outbox.soft_limit_bytes

    def _paces(
        self,
        peer: Peer,
        subscription: Subscription,
        buffer: SessionBuffer,
        place: int,
        *,
        may_be_dropped: bool,
    ) -> bool:
        """Leave the Event that ``buffer`` holds at ``place`` to a new cursor of ``subscription``; say whether it can
        be. A replaying consumer is paced, not ended: what the buffer holds it can read later."""
        session, replay = buffer.session, subscription.replay
        if replay is None:
            replay = subscription.replay = Replay({}, ends=False)
        elif len(replay.behind) >= 2 * self._store.limits.max_sessions:
            return False
        replay.behind[session] = buffer.cursor_at(place)
        group = subscription.group
        if group is not None and not may_be_dropped and not _was_dropped(peer, group, session):
            live = highest_since(group.tracks.get(session), subscription.since)
            self.note(subscription, session, higher(subscription.base.get(session), live))
        return True

    def tell_loss(self, peer: Peer, subscription: Subscription, session: str, queue: Batch | Cohort) -> None:
        """Tell ``peer``, in ``queue``, that eviction has overtaken a cursor of ``subscription``."""
        self._stats.exhausted_replays += 1
        earliest, lost = self._store.earliest(session), self._store.lost(session)
        frame = notices.replay_exhausted(peer.framing, subscription, session, earliest)
        if not frame or lost is None:
            return
        if isinstance(queue, Cohort):
            queue.push_loss(frame, subscription, session, lost)
        else:
            notices.add_loss(queue, frame, subscription, session, lost)

    def note(self, subscription: Subscription, session: str, position: Position | None) -> None:
        """Note the highest position of ``session`` that ``subscription`` was handed before its cursor goes on."""
        base = subscription.base
        if position is None:
            return
        if session not in base and len(base) >= 2 * self._store.limits.max_sessions:
            self.forget_gone(base)
        base[session] = position

    def forget_gone(self, table: dict[str, Any]) -> None:
        """Drop what is remembered of sessions that are wholly evicted: of them there is nothing to resume.

        Some of the oldest each time, which is enough: at least half are gone, and thousands of groups may be as full.
        """
        for name in list(islice(table, FORGOTTEN_AT_A_TIME)):
            remembered = table.pop(name)
            if self._store.get(name) is not None:
                table[name] = remembered


def _was_dropped(peer: Peer, group: Group, session: str) -> bool:
    """Say whether something of ``session`` was dropped: what the group delivered tells nothing then."""
    skips = peer.outbox.skips
    return skips is not None and ((group, session) in skips or (ANY, session) in skips)


def _waits_droppable(peer: Peer, session: str | None) -> bool:
    """Say whether something of ``session`` may yet be dropped before ``peer`` has it."""
    cohort = peer.cohort
    if cohort is None:
        return False
    waiting = cohort.missing(peer) if cohort.open is None else [*cohort.missing(peer), cohort.open]
    return any(mark.droppable and mark.session == session for batch in waiting for mark in batch.marks)
