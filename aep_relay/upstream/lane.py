"""The ways up, and what is on them: the records that a ``Ledger`` keeps."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aep_relay.upstream.kept import Refs

if TYPE_CHECKING:
    from collections.abc import Callable

    from aep_relay.hub.buffer import Cursor
    from aep_relay.protocol.event import Event


@dataclass(slots=True, eq=False)
class Flight:
    """Events that were sent together."""

    serial: int
    events: list[Event]
    size_bytes: int
    """Of their texts: about what was written."""
    charged_bytes: int
    """What they count for while they are kept."""


@dataclass(slots=True, eq=False)
class Lane:
    """One ordered way up: a mirror's connection, or the POSTs."""

    wake: Callable[[], None]
    """Called when there is something to take, if the last ``take`` found nothing."""
    is_up: bool = False
    is_idle: bool = False
    claims: bool = False
    """Whether it is an emitter's own: its sessions are its rather than the POSTs'."""
    pending: deque[Event | None] = field(default_factory=deque)
    """None in place of what was taken out of order."""
    appended: int = 0
    popped: int = 0
    """How many have ever been pending, and how many are no more."""
    flying: deque[Flight] = field(default_factory=deque)
    behind: dict[str, Behind] = field(default_factory=dict)
    loose: Refs = field(default_factory=Refs)
    """Events of no session, kept while the lane is down."""
    serial: int = 0
    """Of the newest flight."""
    confirmed: int = 0
    """Serial of the newest flight that is over, in one way or the other."""
    waiters: dict[Lane, int] = field(default_factory=dict)
    """Lanes that go on with a session when flights of this one are over, up to that serial."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is on its way or waits for it."""
        return not (self.pending or self.flying or self.behind or self.loose)


@dataclass(slots=True, eq=False)
class Behind:
    """A session that goes on from its replay buffer."""

    session: str
    lane: Lane
    cursor: Cursor | None = None
    refs: Refs = field(default_factory=Refs)
    """What the cursor will not read: it goes first."""
    mark: int = 0
    """How many have to be popped from its lane before: some of those may be its own."""
    after: tuple[Lane, int] | None = None
    """The lane it was on before and the flight there that has to be over."""

    @property
    def is_ready(self) -> bool:
        """Whether nothing of it is pending any more, or in flight on another lane."""
        if self.after is not None and self.after[0].confirmed >= self.after[1]:
            self.after = None
        return self.after is None and self.lane.popped >= self.mark
