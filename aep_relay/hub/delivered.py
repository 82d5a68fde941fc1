"""The positions a ``closing`` frame reports, worked out when a connection ends (AEP-0003 §3.5.4).

A reported position is the highest up to which everything queued for that subscription and session has gone out. What
is still queued holds it down, a backfill below it too, and so does the cursor of a session that is still behind:
duplicates are legal and losses are not. Where nothing is reported, nothing of that session was handed over.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from aep_relay.hub.positions import after, before, higher, highest_since

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aep_relay.hub.outbox import Key, Outbox
    from aep_relay.hub.peer import Peer
    from aep_relay.hub.positions import Track
    from aep_relay.hub.store import Store
    from aep_relay.hub.subscriptions import Subscription
    from aep_relay.protocol.position import Position

MAX_EXAMINED = 2_000
"""Subscriptions and sessions that are looked at for one connection: its end must not hold the loop up for long."""


class Pending(NamedTuple):
    """What a queue still holds of one scope and session."""

    bound: Position | None
    """Lowest position that what is unsent rules out."""
    handed: Position | None
    """Highest position in the queue's first batch that was sent."""
    before: Track | None
    """What had been delivered before the queue began."""


def delivered(peer: Peer, store: Store, max_positions: int) -> list[dict[str, object]]:
    """Return ``{sub, session, epoch, seq}`` for each subscription and session of which ``peer`` was sent something.

    At most ``max_positions`` of each subscription: it could resume by no more.
    """
    pending = _pending(peer.outbox)
    positions: list[dict[str, object]] = []
    told: dict[Subscription, int] = {}
    for subscription, session in islice(_pairs(peer), MAX_EXAMINED):
        if told.get(subscription, 0) >= max_positions:
            continue
        position = _position(peer, subscription, session, pending, store)
        if position is not None:
            entry = {"sub": subscription.id, "session": session, "epoch": position[0], "seq": position[1]}
            positions.append(entry)
            told[subscription] = told.get(subscription, 0) + 1
    return positions


def _pairs(peer: Peer) -> Iterator[tuple[Subscription, str]]:
    """Yield each subscription with each session of which it may have been sent something."""
    for subscription in peer.subscriptions.values():
        sessions = dict.fromkeys(subscription.base)
        if subscription.group is not None:
            sessions.update(dict.fromkeys(subscription.group.tracks))
        for session in sessions:
            yield subscription, session


def _pending(outbox: Outbox) -> dict[Key, Pending]:
    found: dict[Key, Pending] = {}
    for batch, first in outbox.unsent():
        if first == 0:
            # Most of a long queue, and shared with others who end for the same reason.
            for key, bound in batch.bounds().items():
                known = found.get(key) or Pending(None, None, batch.before.get(key))
                found[key] = known._replace(bound=bound if known.bound is None else min(bound, known.bound))
            continue
        for index, (_, mark, scopes) in enumerate(batch.entries()):
            if mark.bound is None:
                continue
            for scope in scopes:
                key = (scope, mark.session)
                known = found.get(key) or Pending(None, None, batch.before.get(key))
                if index < first:
                    known = known._replace(handed=higher(known.handed, mark.position))
                elif known.bound is None or mark.bound < known.bound:
                    known = known._replace(bound=mark.bound)
                found[key] = known
    return found


def _position(
    peer: Peer, subscription: Subscription, session: str, pending: dict[Key, Pending], store: Store
) -> Position | None:
    live = pending.get((subscription.group, session))
    replayed = pending.get((subscription, session))
    cursor = None if subscription.replay is None else subscription.replay.behind.get(session)
    handed = _replayed(subscription, session, replayed)
    if cursor is None:
        handed += _live(peer, subscription, session, live)
    elif live is not None and live.handed is not None:
        handed.append(live.handed)
    bounds = [queued.bound for queued in (live, replayed) if queued is not None and queued.bound is not None]
    if cursor is not None:
        # The rest of this session is left to the cursor, whatever the group has delivered to others.
        buffer = store.get(session)
        is_split = buffer is not None and buffer.is_split(cursor)
        bounds.append(cursor.key if is_split else after(cursor.key))
    bound = min(bounds, default=None)
    if bound is None:
        return max(handed, default=None)
    fit = max((position for position in handed if position < bound), default=None)
    if not handed or max(handed) == fit:
        return fit
    return higher(fit, _held_below(subscription, session, bound, store)) or before(bound)


def _live(peer: Peer, subscription: Subscription, session: str, queued: Pending | None) -> list[Position]:
    """Return positions handed over live, the highest ones where that is known."""
    group = subscription.group
    if group is None:
        return []
    track = group.tracks.get(session) if queued is None else queued.before
    skip = None if peer.outbox.skips is None else peer.outbox.skips.get((group, session))
    since = subscription.since
    found = [None if queued is None else queued.handed]
    if skip is None or (queued is not None and _is_older(track, skip.before)):
        found.append(highest_since(track, since))
    if skip is not None:
        found += [highest_since(track, max(since, skip.stamp)), skip.kept, highest_since(skip.before, since)]
    return [position for position in found if position is not None]


def _is_older(track: Track | None, other: Track | None) -> bool:
    """Say whether ``track`` is from before ``other``, and so without what was dropped after that."""
    return track is not None and other is not None and track[-1][0] <= other[-1][0]


def _replayed(subscription: Subscription, session: str, queued: Pending | None) -> list[Position]:
    """Return positions requested or handed over by the replay, the highest ones where that is known."""
    base = subscription.base.get(session) if queued is None else highest_since(queued.before, -1)
    found = [base, None if queued is None else queued.handed]
    return [position for position in found if position is not None]


def _held_below(subscription: Subscription, session: str, bound: Position, store: Store) -> Position | None:
    """Return the highest held position below ``bound`` that this subscription asks for: it was handed all of them."""
    buffer = store.get(session)
    if buffer is None:
        return None
    for event in buffer.below(bound):
        if subscription.filter.matches(event):
            return event.position
    return None
