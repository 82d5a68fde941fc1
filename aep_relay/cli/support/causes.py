"""What caused what in a history: a forest, since an Event names one cause at most.

Invariants: every Event occurs once; causes that form a circle, which no honest emitter writes, end nowhere but still
show; deep chains need no deep stack.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aep_relay.protocol.event import Event

MAX_DRAWN_DEPTH = 40
"""Beyond, a branch is drawn no further to the right."""


@dataclass(frozen=True, slots=True)
class Node:
    """An Event in its place. ``branch`` is what is drawn in front of it."""

    event: Event
    parent: Event | None
    depth: int
    branch: str


def nodes(events: Sequence[Event]) -> Iterator[Node]:
    """Yield the Events of a history, each behind the one that caused it, siblings in their order."""
    parents = _parents(events)
    children: dict[int, list[int]] = {}
    for at, parent in parents.items():
        children.setdefault(parent, []).append(at)
    shown: set[int] = set()
    roots = [at for at in range(len(events)) if at not in parents]
    for root in [*roots, *range(len(events))]:
        if root not in shown:
            yield from _walk(events, root, children, shown)


def _parents(events: Sequence[Event]) -> dict[int, int]:
    """Return for each Event the one that its cause names: of several with that id, of its own source first."""
    by_key = {event.key: at for at, event in reversed(list(enumerate(events)))}
    by_id = {event.id: at for at, event in reversed(list(enumerate(events)))}
    found: dict[int, int] = {}
    for at, event in enumerate(events):
        if event.cause is not None:
            parent = by_key.get((event.source, event.cause), by_id.get(event.cause))
            if parent is not None and parent != at:
                found[at] = parent
    return found


def _walk(
    events: Sequence[Event], root: int, children: dict[int, list[int]], shown: set[int]
) -> Iterator[Node]:
    # What is still to be shown: index, parent, depth, and what is drawn in front of it and of what is below it.
    waiting: list[tuple[int, int | None, int, str, str]] = [(root, None, 0, "", "")]
    while waiting:
        at, parent, depth, branch, below = waiting.pop()
        if at in shown:
            continue
        shown.add(at)
        yield Node(events[at], None if parent is None else events[parent], depth, branch)
        mine = [child for child in children.get(at, ()) if child not in shown]
        for child in reversed(mine):
            last = child == mine[-1]
            if depth < MAX_DRAWN_DEPTH:
                drawn = (below + ("└─ " if last else "├─ "), below + ("   " if last else "│  "))
            else:
                drawn = (below + "… ", below)
            waiting.append((child, at, depth + 1, *drawn))
