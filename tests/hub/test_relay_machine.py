"""The relay against a naive list model, step by step, whatever the order of steps."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING
from unittest.mock import patch

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from aep_relay.hub import catchup, cohort, fanout
from aep_relay.hub.entitlement import counted
from aep_relay.hub.limits import Limits
from aep_relay.hub.policy import FULL
from aep_relay.hub.relay import Relay
from aep_relay.protocol import filters, frames
from aep_relay.protocol.errors import Refusal
from aep_relay.protocol.event import Event, Shape, decode
from aep_relay.protocol.framing import Framing
from tests.hub.build import assert_empty, event, exhausted, sink
from tests.hub.choices import (
    FILTERS,
    LIMITS,
    SESSIONS,
    SOURCES,
    capacities,
    captures,
    ceilings,
    framings,
    froms,
    paddings,
    positions,
    sessions,
    severities,
    subscription_ids,
)
from tests.hub.ending import ResumingConsumer
from tests.hub.model import NaiveStore

if TYPE_CHECKING:
    from aep_relay.hub.peer import Peer
    from aep_relay.hub.replay import From
    from tests.hub.observed import Consumer


class WatchedRelay(Relay):
    """Sees that no connection is ended as slow that has room."""

    def overflowed(self, peer: Peer) -> None:
        assert peer.outbox.queued_bytes > self.limits.hard_limit_bytes
        super().overflowed(peer)


class RelayMachine(RuleBasedStateMachine):
    """Steps in any order; after each, the relay is compared with the model."""

    peers = Bundle("peers")
    told = Bundle("told")

    def __init__(self) -> None:
        super().__init__()
        self._patches = ExitStack()
        self.serial = 0
        self.consumers: list[Consumer] = []

    @initialize(
        target=peers,
        limits=st.sampled_from(LIMITS),
        slice_events=st.sampled_from([1, 2, 256]),
        slice_cost=st.sampled_from([1, 100_000, fanout.SLICE_COST_BYTES]),
        max_scopes=st.sampled_from([cohort.MAX_SCOPES, 1, 0]),
        emitter_capacity=st.sampled_from([None, 0, 1_500]),
        filter_=st.sampled_from(FILTERS),
        capacity=capacities,
    )
    def start(
        self,
        limits: Limits,
        slice_events: int,
        slice_cost: int,
        max_scopes: int,
        emitter_capacity: int | None,
        filter_: filters.Filter,
        capacity: int | None,
    ) -> MultipleResults[Consumer]:
        """Begin with one connection that claims a session and subscribes as well, and with one consumer."""
        self._patches.enter_context(patch.object(catchup, "SLICE_EVENTS", slice_events))
        self._patches.enter_context(patch.object(fanout, "SLICE_COST_BYTES", slice_cost))
        self._patches.enter_context(patch.object(cohort, "MAX_SCOPES", max_scopes))
        self.limits = limits
        self.relay = WatchedRelay(limits)
        self.store = NaiveStore(limits)
        emitter = self._connect(Framing.WEBSOCKET, emitter_capacity, FILTERS[0])
        self._claim(emitter, "s", (0, 0))
        return multiple(emitter, self._connect(Framing.WEBSOCKET, capacity, filter_))

    def teardown(self) -> None:
        with self._patches:
            # What has failed already is not to be hidden behind what that leaves undone.
            if hasattr(self, "relay") and sys.exc_info()[0] is None:
                self._finish()

    # Events in

    def _ingested(self, item_event: Event, target: Consumer | None = None) -> None:
        """Bring the model to where the relay is."""
        self._follow(item_event, target)
        self._check_all()

    def _follow(self, item_event: Event, target: Consumer | None = None) -> None:
        item = self.store.insert(item_event)
        open_consumers = [consumer for consumer in self.consumers if not consumer.over]
        if item is not None:
            for consumer in open_consumers:
                consumer.inserted(item)
            self._evict(item_event.session or "")
        for consumer in open_consumers:
            consumer.published(item_event, item, is_target=consumer is target)

    def _evict(self, session: str) -> None:
        for gone in list(self.store.enforce(session)):
            for consumer in self.consumers:
                if not consumer.over:
                    consumer.evicted(gone)

    def _follow_burst(self, burst: list[Event]) -> None:
        """What comes behind all that is held of its session is held first, all of it, and only then are bounds kept."""
        session = burst[0].session or ""
        held = self.store.held(session)
        first = burst[0].position
        assert first is not None
        is_new = {event.key for event in burst}.isdisjoint(item.event.key for item in held)
        if not held or first <= held[-1].key or not is_new:
            for each in burst:
                self._follow(each)
            return
        items = [(each, self.store.insert(each)) for each in burst]
        for consumer in self.consumers:
            if not consumer.over:
                for each, item in items:
                    assert item is not None
                    consumer.inserted(item)
                    consumer.published(each, item, is_target=False)
        self._evict(session)

    def _check_all(self) -> None:
        for consumer in self.consumers:
            consumer.check()

    def _new_id(self) -> str:
        self.serial += 1
        return f"e{self.serial}"

    @rule(
        target=told,
        session=sessions,
        position=positions,
        source=st.sampled_from(SOURCES),
        severity=severities,
        padding=paddings,
        capture=captures,
    )
    def emit(
        self,
        session: str,
        position: tuple[int, int],
        source: str,
        severity: str,
        padding: int,
        capture: str,
    ) -> Event:
        epoch, seq = position
        emitted = event(
            self._new_id(),
            seq,
            epoch=epoch,
            session=session,
            source=source,
            severity=severity,
            capture=capture,
            data={"args": {"command": "x" * padding}, "tool": {"name": "Bash"}},
        )
        assert self.relay.ingest(emitted) is None
        self._ingested(emitted)
        return emitted

    @rule(batch=st.lists(st.tuples(sessions, positions, severities, paddings), min_size=3, max_size=9))
    def emit_batch(self, batch: list[tuple[str, tuple[int, int], str, int]]) -> None:
        for session, position, severity, padding in batch:
            self.emit(session, position, SOURCES[0], severity, padding, "full")

    @rule(session=sessions, severity=severities, count=st.integers(3, 12), padding=paddings)
    def emit_in_order(self, session: str, severity: str, count: int, padding: int) -> None:
        for _ in range(count):
            self.emit(session, (2, self.serial), SOURCES[1], severity, padding, "metadata")

    @rule(
        session=sessions,
        steps=st.lists(st.sampled_from([1, 1, 1, 1, 0, -2]), min_size=2, max_size=12),
        severity=severities,
        padding=paddings,
        before=st.none() | told,
    )
    def emit_at_once(
        self, session: str, steps: list[int], severity: str, padding: int, before: Event | None
    ) -> None:
        """What comes together, most of it in order: as many as can be are taken in as one."""
        events = [] if before is None or before.shape is Shape.COMMAND else [decode(before.raw)]
        seq = 10 * self.serial + 24
        for step in steps:
            seq += step
            data = {"args": {"command": "x" * padding}}
            events.append(event(self._new_id(), seq, epoch=2, session=session, severity=severity, data=data))
        at = 0
        while at < len(events):
            taken = self.relay.ingest_burst(events, at)
            if taken:
                self._follow_burst(events[at : at + taken])
            else:
                assert self.relay.ingest(events[at]) is None
                self._follow(events[at])
            self._check_all()
            at += taken or 1

    @rule(target=told, session=sessions, severity=severities)
    def route(self, session: str, severity: str) -> Event:
        """A rider: an Event of a foreign emitter, without a position."""
        routed = event(self._new_id(), session=session, severity=severity)
        assert self.relay.ingest(routed) is None
        self._ingested(routed)
        return routed

    @rule(severity=severities)
    def announce(self, severity: str) -> None:
        """An agent-scoped Event: live only."""
        announced = event(self._new_id(), session=None, type="agent.online", severity=severity)
        assert self.relay.ingest(announced) is None
        self._ingested(announced)

    @rule(repeated=told)
    def redeliver(self, repeated: Event) -> None:
        if repeated.shape is not Shape.COMMAND:
            # What comes again is no object that is known.
            repeated = decode(repeated.raw)
            assert self.relay.ingest(repeated) is None
            self._ingested(repeated)

    # Control

    @rule(consumer=peers, session=sessions, position=positions)
    def claim(self, consumer: Consumer, session: str, position: tuple[int, int]) -> None:
        if consumer.is_websocket and not consumer.over:
            self._claim(consumer, session, position)

    def _claim(self, consumer: Consumer, session: str, position: tuple[int, int]) -> None:
        consumer.peer.role = "both"
        consumer.peer.accepts = frozenset({"control.cancel"})
        emitted = event(self._new_id(), position[1], epoch=position[0], session=session)
        assert self.relay.ingest(emitted, consumer.peer) is None
        self._ingested(emitted)

    @rule(
        target=told,
        sender=peers,
        session=sessions,
        type_=st.sampled_from(["control.cancel", "control.pause"]),
        authenticated=st.booleans(),
    )
    def command(self, sender: Consumer, session: str, type_: str, authenticated: bool) -> Event:
        sender.peer.grants = FULL if authenticated else None
        claimants = [c for c in self.consumers if not c.over and session in (c.peer.claims or ())]
        sent = event(self._new_id(), session=session, type=type_)
        self._command(sent, sender, claimants, authenticated=authenticated)
        return sent

    @rule(sender=peers, repeated=told)
    def retry(self, sender: Consumer, repeated: Event) -> None:
        if repeated.shape is Shape.COMMAND:
            sender.peer.grants = FULL
            claimants = [
                c for c in self.consumers if not c.over and repeated.session in (c.peer.claims or ())
            ]
            self._command(decode(repeated.raw), sender, claimants, authenticated=True)

    def _command(
        self, sent: Event, sender: Consumer, claimants: list[Consumer], *, authenticated: bool
    ) -> None:
        refusal = self.relay.ingest(sent, sender.peer)
        sender.peer.grants = None
        code = None
        if not authenticated:
            code = "unauthorized"
        elif len(claimants) != 1:
            code = "ambiguous" if claimants else "no-route"
        elif sent.type != "control.cancel":
            code = "unsupported"
        elif claimants[0].peer.closing is not None:
            code = "no-route"  # it overflowed just now
        assert (refusal.code if isinstance(refusal, Refusal) else None) == code
        if code is None:
            self._ingested(sent, claimants[0])
        else:
            self._check_all()

    # Consumers

    @rule(
        target=peers,
        framing=framings,
        capacity=capacities,
        filter_=st.sampled_from(FILTERS),
        ceiling=ceilings,
        from_=froms,
    )
    def connect(
        self,
        framing: Framing,
        capacity: int | None,
        filter_: filters.Filter,
        ceiling: int | None,
        from_: From,
    ) -> Consumer:
        return self._connect(framing, capacity, filter_, ceiling, from_)

    def _connect(
        self,
        framing: Framing,
        capacity: int | None,
        filter_: filters.Filter,
        ceiling: int | None = None,
        from_: From = None,
    ) -> Consumer:
        consumer = ResumingConsumer(self.relay, self.store, framing, capacity)
        self.consumers.append(consumer)
        consumer.subscribe("a", filter_, ceiling, from_, ends=False)
        self._check_all()
        return consumer

    @rule(
        consumer=peers,
        id_=subscription_ids,
        filter_=st.sampled_from(FILTERS),
        ceiling=ceilings,
        from_=froms,
    )
    def subscribe(
        self, consumer: Consumer, id_: str, filter_: filters.Filter, ceiling: int | None, from_: From
    ) -> None:
        if not consumer.over and consumer.is_websocket:
            consumer.subscribe(id_, filter_, ceiling, from_, ends=False)
            self._check_all()

    @rule(filter_=st.sampled_from(FILTERS), from_=froms, capacity=st.sampled_from([None, 0, 700]))
    def replay_and_end(self, filter_: filters.Filter, from_: From, capacity: int | None) -> None:
        consumer = ResumingConsumer(self.relay, self.store, Framing.SSE, capacity)
        consumer.subscribe("stream", filter_, None, from_, ends=True)
        self.consumers.append(consumer)

    @rule(consumer=peers, id_=subscription_ids)
    def unsubscribe(self, consumer: Consumer, id_: str) -> None:
        if not consumer.over:
            assert self.relay.unsubscribe(consumer.peer, id_) is (id_ in consumer.subs)
            if consumer.peer.closing is None:
                consumer.subs.pop(id_, None)
            self._check_all()

    @rule(consumer=peers)
    def pong(self, consumer: Consumer) -> None:
        if consumer.is_websocket and not consumer.over:
            consumer.push(frames.text_frame(frames.pong(self.serial)))
            self._check_all()

    # Bytes out

    @rule(slices=st.sampled_from([1, 1, 1_000]))
    def flush(self, slices: int) -> None:
        while slices and self.relay.flush():
            slices -= 1
            self._check_all()
        self._check_all()

    @rule(consumer=peers, bytes_=st.sampled_from([0, 1, 50, 400, 2_000, 100_000]))
    def take(self, consumer: Consumer, bytes_: int) -> None:
        """The consumer's socket takes so many more bytes."""
        if sink(consumer.peer).capacity_bytes is not None:
            sink(consumer.peer).capacity_bytes = bytes_
        consumer.drain()
        self._check_all()

    @rule(consumer=peers)
    def keep_up(self, consumer: Consumer) -> None:
        """From now on the consumer's socket takes everything."""
        sink(consumer.peer).capacity_bytes = None
        while consumer.drain():
            pass
        self._check_all()

    @rule(consumer=peers)
    def stall(self, consumer: Consumer) -> None:
        sink(consumer.peer).capacity_bytes = 0

    @rule(consumer=consumes(peers))
    def close(self, consumer: Consumer) -> None:
        self.relay.close(consumer.peer, "shutdown", 1001)
        self._check_all()
        consumer.over = True
        self.relay.detach(consumer.peer)
        self._check_all()

    @rule(consumer=consumes(peers))
    def vanish(self, consumer: Consumer) -> None:
        """The consumer is gone without a word."""
        sink(consumer.peer).broken = True
        self.relay.flush()
        self.relay.drain_peer(consumer.peer)
        consumer.over = True
        self.relay.detach(consumer.peer)
        self._check_all()

    # What always holds

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        if not hasattr(self, "relay"):
            return
        store = self.relay.store
        assert list(store) == list(self.store.sessions)
        for session in SESSIONS:
            buffer = store.get(session)
            held = [] if buffer is None else buffer.read(buffer.cursor_at_start(), 10_000, 10**9)[0]
            assert held == [item.event for item in self.store.held(session)]
            assert store.earliest(session) == self.store.earliest(session)
            for position in [(-1, 0), (0, 3), (1, 0), (2**62, 2)]:
                assert exhausted(store.lost(session), position) == self.store.exhausted(session, position)
        assert store.events == sum(map(len, self.store.sessions.values()))
        buffers = [store.get(session) for session in store]
        assert store.size_bytes == sum(buffer.size_bytes for buffer in buffers if buffer is not None)
        assert store.size_bytes <= self.limits.max_buffer_bytes

    @invariant()
    def counts_what_filters_take(self) -> None:
        if not hasattr(self, "relay"):
            return
        live = [
            sum(sub.filter.weight for sub in consumer.subs.values() if not sub.ends)
            for consumer in self.consumers
            if not consumer.over
        ]
        assert self.relay.membership.predicates == sum(map(counted, live))
        fanout = self.relay.fanout
        assert fanout.index.weight == sum(group.filter.weight for group in fanout.index.groups.values())
        assert fanout.places == sum(len(cohort.groups) for cohort in fanout.cohorts.values())

    def _finish(self) -> None:
        """Let everyone catch up, then leave; nothing stays behind."""
        self.flush(1_000_000)
        for consumer in self.consumers:
            if not consumer.over:
                self.keep_up(consumer)
                assert not any(sub.replaying for sub in consumer.subs.values())
        for consumer in self.consumers:
            self.relay.detach(consumer.peer)
        assert not self.relay.flush()
        assert_empty(self.relay)


TestRelay = RelayMachine.TestCase
TestRelay.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
