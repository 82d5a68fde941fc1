"""The positions a ``closing`` frame reports, worked out when a connection ends (AEP-0003 §3.5.4).

A reported position is the highest up to which everything queued for that subscription and session has gone out. What
is still queued holds it down, a backfill below it too, and so does the cursor of a session that is still behind:
duplicates are legal and losses are not. What is queued for more subscriptions than are told apart (``outbox.ANY``)
holds all of the connection down: their positions are safe then, if not the highest.

Where nothing is reported, nothing of that session was handed over, or it was cut off: a connection's end must hold
nobody else up, and its last frame has to be one that clients take. Cut off are

* of each subscription, all but ``max_positions`` sessions: it could resume by no more. Those written last are named;
* all that comes after ``MAX_COST`` was spent, subscriptions in their order: 5,000 positions of a consumer that has
  kept up, 625 of one that has not;
* what does not fit into ``MAX_BYTES``, the longest names first of all.

A consumer that is told less than it knows resumes by what it knows: the last Event of each session that it processed.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from aep_relay.hub.buffer import START
from aep_relay.hub.outbox import ANY
from aep_relay.hub.positions import after, before, higher, highest_since
from aep_relay.hub.replay import misses, resumable_below

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aep_relay.hub.buffer import Cursor
    from aep_relay.hub.outbox import Batch, Key, Outbox
    from aep_relay.hub.peer import Peer
    from aep_relay.hub.positions import Track
    from aep_relay.hub.store import Store
    from aep_relay.hub.subscriptions import Group, Subscription
    from aep_relay.protocol.position import Position

MAX_COST: Final = 5_000
"""What working out the positions of one connection may cost, in looks at a table: some 5 ms."""

EXACT_COST: Final = 8
"""What a position costs to which it matters what is queued, was dropped or is yet to be replayed."""

MAX_BYTES: Final = 1 << 20
"""Many a WebSocket client takes no longer message."""

ENTRY_BYTES: Final = 80
"""What a position takes besides its names."""

MAX_LOOKED_BACK: Final = 16
"""Held Events among which the one before a gap is looked for."""


_write = msgspec.json.Encoder().encode


class Pending(NamedTuple):
    """What a queue still holds of one scope and session."""

    bound: Position | None
    """Lowest position that what is unsent rules out."""
    handed: Position | None
    """Highest position in the queue's first batch that was sent."""
    before: Track | None
    """What had been delivered before the queue began."""


class _Report:
    """The entries, and what may still be spent on more."""

    __slots__ = ("bytes", "cost", "entries", "recent")

    def __init__(self) -> None:
        self.entries: list[dict[str, object]] = []
        self.cost = MAX_COST
        self.bytes = MAX_BYTES
        self.recent: dict[Group, list[str]] = {}

    def add(self, id_: str, session: str, position: Position) -> bool:
        """Add an entry; False where there is no room for one so long."""
        size = ENTRY_BYTES + len(_write(id_)) + len(_write(session))
        if size > self.bytes:
            return False
        self.bytes -= size
        self.entries.append({"sub": id_, "session": session, "epoch": position[0], "seq": position[1]})
        return True

    def sessions(self, group: Group, max_positions: int) -> list[str]:
        """Return the sessions of which ``group`` was sent something, those written last first where they are many.

        Worked out once, however many subscriptions there are in the group.
        """
        found = self.recent.get(group)
        if found is None:
            tracks = group.tracks
            found = self.recent[group] = (
                list(tracks)
                if len(tracks) <= max_positions
                else sorted(tracks, key=lambda session: tracks[session][-1][0], reverse=True)
            )
        return found


def delivered(peer: Peer, store: Store, max_positions: int) -> list[dict[str, object]]:
    """Return ``{sub, session, epoch, seq}`` for each subscription and session of which ``peer`` was sent something.

    At most ``max_positions`` of each subscription, and no more than the bounds above allow.
    """
    outbox = peer.outbox
    pending = _pending(outbox)
    unsettled = {scope for scope, _ in pending} | {scope for scope, _ in outbox.skips or ()}
    settled = ANY not in unsettled
    report = _Report()
    for subscription in peer.subscriptions.values():
        group = subscription.group
        sessions: Iterable[str] = subscription.base
        if group is not None:
            live = report.sessions(group, max_positions)
            sessions = dict.fromkeys((*live, *subscription.base)) if subscription.base else live
        if (
            settled
            and subscription.replay is None
            and subscription not in unsettled
            and group not in unsettled
        ):
            _tell_settled(report, subscription, sessions, max_positions)
        else:
            _tell_unsettled(report, peer, subscription, sessions, max_positions, pending, store)
        if report.cost <= 0:
            break
    return report.entries


def _tell_settled(
    report: _Report, subscription: Subscription, sessions: Iterable[str], max_positions: int
) -> None:
    """Report what a subscription was handed of which nothing is queued, was dropped or is yet to be replayed."""
    base, since, group = subscription.base, subscription.since, subscription.group
    tracks: dict[str, Track] = {} if group is None else group.tracks
    told = 0
    for session in islice(sessions, max(0, report.cost)):
        report.cost -= 1
        position = higher(highest_since(tracks.get(session), since), base.get(session))
        if position is not None and report.add(subscription.id, session, position):
            told += 1
            if told >= max_positions:
                return


