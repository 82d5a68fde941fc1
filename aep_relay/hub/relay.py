"""The relay: all state, and the only thing that changes it.

Events enter at ``ingest`` from every binding, chained relays included; those of one session that come together at
``ingest_burst``, to the same effect. Invariants:

* Nothing in ``hub`` awaits. ``Relay`` is the only mutator.
* Admission to the buffers dedupes on ``(source, id)``; live fan-out forwards every delivery as received (AEP-0003 §5).
* Received bytes are never re-serialised, except by down-leveling; a framing that needs one line removes raw line
  breaks between tokens.
* Memory is bounded by bytes as well as by counts: per session, in total, per connection.
* ``replay-exhausted`` is exact: said if, and only if, something after the requested position is gone.
* Replay is pulled from the buffers as the socket drains; a session turns live in one synchronous step.
* Above the soft limit ``debug`` and ``info`` are dropped and counted; above the hard limit the connection ends, with
  the positions that were handed to its socket (AEP-0003 §8.4). A frame is sent whole or the connection is aborted.
* One delivery for a connection and live Event, however many of its subscriptions match, at the richest ceiling.
* A command reaches one target or its sender gets one refusal (AEP-0004).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aep_relay.hub import commands
from aep_relay.hub.behind import MAX_AT_ONCE, Behind
from aep_relay.hub.burst import cut
from aep_relay.hub.catchup import CatchUp
from aep_relay.hub.claims import Claims, added_by
from aep_relay.hub.delivered import delivered
from aep_relay.hub.entitlement import refuse_subscription
from aep_relay.hub.fanout import BACKLOG_COST_BYTES, FanOut
from aep_relay.hub.feeders import Feeders
from aep_relay.hub.membership import Membership
from aep_relay.hub.outbox import Outbox
from aep_relay.hub.peer import GONE, Peer
from aep_relay.hub.stats import Stats
from aep_relay.hub.store import Store
from aep_relay.protocol import frames
from aep_relay.protocol.errors import Refusal
from aep_relay.protocol.event import Shape
from aep_relay.protocol.framing import Framing, encode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aep_relay.hub.hooks import Tap, Uplink
    from aep_relay.hub.limits import Limits
    from aep_relay.hub.peer import Sink
    from aep_relay.hub.policy import Grants
    from aep_relay.hub.replay import From
    from aep_relay.protocol.event import Event
    from aep_relay.protocol.filters import Filter
    from aep_relay.protocol.position import Position

SLOW_CONSUMER = "slow-consumer"

# Each look at a member of an enumeration takes 0.1 µs, and every Event asks.
_AGENT, _COMMAND, _SESSION = Shape.AGENT, Shape.COMMAND, Shape.SESSION


class Relay:
    """State and rules of one relay; see the module's docstring for its invariants."""

    def __init__(
        self, limits: Limits, *, instance: str = "relay", redact: Callable[[str], str] | None = None
    ) -> None:
        self.limits = limits
        self.instance = instance
        """Names this run of the relay."""
        self.redact = redact
        """The pipeline of a redacting relay (AEP-0003 §9.4)."""
        self.stats = Stats()
        self.store = Store(limits)
        self.claims = Claims()
        self.peers: dict[int, Peer] = {}
        self.fanout = FanOut(limits, self.store, self.stats, redact)
        self.membership = Membership(self.fanout, self.store)
        self._catchup = CatchUp(self.store, self.stats, self.fanout)
        self.taps: list[Tap] = []
        """Who is told of every Event taken in: chained relays."""
        self.keepers: list[Callable[[Event], None]] = []
        """Who is told of every Event but a redelivery of one that is held: archives."""
        self.uplinks: list[Uplink] = []
        """Who may know a way for a command whose session nobody here claims."""
        self.departures: list[Callable[[Peer], None]] = []
        """Who is told of every connection that ends or is ended, at least once."""
        self.feeders = Feeders(instance)
        self._next_id = 1
        self._behind = Behind()

    def change_limits(self, limits: Limits) -> None:
        """Go on with other limits: buffers shrink as they are written, and queues of open connections keep theirs."""
        self.limits = self.store.limits = self.fanout.limits = limits

    # Connections

    def attach(self, binding: str, framing: Framing, sink: Sink) -> Peer:
        """Take a new connection in and return its peer."""
        outbox = Outbox(self.limits.soft_limit_bytes, self.limits.hard_limit_bytes)
        peer = Peer(self._next_id, binding, framing, sink, self, outbox)
        self._next_id += 1
        self.peers[peer.id] = peer
        self.stats.connections_total += 1
        return peer

    def detach(self, peer: Peer) -> None:
        """Forget a connection that is over: its subscriptions, its claims and what it was still owed."""
        self._release(peer)
        self.stats.dropped_events += peer.outbox.dropped_events
        peer.outbox.discard()
        self.peers.pop(peer.id, None)
        self._behind.forget(peer)
        if peer.closing is None:
            peer.closing = GONE

    def close(self, peer: Peer, reason: str, code: int) -> None:
        """End ``peer`` on purpose: on WebSocket behind a ``closing`` frame with what was delivered (§3.5.4).

        ``code`` is the WebSocket close code. What was ingested before is offered to the socket; what that does not take
        is dropped, but for a frame that was begun.
        """
        if peer.closing is None and peer.cohort is not None:
            peer.cohort.settle(peer)
        if peer.closing == GONE and peer.id in self.peers:
            # Nobody hears of it any more, but nothing else that it sent is to be handled.
            peer.sink.close(reason, code)
        self._end(peer, reason, code)

    def _end(self, peer: Peer, reason: str, code: int) -> None:
        if peer.closing is not None:
            return
        peer.closing = reason
        outbox = peer.outbox
        if peer.cohort is not None:
            peer.cohort.seal()
            for batch in peer.cohort.missing(peer):
                outbox.force(batch)
        farewell = b""
        if peer.framing is Framing.WEBSOCKET and peer.greeted:
            positions = delivered(peer, self.store, self.limits.resume_positions)
            farewell = frames.text_frame(frames.closing(reason, positions))
        self._release(peer)
        self.stats.disconnected(reason)
        outbox.cut()
        if farewell:
            outbox.force(farewell)
        peer.sink.close(reason, code)
        peer.sink.wake()

    def left(self, peer: Peer) -> None:
        """Stop serving ``peer``, which ends the connection itself: only a frame that was begun is still for it."""
        if peer.closing is None:
            peer.closing = "peer"
            self._release(peer)
            peer.outbox.cut()

    def _release(self, peer: Peer) -> None:
        self.membership.release(peer)
        self.claims.release(peer)
        for tell in self.departures:
            tell(peer)

    def overflowed(self, peer: Peer) -> None:
        """End a consumer that exceeded its hard limit; it resumes exactly (AEP-0003 §8.4)."""
        self._end(peer, SLOW_CONSUMER, 1013)

    def fell_behind(self, peer: Peer) -> None:
        """Watch a connection whose socket takes no more."""
        self._behind.watch(peer)

    def abort_stalled(self, now_seconds: float) -> bool:
        """Abort connections that took no byte for ``stalled_timeout_seconds`` while bytes were pending; True when
        there may be more."""
        stalled = self._behind.stalled(now_seconds, self.limits.stalled_timeout_seconds)
        for peer in stalled:
            self.stats.disconnected("stalled")
            peer.sink.abort("stalled")
        return len(stalled) >= MAX_AT_ONCE

    # Events in

    def ingest(self, event: Event, peer: Peer | None = None) -> Refusal | None:
        """Take ``event`` in, from ``peer`` or from a binding without a connection of its own.

        Returns why it was refused, None when it was accepted. The caller flushes when its input is used up.
        """
        shape = event.shape
        if shape is _COMMAND:
            return self._route(event, peer)
        if peer is not None:
            claims = peer.claims
            if (
                shape is _SESSION
                and peer.role != "consumer"
                and (claims is None or event.session not in claims)
            ):
                refusal = self.claim(event.session, peer)
                if refusal is not None:
                    return refusal
            peer.received_events += 1
        self.take_over(event, peer)
        return None

    def take_over(self, event: Event, peer: Peer | None) -> None:
        """Take in what a chained relay has accepted and routed already: nothing is claimed and no command routed."""
        stats = self.stats
        stats.received_events += 1
        stats.received_bytes += len(event.raw)
        key = None
        if event.shape is not _AGENT:
            key = self.store.admit(event)
            if key is None:
                stats.redelivered_events += 1
            else:
                stats.admitted_events += 1
        self.fanout.publish(event, key)
        if self.keepers:
            self._keep(event, key)
        for tap in self.taps:
            tap.accepted((event,), peer)

    def ingest_burst(self, events: Sequence[Event], start: int, peer: Peer | None = None) -> int:
        """Take in, as ``ingest`` would one by one, as many of ``events`` from ``start`` on as can be taken in as one;
        return how many. 0 where the next one has to be ingested by itself.
        """
        burst = cut(events, start, self.fanout)
        if len(burst) < 2:
            return 0
        if peer is not None:
            if peer.role != "consumer" and (peer.claims is None or burst[0].session not in peer.claims):
                return 0
            peer.received_events += len(burst)
        self._take_over_burst(burst, peer)
        return len(burst)

    def _take_over_burst(self, burst: list[Event], peer: Peer | None) -> None:
        """Do what ``take_over`` does, for a whole burst."""
        if not self.store.admit_all(burst):
            for event in burst:
                self.take_over(event, peer)
            return
        stats = self.stats
        stats.received_events += len(burst)
        stats.received_bytes += sum([len(event.raw) for event in burst])
        stats.admitted_events += len(burst)
        self.fanout.publish_all(burst)
        for keep in self.keepers:
            for event in burst:
                keep(event)
        for tap in self.taps:
            tap.accepted(burst, peer)
        self.store.trim()

    def _keep(self, event: Event, key: Position | None) -> None:
        buffer = None if key is not None or event.session is None else self.store.get(event.session)
        if buffer is not None and buffer.holds(event.key):
            return
        for keep in self.keepers:
            keep(event)

    def claim(self, session: str | None, peer: Peer) -> Refusal | None:
        """Record that ``peer`` emits ``session``, as each of its Events does; return why not, None when it has it."""
        if session is None or (peer.claims is not None and session in peer.claims):
            return None
        if peer.claims is not None and len(peer.claims) >= self.limits.max_claims:
            return self._refuse(
                Refusal("limit-exceeded", f"max_claims: {self.limits.max_claims} sessions claimed")
            )
        if peer.claim_bytes + added_by(peer, session) > self.limits.max_claim_bytes:
            detail = f"max_claim_bytes: more than {self.limits.max_claim_bytes} bytes of every roster"
            return self._refuse(Refusal("limit-exceeded", detail))
        self.claims.claim(peer, session)
        return None

    def _refuse(self, refusal: Refusal) -> Refusal:
        self.stats.refused(refusal.code)
        return refusal

    def _route(self, event: Event, sender: Peer | None) -> Refusal | None:
        target = commands.target_of(event, sender, self.claims)
        if isinstance(target, Refusal):
            if target.code == "no-route" and sender is not None:
                for uplink in self.uplinks:
                    if uplink.forward(event, sender):
                        return None
            return self._refuse(target)
        if not self.deliver(event, target):
            return self._refuse(Refusal("no-route", "the claimant of this session has just left"))
        if sender is not None:
            sender.received_events += 1
        return None

    def deliver(self, event: Event, target: Peer) -> bool:
        """Hand a command to ``target``, keep it in its session's history and show it to who watches.

        False when the target is no more. Whether it may be sent has been decided.
        """
        if not target.push(encode(target.framing, event, event.raw)):
            return False
        self.stats.received_events += 1
        self.stats.received_bytes += len(event.raw)
        self.stats.routed_commands += 1
        key = self.store.admit(event)
        self._publish_beside(event, key, target)
        self._keep(event, key)
        for tap in self.taps:
            tap.accepted((event,), target)
        return True

    def _publish_beside(self, event: Event, key: Position | None, target: Peer) -> None:
        cohort = target.cohort
        if cohort is None or cohort.solo is not None:
            self.fanout.publish(event, key, target)
        else:
            # The target has it: the batch that holds the command for its cohort is not for it.
            cohort.settle(target)
            self.fanout.publish(event, key)
            cohort.seal()
            target.seen = cohort.number
        # Nor is its replay.
        for subscription in target.subscriptions.values():
            if subscription.replay is not None:
                subscription.replay.hand(event)

    def flush(self) -> bool:
        """Hand one slice of what was ingested to the sockets; True when there is more to do."""
        return self.fanout.flush()

    @property
    def crowded(self) -> bool:
        """Whether an ingesting task has to flush before it takes more in."""
        return self.fanout.backlog_bytes >= BACKLOG_COST_BYTES

    # Events out

    def subscribe(
        self,
        peer: Peer,
        id_: str,
        filter_: Filter,
        ceiling: int | None,
        from_: From = None,
        *,
        ends: bool = False,
        others: bool = False,
    ) -> Refusal | None:
        """Give ``peer`` a subscription, in place of one with the same id; return why not, None when it has it.

        With ``ends`` it replays what is held and is over then; with ``others`` it replays the sessions that ``from_``
        does not name as well, whole. The caller announces it before it flushes or drains.
        """
        grants = peer.grants
        if grants is not None:
            filter_ = grants.narrow(filter_)
            ceiling = grants.bound(ceiling)
        refusal = refuse_subscription(
            peer, id_, filter_, from_, self.limits, self.membership.predicates, ends=ends
        )
        if refusal is not None:
            return self._refuse(refusal)
        if grants is not None and isinstance(from_, list):
            from_ = [point for point in from_ if grants.may_see(point.session)]
        if peer.cohort is not None:
            peer.cohort.settle(peer)
        if peer.closing is not None:
            return None
        self.membership.add(peer, id_, filter_, ceiling, from_, ends=ends, others=others)
        return None

    def unsubscribe(self, peer: Peer, id_: str) -> bool:
        """Take a subscription away; False when there is none of that id."""
        if id_ not in peer.subscriptions:
            return False
        if peer.cohort is not None:
            peer.cohort.settle(peer)
        self.membership.remove(peer, id_)
        return True

    def drain_peer(self, peer: Peer, among: int = 1) -> bool:
        """Send ``peer``, one ``among`` so many that do, what its socket takes now; True when there is more to send."""
        outbox = peer.outbox
        if outbox and not outbox.drain(peer.sink.send):
            return True
        if peer.closing is not None or not peer.replaying:
            return bool(outbox)
        self._catchup.advance(peer, among)
        return bool(outbox) or peer.replaying

    def roster(self, grants: Grants | None = None) -> list[dict[str, object]]:
        """Return one entry for each live claim that ``grants`` let their holder see (AEP-0003 §4.1)."""
        return list(self.claims.entries(grants))
