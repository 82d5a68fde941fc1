"""Replay of one subscription: for each session still behind, a cursor into its buffer (AEP-0003 §5, §7).

Replay is pulled from the buffers as the consumer's socket drains. While a session stands in ``behind``, live Events
ahead of its cursor are left to the cursor; the read that reaches the end of the buffer takes the session out, and from
then on its Events are live. Both happen in one synchronous step, so there is no gap and the order is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from aep_relay.hub.buffer import START, Cursor
from aep_relay.hub.positions import after

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aep_relay.hub.buffer import Lost, SessionBuffer
    from aep_relay.hub.store import Store
    from aep_relay.protocol.event import Event
    from aep_relay.protocol.filters import Filter
    from aep_relay.protocol.position import Position, ResumePoint

    From = list[ResumePoint] | Literal["all"] | None


POINT_BYTES = 500
"""What a resume position takes besides the session's name: an entry with a cursor, and one for the farewell."""

CURSOR_BYTES = 120
"""What a session takes that is behind, without a position of its own."""

MAX_HAD = 4096
"""Commands that a replay leaves out."""


class Replay:
    """The sessions one subscription has yet to catch up with, in order."""

    __slots__ = ("behind", "ends", "had")

    def __init__(self, behind: dict[str, Cursor], *, ends: bool) -> None:
        self.behind = behind
        self.ends = ends
        """Whether the subscription is over when nothing is behind (``live=0``)."""
        self.had: set[tuple[str, str]] = set()
        """``(source, id)`` of commands ahead of a cursor that the consumer was handed as their target."""

    def hand(self, command: Event) -> None:
        """Note that ``command`` was handed to the consumer and is not to be replayed to it."""
        if command.session in self.behind:
            if len(self.had) >= MAX_HAD:
                # Forgetting them means only that some are handed over twice.
                self.had.clear()
            self.had.add(command.key)


def plan(
    store: Store, filter_: Filter, from_: From, *, ends: bool, others: bool = False
) -> tuple[Replay, dict[str, Position]]:
    """Return the replay that ``from_`` asks for and the position it names for each session.

    With ``others`` every session that it does not name is replayed whole.
    """
    base: dict[str, Position] = {}
    behind: dict[str, Cursor] = {}
    if from_ is None or from_ == "all":
        for buffer in _held(store, filter_) if from_ == "all" else ():
            behind[buffer.session] = buffer.cursor_at_start()
    else:
        for point in from_:
            known = base.get(point.session)
            if known is None or point.position < known:
                base[point.session] = point.position
        for session, position in base.items():
            if filter_.sessions is None or session in filter_.sessions:
                behind[session] = Cursor(position, after=position)
        for buffer in _held(store, filter_) if others else ():
            if buffer.session not in base:
                behind[buffer.session] = buffer.cursor_at_start()
    if ends:
        for session, cursor in behind.items():
            held = store.get(session)
            cursor.until = START if held is None else held.tail()
    return Replay(behind, ends=ends), base


def held_bytes(filter_: Filter, from_: From) -> int:
    """Return about how much memory a subscription takes for what it was asked: its filter and its positions."""
    points = from_ if isinstance(from_, list) else ()
    return filter_.footprint_bytes + sum(POINT_BYTES + len(point.session) for point in points)


def _held(store: Store, filter_: Filter) -> Iterator[SessionBuffer]:
    for session in list(store) if filter_.sessions is None else sorted(filter_.sessions):
        buffer = store.get(session)
        if buffer is not None:
            yield buffer


def overtaken(store: Store, session: str, cursor: Cursor) -> bool:
    """Say whether eviction took something that ``cursor`` has yet to read, and if so move it past the loss."""
    lost = misses(store, session, cursor)
    if lost is None:
        return False
    cursor.key, cursor.last, cursor.after, cursor.lost = lost.position, None, None, lost
    return True


def misses(store: Store, session: str, cursor: Cursor) -> Lost | None:
    """Return what is gone of ``session`` if something is among it that ``cursor`` has yet to read."""
    lost = store.lost(session)
    if lost is None or lost is cursor.lost:
        return None
    buffer = store.get(session)
    if buffer is not None:
        gone = buffer.overtaken(cursor)
    else:
        # It had something before it, or it is still to tell what followed the requested position.
        gone = cursor.last is not None or cursor.after is None or lost.after(cursor.after)
    return lost if gone else None


def resumable_below(lost: Lost) -> Position | None:
    """Return the lowest position from which who resumes is not told of what is ``lost``; None if nobody is."""
    if lost.position == START:
        return None
    return after(lost.position) if lost.riders else lost.position
