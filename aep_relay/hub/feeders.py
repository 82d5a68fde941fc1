"""Who feeds whom: what chained relays tell each other, so that no Event goes round in a circle.

Live fan-out forwards every delivery as it was received, so an Event that came back to where it has been would never
die out. So each relay tells those it feeds which relays feed it, directly or not; one that finds itself among those
that feed it stands in a circle.

Invariants: what is told over a link leaves out what was learned over the same link, so that a link in both directions
is no circle by itself. What others tell is bounded, and whatever is malformed tells nothing.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    Graph = dict[str, list[str]]
    """For each relay, by its instance id, those that feed it directly."""

NAME: Final = "aep-relay"
"""Key in ``capabilities.experimental`` and type of the frame that tells of changes."""

MAX_RELAYS: Final = 4096
"""Relays, and pairs of them, in one announcement."""

MAX_NAMES: Final = 16 * MAX_RELAYS
"""In all announcements that are merged, those that come again included: what it takes to merge them."""

MAX_LOOPS: Final = 32
"""Circles that are remembered, to be looked at."""

SECOND_LOOK_SECONDS: Final = 0.3
"""When a circle was closed in several places at once, all but one relay wait so long, or up to twice as long, before
they end a link for it."""

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}")


@dataclass(frozen=True, slots=True)
class Announcement:
    """What a relay says of itself over a link."""

    relay: str
    """Its instance id."""
    link: str | None
    """Name of the link, the same for all its connections; None from who answers."""
    fed_by: Graph | None
    """Who feeds it, itself included as a key; None from one that feeds nobody over this link."""


def parse(value: object) -> Announcement | None:
    """Return what ``value``, from a hello or a frame, announces; None when it is no announcement."""
    if not isinstance(value, dict) or not _is_id(value.get("relay")):
        return None
    link, fed_by = value.get("link"), value.get("fed_by")
    if (link is not None and not _is_id(link)) or (fed_by is not None and not _is_graph(fed_by)):
        return None
    return Announcement(value["relay"], link, fed_by)


def _is_id(value: object) -> bool:
    return isinstance(value, str) and _ID.fullmatch(value) is not None


def _is_graph(value: object) -> bool:
    if not isinstance(value, dict) or not all(isinstance(ids, list) for ids in value.values()):
        return False
    names = [*value, *(id_ for ids in value.values() for id_ in ids)]
    return len(names) <= 2 * MAX_RELAYS and all(map(_is_id, names))


class Feeders:
    """Who feeds this relay, as the links that feed it tell."""

    def __init__(self, instance: str) -> None:
        self.instance = instance
        self.watchers: list[Callable[[], None]] = []
        """Who is told that something has changed. Must not change it in turn."""
        self.loops: dict[tuple[str, ...], int] = {}
        """How often each circle was found that this relay stands in, by its path."""
        self._known: dict[Hashable, Announcement] = {}
        self._graphs: dict[str | None, Graph] = {}
        """Merged already, by the link that is left out."""

    def learn(self, source: Hashable, announcement: Announcement) -> None:
        """Know what ``source``, a connection of a link, has announced, in place of what it had before."""
        if self._known.get(source) != announcement:
            self._known[source] = announcement
            self._tell()

    def forget(self, source: Hashable) -> None:
        """Forget what ``source`` announced: its link is over."""
        if self._known.pop(source, None) is not None:
            self._tell()

    def _tell(self) -> None:
        self._graphs.clear()
        for tell in list(self.watchers):
            tell()

    def announcement(self, link: str | None, *, named: bool = False) -> dict[str, object]:
        """Return what to announce over ``link``, as JSON; ``named`` if this side has to name the link."""
        found: dict[str, object] = {"relay": self.instance}
        if named:
            found["link"] = link
        found["fed_by"] = self.graph(link)
        return found

    def graph(self, link: str | None = None) -> Graph:
        """Return who feeds whom, down to this relay, without what was learned over ``link``."""
        found = self._graphs.get(link)
        if found is None:
            found = self._graphs[link] = self._merged(link)
        return found

    def _merged(self, link: str | None) -> Graph:
        pairs: dict[str, dict[str, None]] = {self.instance: {}}
        names, looked_at = 1, 0
        for known in self._known.values():
            if link is not None and known.link == link:
                continue
            if names >= 2 * MAX_RELAYS:
                break
            pairs[self.instance][known.relay] = None
            names += 1
            for relay, feeders in (known.fed_by or {}).items():
                before = len(pairs.get(relay, ()))
                looked_at += 1 + len(feeders)
                if looked_at > MAX_NAMES or names + 1 + len(feeders) > 2 * MAX_RELAYS:
                    # More than anybody takes.
                    return {relay: list(feeders) for relay, feeders in pairs.items()}
                names += relay not in pairs
                pairs.setdefault(relay, {}).update(dict.fromkeys(feeders))
                names += len(pairs[relay]) - before
        return {relay: list(feeders) for relay, feeders in pairs.items()}

    def circle(self, announcement: Announcement) -> tuple[str, ...] | None:
        """Return the way from this relay to the one that announced, if it is fed by this one; this one stands first."""
        return _path(announcement.fed_by or {}, announcement.relay, self.instance)

    def goes_first(self, path: tuple[str, ...]) -> bool:
        """Say whether it is this relay's turn to break the circle ``path``, when all in it may have found it."""
        return self.instance == min(path)

    def circle_through(self, relay: str, link: str | None) -> tuple[str, ...] | None:
        """Return the way from ``relay``, about to be fed over ``link``, to this one, if there is one."""
        return _path(self.graph(link), self.instance, relay)

    def found(self, path: tuple[str, ...]) -> str:
        """Remember a circle and return it as text, closed."""
        least = path.index(min(path))
        path = path[least:] + path[:least]
        if path in self.loops or len(self.loops) < MAX_LOOPS:
            self.loops[path] = self.loops.get(path, 0) + 1
        return text(path)

    def describe(self) -> list[dict[str, object]]:
        """Return each circle that was found: its path, and how often a link was refused for it."""
        return [{"path": text(path), "times": times} for path, times in self.loops.items()]


def text(path: tuple[str, ...]) -> str:
    """Return a circle as text: each relay feeds the next one."""
    return " -> ".join((*path, path[0]))


def _path(graph: Graph, end: str, start: str) -> tuple[str, ...] | None:
    """Return the shortest way on which ``start`` feeds ``end``."""
    after: dict[str, str | None] = {end: None}
    waiting = deque([end])
    while waiting:
        relay = waiting.popleft()
        if relay == start:
            path: list[str] = []
            at: str | None = relay
            while at is not None:
                path.append(at)
                at = after[at]
            return tuple(path)
        for feeder in graph.get(relay, ()):
            if feeder not in after:
                after[feeder] = relay
                waiting.append(feeder)
    return None
