"""Push: what is taken in here goes up.

A control connection comes first: over it the relays tell each other who feeds whom, and nothing is sent before it is
known that the link closes no circle. Then each local emitter has its ``mirror``, and all other Events go by ``post``.

Invariants: commands never go up this way; what came down over a link never goes up the same one; what is above the
ceiling is down-leveled before it leaves. An upstream that is foreign, or that has no WebSocket, is pushed to as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from aep_relay.protocol import filters
from aep_relay.protocol.capture import downlevel
from aep_relay.protocol.errors import safe_text
from aep_relay.protocol.event import Shape
from aep_relay.protocol.registry import CAPTURE_RANK, SEVERITIES
from aep_relay.transport.turn import Turn
from aep_relay.upstream import control
from aep_relay.upstream.ledger import Ledger
from aep_relay.upstream.link import Link
from aep_relay.upstream.mirror import Mirror
from aep_relay.upstream.post import Posts
from aep_relay.upstream.socket import NoSocket

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aep_relay.config import Upstream
    from aep_relay.hub.peer import Peer
    from aep_relay.protocol.event import Event
    from aep_relay.upstream.control import Control
    from aep_relay.upstream.dial import Dial
    from aep_relay.upstream.echoes import Echoes
    from aep_relay.upstream.lane import Lane
    from aep_relay.upstream.link import Host
    from aep_relay.upstream.pull import PullLink

_COMMAND = Shape.COMMAND  # once: each look at it takes 0.1 µs
MAX_REFUSALS_LOGGED = 20
"""In a minute; they are counted all the same."""


class PushLink(Link):
    """Pushes to one upstream. A ``hub.hooks.Tap``."""

    kind = "push"

    def __init__(
        self,
        host: Host,
        upstream: Upstream,
        dial: Dial,
        pull: PullLink | None = None,
        echoes: Echoes | None = None,
    ) -> None:
        super().__init__(host, upstream, dial)
        self._pull = pull
        """The other direction of the same link."""
        self._echoes = echoes
        self._configure()
        self.ledger = Ledger(
            self.relay.store, upstream.buffer_bytes, matches=self.matches, is_fed=self._is_fed
        )
        self.posts = Posts(self)
        self.mirrors: dict[Peer, Mirror] = {}
        self.refused_events = 0
        self._refusals_logged = 0
        self._reported = (0, 0, 0)
        self._has_socket = True
        self._nursery: trio.Nursery | None = None
        self._running = 0
        """How many mirrors are."""
        self._instance: object = None
        """Which run of the upstream it was that confirmed what it did."""
        self._is_owed_all = False
        """Whether it is another upstream, or may be one, or is to have what the filter left out before."""
        self.ledger.restore(lambda session: self.posts.lane)
        self.relay.taps.append(self)
        self.relay.departures.append(self._departed)

    def _configure(self) -> None:
        filter_, capture = filters.parse_json(self.upstream.filter), self.upstream.capture
        self.matches = filter_.matches
        self._matches_all = filter_ == filters.EMPTY
        self._ceiling = None if capture is None else CAPTURE_RANK[capture]

    def reconfigure(self, before: Upstream) -> None:
        """Take over what ``upstream`` says and ``before`` did not; what is owed stays owed (``Link``)."""
        now = self.upstream
        self._configure()
        self.ledger.change(now.buffer_bytes, self.matches)
        if (now.url, now.unix, now.filter) != (before.url, before.unix, before.filter):
            self._is_owed_all = True

    def withdraw(self) -> None:
        """Take in no more Events (``Link``)."""
        self.relay.taps.remove(self)

    async def retire(self, seconds: float) -> None:
        """End the link for good, with what it still owes counted (``Link``)."""
        for mirror in self.mirrors.values():
            mirror.leave()
        try:
            await super().retire(seconds)
        finally:
            self.relay.departures.remove(self._departed)
            self.ledger.close()
            self.report()

    def _is_fed(self, session: str) -> bool:
        return self._pull is not None and self._pull.forwarding.feeds(session)

    # Events in (hub.hooks.Tap)

    def accepted(self, events: Sequence[Event], peer: Peer | None) -> None:
        """Take those of ``events`` in that are to go up (``Tap``)."""
        if len(events) == 1 and events[0].shape is _COMMAND:
            return
        if not self._matches_all:
            events = [event for event in events if self.matches(event)]
        if not events:
            return
        if peer is None:
            lane = self.posts.lane
        elif self._pull is not None and peer is self._pull.peer:
            return
        else:
            mirror = self.mirrors.get(peer)
            lane = self._lane(peer) if mirror is None else mirror.lane
        if self._echoes is not None and events[0].position is None:
            self._echoes.expect(events[0])
        self.ledger.accept(events, lane)

    def _lane(self, peer: Peer) -> Lane:
        """Return the way up for a connection without a mirror, which may get one now."""
        if peer.binding != "websocket" or peer.role == "consumer" or peer.closing or not self._has_socket:
            return self.posts.lane
        mirror = self.mirrors[peer] = Mirror(self, peer)
        if self._nursery is not None:
            self._nursery.start_soon(self._run, mirror)
        return mirror.lane

    async def _run(self, mirror: Mirror) -> None:
        self._running += 1
        try:
            await mirror.run()
        finally:
            self._running -= 1

    def _departed(self, peer: Peer) -> None:
        mirror = self.mirrors.pop(peer, None)
        if mirror is not None:
            mirror.leave()
            if self._nursery is None:
                mirror.retire()

    # What mirrors and posts need

    async def payloads(self, events: Iterable[Event]) -> list[bytes]:
        """Return what leaves of each of ``events`` under the ceiling; others have their turn meanwhile."""
        ceiling, redact = self._ceiling, self.relay.redact
        if ceiling is None:
            return [event.raw for event in events]
        found, turn = [], Turn()
        for event in events:
            found.append(event.raw if event.capture <= ceiling else downlevel(event, ceiling, redact))
            if turn.over:
                await turn.pass_on()
        return found

    def deliver(self, command: Event, peer: Peer) -> bool:
        """Hand a command that came down to ``peer``; False when that is no more."""
        if self._echoes is not None:
            self._echoes.expect(command)
        return self.relay.deliver(command, peer)

    def refused(self, event: Event, detail: str) -> None:
        """Note that the upstream does not take ``event``, whatever is done."""
        self.rejected(event.id, detail, session=event.session)

    def rejected(self, id_: str | None, detail: str, session: str | None = None) -> None:
        """Note that the upstream did not take the Event ``id_``."""
        self.refused_events += 1
        self._refusals_logged += 1
        if self._refusals_logged <= MAX_REFUSALS_LOGGED:
            self.log.warning(
                "upstream refused an Event",
                event_id=safe_text(id_ or ""),
                session=safe_text(session or ""),
                detail=safe_text(detail),
            )

    # The link

    async def session(self) -> None:
        """Hold the control connection, the mirrors and the posts. Raises ``Down``."""
        try:
            connection: Control | None = await control.open_control(self)
        except NoSocket:
            connection = None
        self._has_socket = connection is not None
        if connection is None:
            self._retire_mirrors()
        else:
            self._recognise(connection.instance)
        if self._is_owed_all:
            self._is_owed_all = False
            self.ledger.restore(self._lane_of)
        try:
            self.is_up()
            async with trio.open_nursery() as nursery:
                if connection is not None:
                    nursery.start_soon(connection.hold)
                nursery.start_soon(self.posts.run)
                for mirror in self.mirrors.values():
                    nursery.start_soon(self._run, mirror)
                self._nursery = nursery
        finally:
            self._nursery = None
            if connection is not None:
                await connection.close()

    def _recognise(self, instance: object) -> None:
        """Send again what is held if the upstream has begun anew: it may have nothing of what it confirmed."""
        if self._instance not in (None, instance):
            self.log.info("upstream has begun anew; what is held goes up again")
            self._is_owed_all = True
        self._instance = instance

    def _lane_of(self, session: str) -> Lane:
        """Return the way up of a session of which nothing new has come."""
        mirrors = (self.mirrors.get(peer) for peer in self.relay.claims.of(session))
        return next((mirror.lane for mirror in mirrors if mirror is not None), self.posts.lane)

    def _retire_mirrors(self) -> None:
        for mirror in self.mirrors.values():
            mirror.retire()
        self.mirrors.clear()

    async def drain(self) -> None:
        """Wait until all that is owed has been confirmed; at once where the link is down."""
        # What it waits for comes about in several places, and only once: at the end.
        while self._nursery is not None and (self._running or not self.posts.lane.is_empty):  # noqa: ASYNC110
            await trio.sleep(0.01)

    def report(self) -> None:
        """Log what was given up and refused since the last time."""
        counts = (self.ledger.dropped_events, self.ledger.lost_events, self.refused_events)
        dropped, lost, refused = (now - then for now, then in zip(counts, self._reported, strict=True))
        if dropped or lost or refused:
            self.log.warning("events given up", debug_or_info=dropped, notice_or_above=lost, refused=refused)
        self._reported = counts
        self._refusals_logged = 0

    def describe(self) -> dict[str, object]:
        """Return what there is to know, counters included."""
        ledger = self.ledger
        found = super().describe()
        problem = self.posts.problem or next((m.problem for m in self.mirrors.values() if m.problem), "")
        found["detail"] = self.detail or problem
        found |= {
            "mirrors": len(self.mirrors),
            "pushed_events": ledger.confirmed_events,
            "dropped_events": ledger.dropped_events,
            "lost_events": ledger.lost_events,
            "refused_events": self.refused_events,
            "resent_events": ledger.resent_events,
            "given_up_events": dict(zip(SEVERITIES, ledger.given_up_events, strict=True)),
            "unconfirmed_bytes": ledger.unconfirmed_bytes,
            "sessions_behind": len(ledger.behind),
        }
        return found
