"""Catching up: the next slice of a connection's replays, read from the buffers when its socket has drained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aep_relay.hub import notices
from aep_relay.hub.fanout import REDACTION_FACTOR
from aep_relay.hub.outbox import Batch, Mark
from aep_relay.hub.replay import overtaken
from aep_relay.protocol.framing import Framing

if TYPE_CHECKING:
    from aep_relay.hub.fanout import FanOut
    from aep_relay.hub.peer import Peer
    from aep_relay.hub.replay import Replay
    from aep_relay.hub.stats import Stats
    from aep_relay.hub.store import Store
    from aep_relay.hub.subscriptions import Subscription
    from aep_relay.protocol.event import Event
    from aep_relay.protocol.position import Position

SLICE_EVENTS = 256
SLICE_BYTES = 128 * 1024
"""A slice of replay ends at whichever comes first: the loop is held for less than a millisecond or two."""

ROUND_EVENTS = 4096
ROUND_BYTES = 2 * 1024 * 1024
"""What slices share that are read one after the other, before other tasks get a turn."""

PREDICATES_PER_EVENT = 4
"""So many are evaluated in about the time that it takes to read and send an Event."""

LEAST_EVENTS = 16
LEAST_BYTES = 8 * 1024
"""A slice is not made shorter than this, or most of its cost would be that of sending it."""


class CatchUp:
    """Reads replays forward."""

    __slots__ = ("_fanout", "_slices", "_stats", "_store")

    def __init__(self, store: Store, stats: Stats, fanout: FanOut) -> None:
        self._store = store
        self._stats = stats
        self._fanout = fanout
        self._slices = 0

    def advance(self, peer: Peer, among: int) -> None:
        """Send the next slice of one of ``peer``'s replays that are behind; at its end a replay turns live.

        Each in turn, and each of its sessions: one that is written as fast as the peer reads holds up no other.
        The more connections are replayed to at a time, ``among`` all, the shorter the slice.
        """
        replaying = [s for s in peer.subscriptions.values() if s.replay is not None]
        if not replaying:
            return
        subscription = min(replaying, key=_last_served)
        self._slices += 1
        subscription.served = self._slices
        if subscription.replay is not None and self._slice(peer, subscription, subscription.replay, among):
            self._caught_up(peer, subscription)

    def _slice(self, peer: Peer, subscription: Subscription, replay: Replay, among: int) -> bool:
        """Send a slice of ``replay``; True when nothing is behind any more."""
        behind = replay.behind
        if peer.cohort is not None:
            # Before anything is read: should that be too much, what is read and not queued would pass for delivered.
            peer.cohort.settle(peer)
        # A replay alone never fills an outbox: a consumer that replays is paced, not evicted.
        soft_limit_bytes = self._fanout.limits.soft_limit_bytes
        events = min(SLICE_EVENTS, max(LEAST_EVENTS, ROUND_EVENTS // among))
        size = max(1, min(SLICE_BYTES, max(LEAST_BYTES, ROUND_BYTES // among), soft_limit_bytes))
        batch = Batch(subscription)
        session = ""
        while behind and events > 0 and size > 0 and peer.closing is None:
            session, cursor = next(iter(behind.items()))
            told_bytes = batch.size_bytes
            if overtaken(self._store, session, cursor):
                self._fanout.pacing.tell_loss(peer, subscription, session, batch)
            # A long name is to be looked up, hashed and written, whether anything is held of it or not.
            size -= batch.size_bytes - told_bytes + len(session)
            taken, cost_bytes = self._read(peer, subscription, replay, batch, events, max(1, size))
            events -= taken
            size -= cost_bytes
        self._hand(peer, batch)
        if session in behind:
            behind[session] = behind.pop(session)
        return not behind

    def _read(
        self,
        peer: Peer,
        subscription: Subscription,
        replay: Replay,
        batch: Batch,
        max_events: int,
        max_bytes: int,
    ) -> tuple[int, int]:
        """Read on in the first session that is behind; return how many Events that took, and what it cost in bytes."""
        session, cursor = next(iter(replay.behind.items()))
        weight, ceiling = 1 + subscription.filter.weight // PREDICATES_PER_EVENT, subscription.ceiling
        factor = REDACTION_FACTOR if self._fanout.redacts(ceiling) else 1
        buffer = self._store.get(session)
        events: list[Event] = []
        at_end = True
        if buffer is not None:
            events, at_end = buffer.read(cursor, -(-max_events // weight), -(-max_bytes // factor))
        if at_end:
            del replay.behind[session]
        found = _asked(subscription, replay, events)
        framed = self._fanout.frames(found, ceiling, peer.framing)
        batch.frames += framed
        # In order of position, so that riders need no bound of their own.
        batch.marks += [Mark(session, event.position, event.position, False, 0) for event in found]
        framed_bytes = sum(map(len, framed))
        batch.size_bytes += framed_bytes
        position = next((event.position for event in reversed(found) if event.position is not None), None)
        if peer.framing is Framing.WEBSOCKET and position is not None:
            self._note(subscription, session, position, batch)
        # What is down-leveled is read through, however little is left of it.
        read_bytes = 0 if ceiling is None else factor * sum([len(event.raw) for event in found])
        return max(1, weight * len(events)), max(framed_bytes, read_bytes)

    def _note(self, subscription: Subscription, session: str, position: Position, batch: Batch) -> None:
        """Note that all up to ``position`` is in ``batch`` or was handed over before."""
        known = subscription.base.get(session)
        batch.before.setdefault((subscription, session), None if known is None else ((0, known),))
        self._fanout.pacing.note(subscription, session, position)

    def _hand(self, peer: Peer, batch: Batch) -> None:
        if batch.frames:
            self._stats.replayed_events += batch.events
            peer.take(batch)

    def _caught_up(self, peer: Peer, subscription: Subscription) -> None:
        replay, subscription.replay = subscription.replay, None
        if replay is not None and replay.ends:
            notices.replay_complete(peer)
            if peer.closing is None:
                peer.closing = "replay-complete"
                peer.sink.close("replay-complete", 1000)
        self._fanout.place(peer)


def _last_served(subscription: Subscription) -> int:
    return subscription.served


def _asked(subscription: Subscription, replay: Replay, events: list[Event]) -> list[Event]:
    """Return those of ``events`` that ``subscription`` asks for and has not been handed."""
    matcher = subscription.filter.matcher_without(None)
    if matcher is not None:
        events = [event for event in events if matcher(event)]
    return [event for event in events if event.key not in replay.had] if replay.had else events
