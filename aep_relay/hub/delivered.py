"""The positions a ``closing`` frame reports, worked out when a connection ends (AEP-0003 §3.5.4).

A reported position is the highest up to which everything queued for that subscription and session has gone out. What
is still queued holds it down, a backfill below it too, since duplicates are legal and losses are not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from aep_relay.hub.positions import higher, highest_since

if TYPE_CHECKING:
    from aep_relay.hub.outbox import Outbox
    from aep_relay.hub.peer import Peer
    from aep_relay.hub.positions import Track
    from aep_relay.hub.store import Store
    from aep_relay.hub.subscriptions import Subscription
    from aep_relay.protocol.position import Position

    Key = tuple[object, str | None]


class Pending(NamedTuple):
    """What a queue still holds of one scope and session."""

    lowest: Position | None
    """Lowest position of which no byte was sent."""
    handed: Position | None
    """Highest position in the queue's first batch that was sent."""
    before: Track | None
    """What had been delivered before the queue began."""


def delivered(peer: Peer, store: Store, max_positions: int) -> list[dict[str, object]]:
    """Return ``{sub, session, epoch, seq}`` for each subscription and session of which ``peer`` was sent something."""
    pending = _pending(peer.outbox)
    positions: list[dict[str, object]] = []
    for subscription in peer.subscriptions.values():
        sessions = dict.fromkeys(subscription.base)
        if subscription.group is not None:
            sessions.update(dict.fromkeys(subscription.group.tracks))
        for session in sessions:
            position = _position(peer, subscription, session, pending, store)
            if position is not None:
                entry = {"sub": subscription.id, "session": session, "epoch": position[0], "seq": position[1]}
                positions.append(entry)
                if len(positions) >= max_positions:
                    return positions
    return positions


def _pending(outbox: Outbox) -> dict[Key, Pending]:
    found: dict[Key, Pending] = {}
    for batch, first in outbox.unsent():
        for index, (_, mark, scopes) in enumerate(batch.entries()):
            position = mark.position
            if position is None:
                continue
            for scope in scopes:
                key = (scope, mark.session)
                known = found.get(key)
                if known is None:
                    known = Pending(None, None, batch.before.get(key))
                if index < first:
                    known = known._replace(handed=higher(known.handed, position))
                elif known.lowest is None or position < known.lowest:
                    known = known._replace(lowest=position)
                found[key] = known
    return found


def _position(
    peer: Peer, subscription: Subscription, session: str, pending: dict[Key, Pending], store: Store
) -> Position | None:
    live, live_pending = _live(peer, subscription, session, pending.get((subscription.group, session)))
    replayed = subscription.base.get(session)
    lowest = live_pending
    queued = pending.get((subscription, session))
    if queued is not None:
        replayed = higher(highest_since(queued.before, -1), queued.handed)
        if queued.lowest is not None and (lowest is None or queued.lowest < lowest):
            lowest = queued.lowest
    fit = [
        position
        for position in (live, replayed)
        if position is not None and (lowest is None or position < lowest)
    ]
    if fit or lowest is None or (live is None and replayed is None):
        return max(fit, default=None)
    return _held_below(subscription, session, lowest, store)


def _live(
    peer: Peer, subscription: Subscription, session: str, queued: Pending | None
) -> tuple[Position | None, Position | None]:
    """Return the highest live position handed over and the lowest one pending."""
    group = subscription.group
    replay = subscription.replay
    if group is None or (replay is not None and session in replay.behind):
        # What this session has live is left to the cursor.
        return None, None
    track = group.tracks.get(session) if queued is None else queued.before
    skip = None if peer.outbox.skips is None else peer.outbox.skips.get((group, session))
    since = subscription.since
    if skip is None:
        position = highest_since(track, since)
    else:
        position = highest_since(track, max(since, skip.stamp))
        position = higher(higher(position, skip.kept), highest_since(skip.before, since))
    if queued is None:
        return position, None
    return higher(position, queued.handed), queued.lowest


def _held_below(subscription: Subscription, session: str, lowest: Position, store: Store) -> Position | None:
    """Return the highest held position below a pending backfill that this subscription had been sent."""
    buffer = store.get(session)
    if buffer is None:
        return None
    for event in buffer.below(lowest):
        if subscription.filter.matches(event):
            return event.position
    return None
