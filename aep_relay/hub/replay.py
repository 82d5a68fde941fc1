"""Replay of one subscription: for each session still behind, a cursor into its buffer (AEP-0003 §5, §7).

Replay is pulled from the buffers as the consumer's socket drains. While a session stands in ``behind``, live Events
ahead of its cursor are left to the cursor; the read that reaches the end of the buffer takes the session out, and from
then on its Events are live. Both happen in one synchronous step, so there is no gap and the order is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from aep_relay.hub.buffer import START, Cursor, Lost

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aep_relay.hub.store import Store
    from aep_relay.protocol.event import Event
    from aep_relay.protocol.filters import Filter
    from aep_relay.protocol.position import Position, ResumePoint

    From = list[ResumePoint] | Literal["all"] | None


class Replay:
    """The sessions one subscription has yet to catch up with, in order."""

    __slots__ = ("behind", "ends")

    def __init__(self, behind: dict[str, Cursor], *, ends: bool) -> None:
        self.behind = behind
        self.ends = ends
        """Whether the subscription is over when nothing is behind (``live=0``)."""

    def leaves(self, event: Event, key: Position | None) -> bool:
        """Say whether a live ``event``, admitted at ``key``, is left to the cursor of its session."""
        if key is None or event.session is None:
            return False
        cursor = self.behind.get(event.session)
        return cursor is not None and cursor.ahead(key, rider=event.position is None)


def plan(store: Store, filter_: Filter, from_: From, *, ends: bool) -> tuple[Replay, dict[str, Position]]:
    """Return the replay that ``from_`` asks for and the position it names for each session."""
    base: dict[str, Position] = {}
    behind: dict[str, Cursor] = {}
    if from_ is None or from_ == "all":
        for session in _held(store, filter_) if from_ == "all" else ():
            behind[session] = Cursor(START)
    else:
        for point in from_:
            known = base.get(point.session)
            if known is None or point.position < known:
                base[point.session] = point.position
        for session, position in base.items():
            if filter_.sessions is None or session in filter_.sessions:
                behind[session] = Cursor(position, after=position)
    if ends:
        for session, cursor in behind.items():
            buffer = store.get(session)
            cursor.until = START if buffer is None else buffer.tail()
    return Replay(behind, ends=ends), base


def _held(store: Store, filter_: Filter) -> Iterable[str]:
    if filter_.sessions is None:
        return list(store)
    return [session for session in filter_.sessions if store.get(session) is not None]


def overtaken(store: Store, session: str, cursor: Cursor) -> bool:
    """Say whether eviction took something that ``cursor`` has yet to read, and if so move it past the loss."""
    buffer = store.get(session)
    if buffer is None:
        lost = store.lost(session)
        gone = lost is not None and _lost_ahead(lost, cursor)
        if lost is not None and gone:
            cursor.key, cursor.last, cursor.after = lost.position, None, None
        return gone
    if not buffer.overtaken(cursor):
        return False
    past = buffer.cursor_past_lost()
    cursor.key, cursor.last, cursor.after = past.key, past.last, None
    return True


def _lost_ahead(lost: Lost, cursor: Cursor) -> bool:
    if cursor.last is not None:
        return cursor.key < lost.position
    return cursor.after is not None and lost.after(cursor.after)
