"""Subscriptions, the groups they form, and the index that finds the groups of an Event.

Subscriptions with the same filter and ceiling form one ``Group``, which is evaluated once for each Event. Groups are
indexed by their most selective equality: ``session``, else ``agent``, else ``type``; what has none of these is
scanned. So an Event pays for the groups that could match it, not for all. AEP-0003 §6.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

    from aep_relay.hub.cohort import Cohort
    from aep_relay.hub.positions import Track
    from aep_relay.hub.replay import Replay
    from aep_relay.protocol.event import Event
    from aep_relay.protocol.filters import Filter
    from aep_relay.protocol.framing import Framing
    from aep_relay.protocol.position import Position

    _Name = Literal["session", "agent", "type"]
    _Matcher = Callable[[Event], bool] | None

MAX_TYPE_CACHE = 4096
"""Distinct types whose candidate groups are remembered; types come from outside."""

MAX_CACHED_TYPE_CHARS = 256

GroupKey = tuple[str, int | None]


class Group:
    """All subscriptions with one filter and one ceiling."""

    __slots__ = ("ceiling", "count", "filter", "key", "mixed", "plain", "tracked", "tracks")

    def __init__(self, key: GroupKey, filter_: Filter, ceiling: int | None) -> None:
        self.key = key
        self.filter = filter_
        self.ceiling = ceiling
        self.count = 0
        """Live subscriptions in it."""
        self.tracked = 0
        """How many of them report delivered positions when they end."""
        self.plain: dict[Framing, Cohort] = {}
        """The cohorts, by framing, whose only group this is."""
        self.mixed: dict[Cohort, None] = {}
        """The cohorts for which more than this group decides."""
        self.tracks: dict[str, Track] = {}
        """By session, the highest live positions (see ``hub.positions``)."""


class Subscription:
    """One consumer's standing request for Events."""

    __slots__ = ("base", "ceiling", "filter", "group", "held_bytes", "id", "replay", "served", "since")

    def __init__(self, id_: str, filter_: Filter, ceiling: int | None, since: int) -> None:
        self.id = id_
        self.filter = filter_
        self.ceiling = ceiling
        self.held_bytes = 0
        """What it counts for toward ``max_subscription_bytes``."""
        self.since = since
        """Arrival stamp after which live Events are its own."""
        self.group: Group | None = None
        """None for a subscription that replays and ends."""
        self.replay: Replay | None = None
        self.served = 0
        """When a slice was last read for it; slices are numbered."""
        self.base: dict[str, Position] = {}
        """By session, the highest position requested or handed over by its replay."""


class Slots(dict[Group, "_Matcher"]):
    """Groups that an Event with one value of an attribute may match, each with the test that is left."""

    __slots__ = ("weight",)

    def __init__(self) -> None:
        super().__init__()
        self.weight = 0
        """What all the tests take together, in predicates."""

    def add(self, group: Group, matcher: _Matcher) -> None:
        """Put in a group that is not here."""
        self[group] = matcher
        self.weight += group.filter.weight

    def take_out(self, group: Group) -> None:
        """Take out a group that is here."""
        del self[group]
        self.weight -= group.filter.weight


