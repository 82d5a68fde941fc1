"""Events kept by reference because no replay buffer holds them: bounded, and given up in order of their severity.

Invariants: ``size_bytes`` never exceeds the bound when a call returns; what is given up is the oldest ``debug`` or
``info`` Event first, and the oldest of the others only when there is none. Places whose Event was given up take no
more room than those that hold one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aep_relay.protocol.registry import SEVERITY_RANK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from aep_relay.protocol.event import Event

NOTICE = SEVERITY_RANK["notice"]

MIN_SWEPT = 16
"""So few places are not worth looking through for empty ones."""


@dataclass(slots=True, eq=False)
class Ref:
    """A place for an Event; empty once it was taken or given up."""

    event: Event | None


class Refs:
    """Places in the order in which their Events are to go up; those that are empty by then are swept away."""

    __slots__ = ("_places", "_sweep_at")

    def __init__(self) -> None:
        self._places: deque[Ref] = deque()
        self._sweep_at = MIN_SWEPT

    def __len__(self) -> int:
        return len(self._places)

    def append(self, ref: Ref) -> None:
        """Add a place at the end."""
        self._places.append(ref)
        self._sweep()

    def extend(self, refs: Iterable[Ref]) -> None:
        """Add places at the end."""
        self._places.extend(refs)
        self._sweep()

    def put_first(self, refs: list[Ref]) -> None:
        """Add places before all others."""
        self._places.extendleft(reversed(refs))
        self._sweep()

    def popleft(self) -> Ref:
        """Remove the first place and return it."""
        return self._places.popleft()

    def take_all(self) -> deque[Ref]:
        """Remove all places and return them."""
        places, self._places = self._places, deque()
        return places

    def _sweep(self) -> None:
        # An outage may empty any number of places behind one that is never given up.
        if len(self._places) > self._sweep_at:
            self._places = deque(ref for ref in self._places if ref.event is not None)
            self._sweep_at = 2 * len(self._places) + MIN_SWEPT


class Kept:
    """All that is kept, whoever keeps it."""

    def __init__(self, max_bytes: int, shed: Callable[[Event], None]) -> None:
        self._max_bytes = max_bytes
        self._shed = shed
        self.size_bytes = 0
        self._droppable: deque[Ref] = deque()
        self._essential: deque[Ref] = deque()
        self._empty = 0

    def add(self, event: Event) -> Ref:
        """Keep ``event``; something may have to go for it, itself even, of which ``shed`` is told."""
        ref = Ref(event)
        (self._droppable if event.severity < NOTICE else self._essential).append(ref)
        self.size_bytes += event.held_bytes
        while self.size_bytes > self._max_bytes:
            self._give_up()
        return ref

    def take(self, ref: Ref) -> Event | None:
        """Return the Event at ``ref``, kept no longer; None when it was given up."""
        event, ref.event = ref.event, None
        if event is not None:
            self.size_bytes -= event.held_bytes
            self._empty += 1
            if self._empty > 1024 and 2 * self._empty > len(self._droppable) + len(self._essential):
                self._sweep()
        return event

    def bound(self, max_bytes: int) -> None:
        """Keep no more than ``max_bytes`` from now on."""
        self._max_bytes = max_bytes
        while self.size_bytes > max_bytes:
            self._give_up()

    def _give_up(self) -> None:
        refs = self._droppable
        while refs and refs[0].event is None:
            refs.popleft()
            self._empty -= 1
        if not refs:
            refs = self._essential
        ref = refs.popleft()
        event, ref.event = ref.event, None
        if event is None:
            self._empty -= 1
            return
        self.size_bytes -= event.held_bytes
        self._shed(event)

    def _sweep(self) -> None:
        self._droppable = deque(ref for ref in self._droppable if ref.event is not None)
        self._essential = deque(ref for ref in self._essential if ref.event is not None)
        self._empty = 0
