"""The fan-out engine: from one Event to the sockets of all that want it.

``publish`` finds the groups that match and adds the Event, framed once for each (ceiling, framing), to their cohorts'
open batches. ``flush`` hands the batches to the sockets: one joined run of bytes and one non-blocking send for each
connection, in slices, so that its caller can let other tasks run in between. Nothing here awaits.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from aep_relay.hub.buffer import START
from aep_relay.hub.cohort import Cohort
from aep_relay.hub.outbox import Mark
from aep_relay.hub.pacing import Pacing
from aep_relay.hub.positions import after, extend
from aep_relay.hub.subscriptions import Index
from aep_relay.protocol.capture import downlevel
from aep_relay.protocol.framing import Framing, encode, encode_each
from aep_relay.protocol.registry import CAPTURE_RANK, SEVERITY_RANK

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from aep_relay.hub.limits import Limits
    from aep_relay.hub.pacing import Found
    from aep_relay.hub.peer import Peer
    from aep_relay.hub.stats import Stats
    from aep_relay.hub.store import Store
    from aep_relay.hub.subscriptions import Group
    from aep_relay.protocol.event import Event
    from aep_relay.protocol.position import Position

BATCH_BYTES = 256 * 1024
"""A batch is sealed at this size, or at a quarter of the soft limit if that is less."""

SLICE_COST_BYTES = 8 * 1024 * 1024
"""A slice of a flush ends when its sends, each with ``SEND_COST_BYTES`` added, amount to this: some milliseconds."""

SEND_COST_BYTES = 40 * 1024
"""What a send costs however little it carries, in bytes copied."""

DROP_COST_BYTES = 4 * 1024
"""What it costs, likewise, to go through an Event of a batch of which a slow consumer is not sent all."""

END_COST_BYTES = SLICE_COST_BYTES
"""What it costs to end a connection that has fallen too far behind, likewise."""

BACKLOG_COST_BYTES = 16 * 1024 * 1024
"""When flushing what was published would cost this much, ingestion has to flush before it goes on."""

REDACTION_FACTOR = 16
"""How many times as long as other text it may take to down-level text that is redacted: up to a microsecond a byte."""

NOTICE = SEVERITY_RANK["notice"]
REDACTED = CAPTURE_RANK["redacted"]

_TRACKED = (Framing.WEBSOCKET,)
"""The framings on which a connection ends with its delivered positions."""


class FanOut:
    """Index, cohorts and the flush in progress."""

    __slots__ = (
        "_dirty",
        "_framed",
        "_pass",
        "_redact",
        "_stats",
        "backlog_bytes",
        "cohorts",
        "index",
        "limits",
        "pacing",
        "places",
        "solos",
        "stamp",
    )

    def __init__(
        self, limits: Limits, store: Store, stats: Stats, redact: Callable[[str], str] | None = None
    ) -> None:
        self.limits = limits
        self.index = Index()
        self.stamp = 0
        """Rises by one with every published Event."""
        self.backlog_bytes = 0
        """What a flush of everything published would cost, roughly."""
        self.cohorts: dict[tuple[Framing, frozenset[Group]], Cohort] = {}
        """By framing and groups; those of connections that replay are not among them."""
        self.places = 0
        """Groups of all those cohorts together, one that is in several counted for each: what an Event may cost."""
        self.solos = 0
        """How many connections are cohorts of their own, since they replay."""
        self.pacing = Pacing(store, stats)
        self._stats = stats
        self._redact = redact
        self._dirty: deque[Cohort] = deque()
        self._pass: Iterator[None] | None = None
        self._framed: dict[tuple[int | None, Framing], bytes] = {}

    def publish(self, event: Event, key: Position | None, target: Peer | None = None) -> None:
        """Queue ``event``, admitted at ``key`` if at all, for every consumer whose filter it matches.

        Not for its ``target`` if that replays, which has it.
        """
        stamp = self.stamp = self.stamp + 1
        groups = self.index.matching(event)
        if not groups:
            # It may have been prepared for who has left meanwhile.
            event.variants = None
            return
        position = event.position
        bound = position
        if bound is None and key is not None and key != START:
            # A rider is replayed with the entry it stands behind.
            bound = after(key)
        mark = Mark(event.session, position, bound, event.severity < NOTICE, stamp)
        framed = self._framed
        framed.clear()
        mixed: dict[Cohort, None] | None = None
        backlog_bytes = 0
        capture = event.capture
        for group in groups:
            ceiling = group.ceiling
            if ceiling is not None and ceiling >= capture:
                # As it came, like for those without a ceiling.
                ceiling = None
            for framing, cohort in group.plain.items():
                frame = framed.get((ceiling, framing))
                if frame is None:
                    frame = self._frame(event, ceiling, framing)
                cohort.push(frame, mark)
                backlog_bytes += len(frame) * len(cohort.members)
            if group.mixed:
                if mixed is None:
                    mixed = group.mixed.copy()
                else:
                    mixed.update(group.mixed)
        self.backlog_bytes += backlog_bytes
        if mixed is not None:
            self._publish_mixed(event, key, mark, mixed, frozenset(groups), target)
        if event.variants is not None:
            # They served this fan-out. Kept on a held Event, they would be memory that nothing bounds.
            event.variants = None
        if position is not None:
            self._track(groups, event.session, stamp, position)  # type: ignore[arg-type]  # a position has a session

    def publish_all(self, events: list[Event]) -> None:
        """Queue ``events``, admitted at their positions, as ``publish`` would one by one."""
        if not self.index.groups:
            self.stamp += len(events)
            return
        for event in events:
            self.publish(event, event.position)

    def prepare(self, event: Event) -> Iterator[None]:
        """Down-level ``event`` for whoever would be sent it now, one ceiling after each turn that others have."""
        for ceiling in {group.ceiling for group in self.index.matching(event)}:
            if ceiling is not None and ceiling < event.capture:
                yield
                self._at(event, ceiling)
        yield

    def redacts(self, ceiling: int | None) -> bool:
        """Say whether text is redacted for a subscription with ``ceiling``."""
        return self._redact is not None and ceiling == REDACTED

    def _frame(self, event: Event, ceiling: int | None, framing: Framing) -> bytes:
        raw = event.raw if ceiling is None else self._at(event, ceiling)
        frame = self._framed[(ceiling, framing)] = encode(framing, event, raw)
        return frame

    def _at(self, event: Event, ceiling: int) -> bytes:
        if ceiling >= event.capture:
            return event.raw
        variants = event.variants
        if variants is None or ceiling not in variants:
            self._stats.downleveled_events += 1
        return downlevel(event, ceiling, self._redact)

    def frames(self, events: list[Event], ceiling: int | None, framing: Framing) -> list[bytes]:
        """Return each of ``events`` at ``ceiling``, framed, outside of ``publish``."""
        raws = [event.raw if ceiling is None else self._at(event, ceiling) for event in events]
        if ceiling is not None:
            for event in events:
                event.variants = None
        return encode_each(framing, events, raws)

    def _publish_mixed(
        self,
        event: Event,
        key: Position | None,
        mark: Mark,
        mixed: Iterable[Cohort],
        matching: frozenset[Group],
        target: Peer | None,
    ) -> None:
        found: Found | None = None
        for cohort in mixed:
            # Some hundredths of a microsecond for each group, of which a cohort may have hundreds.
            serving: Collection[Group] = cohort.groups & matching
            if cohort.solo is not None:
                if found is None:
                    found = self.pacing.look_up(event, key)
                serving = self.pacing.serving(cohort.solo, found, serving)
                if not serving or cohort.solo is target:
                    continue
            ceilings = cohort.ceilings if len(cohort.ceilings) == 1 else {group.ceiling for group in serving}
            # The richest ceiling wins: the consumer asked for it. None is richer than any.
            ceiling = None if None in ceilings else max(ceilings, key=_rank)
            if ceiling is not None and ceiling >= event.capture:
                ceiling = None
            frame = self._framed.get((ceiling, cohort.framing))
            if frame is None:
                frame = self._frame(event, ceiling, cohort.framing)
            cohort.push_mixed(frame, mark, serving)
            self.backlog_bytes += len(frame) * len(cohort.members)

    def _track(self, groups: list[Group], session: str, stamp: int, position: Position) -> None:
        # One for all of them: thousands may have the same.
        highest = ((stamp, position),)
        for group in groups:
            if not group.tracked:
                continue
            tracks = group.tracks
            track = tracks.get(session)
            if track is None:
                if len(tracks) >= 2 * self.limits.max_sessions:
                    self.pacing.forget_gone(tracks)
                tracks[session] = highest
            elif position >= track[0][1]:
                tracks[session] = highest
            else:
                tracks[session] = extend(track, stamp, position)

    def place(self, peer: Peer) -> None:
        """Put ``peer`` into the cohort that its subscriptions and replays call for now."""
        replaying = peer.replaying
        groups = frozenset(s.group for s in peer.subscriptions.values() if s.group is not None)
        old = peer.cohort
        if old is not None:
            if not replaying and old.solo is None and old.groups == groups:
                return
            old.settle(peer)
            self.remove(peer)
        if groups and peer.closing is None:
            cohort = None if replaying else self.cohorts.get((peer.framing, groups))
            if cohort is None:
                cohort = self._new_cohort(peer.framing, groups, peer if replaying else None)
            cohort.join(peer)

    def _new_cohort(self, framing: Framing, groups: frozenset[Group], solo: Peer | None) -> Cohort:
        cohort = Cohort(
            framing,
            groups,
            batch_bytes=max(1, min(BATCH_BYTES, self.limits.soft_limit_bytes // 4)),
            tracked=framing in _TRACKED,
            dirty=self._dirty.append,
            solo=solo,
        )
        if solo is None:
            self.cohorts[(framing, groups)] = cohort
            self.places += len(groups)
        else:
            self.solos += 1
        if solo is None and len(groups) == 1:
            for group in groups:
                group.plain[framing] = cohort
        else:
            for group in groups:
                group.mixed[cohort] = None
        return cohort

    def remove(self, peer: Peer) -> None:
        """Take ``peer`` out of its cohort, and forget the cohort when it was the last."""
        cohort = peer.cohort
        if cohort is None:
            return
        cohort.leave(peer)
        if cohort.members:
            return
        if cohort.solo is None:
            del self.cohorts[(cohort.framing, cohort.groups)]
            self.places -= len(cohort.groups)
        else:
            self.solos -= 1
        for group in cohort.groups:
            group.mixed.pop(cohort, None)
            if group.plain.get(cohort.framing) is cohort:
                del group.plain[cohort.framing]

    def flush(self) -> bool:
        """Hand one slice of what was published to the sockets; True when there is more to do."""
        current = self._pass
        if current is None:
            if not self._dirty:
                return False
            current = self._pass = self._flush_all()
        try:
            next(current)
        except StopIteration:
            self._pass = None
            return bool(self._dirty)
        return True

    def _flush_all(self) -> Iterator[None]:
        cost = 0
        while self._dirty:
            cohort = self._dirty.popleft()
            cohort.is_dirty = False
            cohort.seal()
            number = cohort.number
            size = sum(batch.size_bytes for batch in cohort.sealed)
            events = sum(batch.events for batch in cohort.sealed)
            members = list(cohort.members)
            # Forgotten at once: what is published from here on is another flush's.
            self.backlog_bytes = max(0, self.backlog_bytes - size * len(members))
            for peer in members:
                if peer.cohort is cohort and peer.seen != cohort.number:
                    dropped_events = peer.outbox.dropped_events
                    cohort.hand_over(peer)
                    cost += size + SEND_COST_BYTES
                    if peer.outbox.dropped_events != dropped_events:
                        cost += events * DROP_COST_BYTES
                    if peer.closing is not None:
                        cost += END_COST_BYTES
                    if cost >= SLICE_COST_BYTES:
                        yield
                        cost = 0
            self._stats.delivered_events += events * len(members)
            cohort.retire(number)
        self.backlog_bytes = 0


def _rank(ceiling: int | None) -> int:
    return -1 if ceiling is None else ceiling