class Index:
    """The groups, found by what an Event carries."""

    __slots__ = (
        "_by_agent",
        "_by_prefix",
        "_by_session",
        "_by_type",
        "_scanned",
        "_typed",
        "groups",
        "weight",
    )

    def __init__(self) -> None:
        self.groups: dict[GroupKey, Group] = {}
        self.weight = 0
        """What it would take to compare an Event with every group, in predicates."""
        self._by_session: dict[str, Slots] = {}
        self._by_agent: dict[str, Slots] = {}
        self._by_type: dict[str, Slots] = {}
        self._by_prefix: dict[str, Slots] = {}
        self._scanned = Slots()
        self._typed: dict[str, tuple[Slots, ...]] = {}

    def group(self, filter_: Filter, ceiling: int | None) -> Group:
        """Return the group of ``filter_`` and ``ceiling``, made and indexed when it is new."""
        key = (filter_.key, ceiling)
        group = self.groups.get(key)
        if group is None:
            group = self.groups[key] = Group(key, filter_, ceiling)
            self._typed.clear()
            name, lists = self._places(filter_, create=True)
            matcher = filter_.matcher_without(name)
            self.weight += filter_.weight
            for slots in lists:
                slots.add(group, matcher)
        return group

    def discard(self, group: Group) -> None:
        """Forget a group that has no subscription any more."""
        del self.groups[group.key]
        self._typed.clear()
        _, lists = self._places(group.filter, create=False)
        self.weight -= group.filter.weight
        for slots in lists:
            slots.take_out(group)
        self._prune(group.filter)

    def _places(self, filter_: Filter, *, create: bool) -> tuple[_Name | None, list[Slots]]:
        if filter_.sessions is not None:
            return "session", _lists(self._by_session, filter_.sessions, create)
        if filter_.agents is not None:
            return "agent", _lists(self._by_agent, filter_.agents, create)
        if filter_.types is not None or filter_.prefixes:
            lists = _lists(self._by_type, filter_.types or (), create)
            return "type", lists + _lists(self._by_prefix, filter_.prefixes, create)
        return None, [self._scanned]

    def _prune(self, filter_: Filter) -> None:
        names = (filter_.sessions, filter_.agents, filter_.types, filter_.prefixes)
        tables = (self._by_session, self._by_agent, self._by_type, self._by_prefix)
        for values, table in zip(names, tables, strict=True):
            for value in values or ():
                if value in table and not table[value]:
                    del table[value]

    def matching(self, event: Event) -> list[Group]:
        """Return every group whose filter matches ``event``, each once."""
        found: list[Group] = []
        if self._scanned:
            found += [group for group, matcher in self._scanned.items() if matcher is None or matcher(event)]
        if self._by_session:
            slots = self._by_session.get(event.session)  # type: ignore[arg-type]  # no key is None
            if slots:
                found += [group for group, matcher in slots.items() if matcher is None or matcher(event)]
        if self._by_agent:
            slots = self._by_agent.get(event.agent)
            if slots:
                found += [group for group, matcher in slots.items() if matcher is None or matcher(event)]
        if self._by_type or self._by_prefix:
            typed = self._typed.get(event.type)
            # A group is in one of them only: its filter has no type that one of its prefixes covers.
            for slots in self._type_slots(event.type) if typed is None else typed:
                found += [group for group, matcher in slots.items() if matcher is None or matcher(event)]
        return found

    def cost(self, event: Event) -> int:
        """Return what ``matching`` would take for ``event``, in predicates."""
        found = self._scanned.weight
        for slots in (self._by_session.get(event.session or ""), self._by_agent.get(event.agent)):
            if slots is not None:
                found += slots.weight
        if self._by_type or self._by_prefix:
            typed = self._typed.get(event.type)
            found += sum(
                [slots.weight for slots in (self._type_slots(event.type) if typed is None else typed)]
            )
        return found

    def _type_slots(self, type_: str) -> tuple[Slots, ...]:
        found = [self._by_type.get(type_)]
        at = type_.find(".")
        while at >= 0:
            found.append(self._by_prefix.get(type_[: at + 1]))
            at = type_.find(".", at + 1)
        typed = tuple([slots for slots in found if slots is not None])
        if len(type_) <= MAX_CACHED_TYPE_CHARS:
            if len(self._typed) >= MAX_TYPE_CACHE:
                self._typed.clear()
            self._typed[type_] = typed
        return typed


def _lists(table: dict[str, Slots], values: frozenset[str] | tuple[str, ...], create: bool) -> list[Slots]:
    if create:
        return [table.setdefault(value, Slots()) for value in values]
    return [table[value] for value in values if value in table]
