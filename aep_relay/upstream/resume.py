"""From where a pull goes on, and which of the Events that come are new to the consumers here: pure state.

The first request asks for all that the upstream holds, later ones for what came after the last position of each session
and, where the upstream can be asked for that, for all other sessions whole. An upstream that refuses a request is
asked for less.

A resume brings again what this relay holds already; a repeated acknowledgement does so too, and has to pass
(AEP-0003 §5). What tells them apart: over one connection, a replay of a session only ever goes up in position. So an
Event that is held is a replay as long as it goes up, and a repetition once it does not. One that has no position counts
as replayed until something of its session was new.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from itertools import islice
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from aep_relay.hub.store import Store
    from aep_relay.protocol.event import Event
    from aep_relay.protocol.position import Position

    From = list[dict[str, object]] | Literal["all"] | None

MAX_SESSIONS: Final = 100_000
"""Sessions whose position is remembered."""
MAX_POSITIONS: Final = 10_000
"""Of them in one request; the ones heard of last."""

ACKNOWLEDGEMENTS: Final = frozenset({"control.accepted", "control.rejected"})
"""What is repeated on purpose (AEP-0004 §3)."""

_LIMIT = re.compile(r"\b[1-9][0-9]{0,8}\b")


class Resume:
    """What one link has had."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._positions: OrderedDict[str, Position] = OrderedDict()
        """Highest position of each session that came, the one heard of last at the end."""
        self._highest: dict[str, Position] = {}
        """What this connection's replays have reached, or began behind."""
        self._live: set[str] = set()
        self._instance: object = None
        self._is_anew = False
        """Whether this connection is the first one to this run of the upstream, and there was another."""
        self._limit = MAX_POSITIONS
        self._base: dict[str, Position] | None = None
        self.replayed = 0
        """Counts what a search for sessions that began meanwhile brought."""

    # What to ask for

    def requests(self, *, all_offered: bool) -> list[From]:
        """Return what to ask for in order of preference, each for when the one before is refused as malformed."""
        wanted: list[From] = []
        if self._positions:
            wanted.append(self._points(self._limit))
        if all_offered:
            wanted.append("all")
        return [*wanted, None]

    def _points(self, limit: int) -> list[dict[str, object]]:
        # Of the end only: there may be a hundred thousand, most of them long over.
        last = list(islice(reversed(self._positions.items()), limit))[::-1]
        return [{"session": name, "epoch": epoch, "seq": seq} for name, (epoch, seq) in last]

    def fewer(self, from_: From, detail: str) -> From:
        """Return what to ask for when ``from_`` was too much, by what the refusal's ``detail`` says; None: nothing."""
        if not isinstance(from_, list) or len(from_) <= 1:
            return None
        said = _LIMIT.search(detail)
        limit = int(said[0]) if said is not None else len(from_)
        self._limit = limit if limit < len(from_) else len(from_) // 2
        return self._points(self._limit)

    def begin(self, from_: From, instance: object = None) -> None:
        """Begin a connection on which ``from_`` was asked for, with the run ``instance`` of the upstream."""
        self._live = set()
        self._base = None
        self._is_anew = self._instance not in (None, instance)
        self._instance = instance
        if self._is_anew:
            # It may hold nothing, and be sent all of it again by those that feed it.
            self._highest = {}
            return
        named = {str(point["session"]) for point in from_} if isinstance(from_, list) else set[str]()
        self._highest = {name: self._positions[name] for name in named if name in self._positions}
        if from_ is None:
            # Nothing is replayed: whatever is held comes again because it was sent again.
            self._highest = dict(self._positions)
            self._live = set(self._positions)

    def search(self) -> None:
        """Expect all that the upstream holds, besides: sessions that are not known may have begun meanwhile."""
        self._base = dict(self._highest)

    def found(self) -> None:
        """Expect it no more."""
        self._base = None

    # What comes

    def is_new(self, event: Event) -> bool:
        """Say whether ``event`` is to be fanned out here: it was not had before, or it is a repetition on purpose."""
        session = event.session
        if session is None:
            return True
        position = event.position
        if position is None:
            return session in self._live or not self._store.holds(event)
        self._note(session, position)
        highest = self._highest.get(session)
        if self._base is not None:
            base = self._base.get(session)
            if base is None or position <= base:
                self.replayed += 1
            if event.type not in ACKNOWLEDGEMENTS and self._store.holds(event):
                # It comes once for each of two subscriptions.
                return False
        if highest is not None and position <= highest:
            return True
        self._highest[session] = position
        if self._store.holds(event):
            return self._is_anew and event.type in ACKNOWLEDGEMENTS
        self._live.add(session)
        return True

    def _note(self, session: str, position: Position) -> None:
        positions = self._positions
        known = positions.get(session)
        if known is None:
            if len(positions) >= MAX_SESSIONS:
                forgotten, _ = positions.popitem(last=False)
                self._highest.pop(forgotten, None)
                self._live.discard(forgotten)
            positions[session] = position
            return
        positions.move_to_end(session)
        if position > known:
            positions[session] = position

    def delivered(self, session: str, position: Position) -> None:
        """Note that the upstream, ending the connection, says that it sent all of ``session`` up to ``position``.

        What came out of order can be missing although what follows it came (AEP-0003 §3.5.4).
        """
        known = self._positions.get(session)
        if known is not None and position < known:
            self._positions[session] = position