def _tell_unsettled(
    report: _Report,
    peer: Peer,
    subscription: Subscription,
    sessions: Iterable[str],
    max_positions: int,
    pending: dict[Key, Pending],
    store: Store,
) -> None:
    told = 0
    for session in sessions:
        if report.cost < EXACT_COST or told >= max_positions:
            return
        report.cost -= EXACT_COST
        position = _position(peer, subscription, session, pending, store)
        if position is not None and report.add(subscription.id, session, position):
            told += 1


def _pending(outbox: Outbox) -> dict[Key, Pending]:
    """Return what is unsent, by scope and session."""
    bounds: dict[object, dict[str | None, Position]] = {}
    handed: dict[Key, Position | None] = {}
    began: dict[Key, Track | None] = {}
    for batch, first in outbox.unsent():
        if first == 0:
            # Most of a long queue, and shared with others who end for the same reason.
            for scope, found in _bounds(batch):
                _lower(bounds.setdefault(scope, {}), found, scope, batch, began)
            continue
        for index, (_, mark, scopes) in enumerate(batch.entries()):
            if mark.bound is None:
                continue
            for scope in scopes:
                key = (scope, mark.session)
                began.setdefault(key, batch.before.get(key))
                if index < first:
                    handed[key] = higher(handed.get(key), mark.position)
                else:
                    _lower(bounds.setdefault(scope, {}), {mark.session: mark.bound}, scope, batch, began)
    for key, position in handed.items():
        if key[0] is ANY and position is not None:
            # Of that, nobody knows more than what was sent since.
            began[key] = None
    return {
        (scope, session): Pending(bounds.get(scope, {}).get(session), handed.get((scope, session)), track)
        for (scope, session), track in began.items()
    }


def _lower(
    bounds: dict[str | None, Position],
    found: dict[str | None, Position],
    scope: object,
    batch: Batch,
    began: dict[Key, Track | None],
) -> None:
    """Bring the ``bounds`` of ``scope`` down to those ``found`` in ``batch``."""
    for session, bound in found.items():
        known = bounds.get(session)
        if known is None:
            bounds[session] = bound
            key = (scope, session)
            began.setdefault(key, batch.before.get(key))
        elif bound < known:
            bounds[session] = bound


def _bounds(batch: Batch) -> Iterable[tuple[object, dict[str | None, Position]]]:
    if len(batch.marks) > 1:
        return batch.bounds().items()
    mark = batch.marks[0]
    scopes = (batch.scope,) if batch.scopes is None else batch.scopes[0]
    return () if mark.bound is None else [(scope, {mark.session: mark.bound}) for scope in scopes]


def _position(
    peer: Peer, subscription: Subscription, session: str, pending: dict[Key, Pending], store: Store
) -> Position | None:
    live = [found for scope in (subscription.group, ANY) if (found := pending.get((scope, session)))]
    replayed = pending.get((subscription, session))
    cursor = None if subscription.replay is None else subscription.replay.behind.get(session)
    handed = _replayed(subscription, session, replayed)
    if cursor is None:
        handed += _live(peer, subscription, session, live)
    else:
        handed += [queued.handed for queued in live if queued.handed is not None]
    queue = live if replayed is None else [*live, replayed]
    bounds = [queued.bound for queued in queue if queued.bound is not None]
    if cursor is not None:
        # The rest of this session is left to the cursor, whatever the group has delivered to others.
        bounds += _unread(cursor, session, store)
    bound = min(bounds, default=None)
    if bound is None:
        return max(handed, default=None)
    fit = max((position for position in handed if position < bound), default=None)
    if not handed or max(handed) == fit:
        return fit
    return higher(fit, _held_below(subscription, session, bound, store)) or before(bound)


def _unread(cursor: Cursor, session: str, store: Store) -> list[Position]:
    """Return positions that what ``cursor`` has yet to read rules out, and what it has yet to tell is gone."""
    lost, buffer = misses(store, session, cursor), store.get(session)
    found = [] if lost is None else [resumable_below(lost)]
    if cursor.key != START:
        is_split = buffer is not None and buffer.is_split(cursor)
        found.append(cursor.key if is_split else after(cursor.key))
    elif buffer is not None and buffer.tail() != START:
        # Of what stands before every position nobody can resume.
        found.append(buffer.earliest())
    return [bound for bound in found if bound is not None]


def _live(peer: Peer, subscription: Subscription, session: str, queue: list[Pending]) -> list[Position]:
    """Return positions handed over live, the highest ones where that is known; ``queue`` holds what is queued for the
    subscription alone, if anything, before what is queued for any."""
    group = subscription.group
    if group is None:
        return []
    track = queue[0].before if queue else group.tracks.get(session)
    known, since = peer.outbox.skips or {}, subscription.since
    found_skips = [known.get((scope, session)) for scope in (group, ANY)]
    # What was dropped before it subscribed was not for it.
    skips = [skip for skip in found_skips if skip is not None and skip.stamp > since]
    found = [queued.handed for queued in queue]
    if all(queue and _is_older(track, skip.before) for skip in skips):
        found.append(highest_since(track, since))
    if skips:
        found.append(highest_since(track, max(since, *(skip.stamp for skip in skips))))
        for skip in skips:
            found += [skip.kept, highest_since(skip.before, since)]
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
    """Return the highest held position below ``bound`` that this subscription asks for: it was handed all of them.

    None if that is not near.
    """
    buffer = store.get(session)
    if buffer is None:
        return None
    for event in buffer.below(bound, MAX_LOOKED_BACK):
        if subscription.filter.matches(event):
            return event.position
    return None
