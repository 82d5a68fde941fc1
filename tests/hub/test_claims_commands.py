"""Claims and commands: one target or one refusal, audit for who watches, history for who comes later (AEP-0004)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aep_relay.hub import catchup
from aep_relay.hub.policy import ANONYMOUS, FULL, Grants
from aep_relay.protocol import filters
from aep_relay.protocol.errors import Refusal
from aep_relay.protocol.framing import Framing
from aep_relay.protocol.position import ResumePoint
from tests.fakes.sink import MemorySink, frames_of, ids, received
from tests.hub.build import command, consumer, drain, event, flush, ingest, relay, sink

if TYPE_CHECKING:
    from aep_relay.hub.peer import Peer
    from aep_relay.hub.relay import Relay
    from aep_relay.protocol.event import Event


def emitter(
    hub: Relay, *sessions: str, role: str = "both", accepts: tuple[str, ...] = ("control.cancel",)
) -> Peer:
    """A connection that has sent an Event of each session."""
    peer = hub.attach("test", Framing.WEBSOCKET, MemorySink())
    peer.role = role
    peer.accepts = frozenset(accepts)
    for number, session in enumerate(sessions):
        claiming = event(f"claim-{peer.id}-{session}", 100 * peer.id + number, session=session)
        assert hub.ingest(claiming, peer) is None
    flush(hub)
    return peer


def sender(hub: Relay, grants: Grants | None = FULL) -> Peer:
    peer = hub.attach("test", Framing.WEBSOCKET, MemorySink())
    peer.grants = grants
    return peer


def code(refusal: Refusal | None) -> str | None:
    return None if refusal is None else refusal.code


def send(hub: Relay, sent: Event, peer: Peer | None) -> str | None:
    refusal = hub.ingest(sent, peer)
    flush(hub)
    return code(refusal)


# Claims


def test_an_event_with_a_position_claims_its_session() -> None:
    hub = relay()
    peer = emitter(hub, "s", "t")
    assert hub.claims.of("s") == hub.claims.of("t") == [peer]
    assert peer.claims == {"s", "t"}


@pytest.mark.parametrize(
    "sent",
    [
        event("a"),
        event("b", session=None, type="agent.online"),
    ],
)
def test_other_shapes_claim_nothing(sent: Event) -> None:
    hub = relay()
    peer = emitter(hub)
    hub.ingest(sent, peer)
    assert not len(hub.claims)


def test_a_consumer_claims_nothing() -> None:
    hub = relay()
    emitter(hub, "s", role="consumer")
    assert not len(hub.claims)


def test_what_comes_without_a_connection_claims_nothing() -> None:
    hub = relay()
    ingest(hub, event("a", 1))
    assert not len(hub.claims)


def test_a_claim_lasts_until_its_connection_ends() -> None:
    hub = relay()
    one, other = emitter(hub, "s"), emitter(hub, "s")
    hub.ingest(event("end", 900, type="session.ended"), one)
    assert hub.claims.of("s") == [one, other]
    hub.detach(one)
    assert hub.claims.of("s") == [other]
    hub.close(other, "shutdown", 1001)
    assert not len(hub.claims)


def test_claims_are_bounded_for_each_connection() -> None:
    hub = relay(max_claims=2)
    peer = emitter(hub, "s", "t")
    assert code(hub.ingest(event("u1", 1, session="u"), peer)) == "limit-exceeded"
    assert hub.store.get("u") is None, "what is refused is not taken in"
    assert hub.ingest(event("s2", 2, session="s"), peer) is None
    assert hub.stats.refusals == {"limit-exceeded": 1}


def test_the_roster_has_one_entry_for_each_claim_and_declarations_verbatim() -> None:
    hub = relay()
    one, other = emitter(hub, "s"), emitter(hub, "t", "s")
    one.identity = {"agent": "coder", "instance": "host-a/1", "card": None}
    one.control = {"accepts": ["control.cancel"], "ack_window_ms": 1e4, "x": [None]}
    one.emits = ["tool"]
    other.identity = {"agent": "writer"}
    assert hub.roster() == [
        {
            "session": "s",
            "agent": "coder",
            "instance": "host-a/1",
            "control": {"accepts": ["control.cancel"], "ack_window_ms": 1e4, "x": [None]},
            "emits": ["tool"],
        },
        {"session": "t", "agent": "writer"},
        {"session": "s", "agent": "writer"},
    ]


# Refusals


@pytest.mark.parametrize("grants", [None, ANONYMOUS, Grants(authenticated=True, control=False)])
def test_who_may_not_command_is_unauthorized(grants: Grants | None) -> None:
    hub = relay()
    emitter(hub, "s")
    assert send(hub, command("c"), sender(hub, grants)) == "unauthorized"


def test_a_command_without_a_connection_is_unauthorized() -> None:
    hub = relay()
    emitter(hub, "s")
    assert send(hub, command("c"), None) == "unauthorized"


def test_no_claimant_is_no_route() -> None:
    hub = relay()
    ingest(hub, event("a", 1))
    assert send(hub, command("c"), sender(hub)) == "no-route"


def test_a_claimant_that_ended_is_no_route() -> None:
    hub = relay()
    hub.detach(emitter(hub, "s"))
    assert send(hub, command("c"), sender(hub)) == "no-route"


def test_a_claimant_that_has_just_broken_is_no_route() -> None:
    hub = relay()
    target = emitter(hub, "s")
    sink(target).broken = True
    assert send(hub, command("c"), sender(hub)) == "no-route"


def test_two_claimants_are_ambiguous() -> None:
    hub = relay()
    targets = emitter(hub, "s"), emitter(hub, "s")
    assert send(hub, command("c"), sender(hub)) == "ambiguous"
    assert not any(ids(target) for target in targets)


@pytest.mark.parametrize("accepts", [(), ("control.pause",), ("control.*",)])
def test_a_type_that_the_claimant_does_not_accept_is_unsupported(accepts: tuple[str, ...]) -> None:
    hub = relay()
    emitter(hub, "s", accepts=accepts)
    assert send(hub, command("c"), sender(hub)) == "unsupported"


def test_a_claimant_that_declared_nothing_accepts_nothing() -> None:
    hub = relay()
    emitter(hub, "s").accepts = None
    assert send(hub, command("c"), sender(hub)) == "unsupported"


def test_a_refused_command_leaves_no_trace() -> None:
    hub = relay()
    watcher = consumer(hub)
    peer = sender(hub)
    assert send(hub, command("c"), peer) == "no-route"
    assert ids(watcher) == ids(peer) == []
    assert hub.store.get("s") is None
    assert peer.received_events == hub.stats.received_events == 0
    assert hub.stats.refusals == {"no-route": 1}


# Routing


def test_a_command_reaches_its_target_and_who_watches_byte_for_byte() -> None:
    hub = relay()
    target, watcher, peer = emitter(hub, "s"), consumer(hub, ceiling=3), sender(hub)
    sent = command("c", capture="full", data={"reason": "because  "})
    assert send(hub, sent, peer) is None
    assert received(target) == [sent.raw]
    assert received(watcher) == [sent.raw]
    assert ids(peer) == [], "the sender gets its own copy only if it subscribes"
    assert hub.stats.routed_commands == 1


def test_the_target_gets_the_original_whatever_the_ceiling_of_its_subscriptions() -> None:
    hub = relay()
    target = emitter(hub, "s")
    assert hub.subscribe(target, "sub", filters.EMPTY, 0) is None
    sent = command("c", capture="full", data={"reason": "because"})
    send(hub, sent, sender(hub))
    assert received(target) == [sent.raw]


@pytest.mark.parametrize("others", [0, 1])
def test_a_target_that_subscribes_gets_the_command_once(others: int) -> None:
    hub = relay()
    target = emitter(hub, "s")
    assert hub.subscribe(target, "sub", filters.EMPTY, None) is None
    watchers = [consumer(hub) for _ in range(others)]  # of the same cohort
    peer = sender(hub)
    hub.ingest(event("before", 500))
    assert hub.ingest(command("c"), peer) is None
    hub.ingest(event("after", 501))
    flush(hub)
    for one in (target, *watchers):
        assert ids(one) == ["before", "c", "after"]


def test_a_target_that_replays_gets_the_command_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catchup, "SLICE_EVENTS", 1)
    hub = relay()
    target = emitter(hub, "s")
    ingest(hub, event("one", 1), event("two", 2))
    assert hub.subscribe(target, "sub", filters.EMPTY, None, [ResumePoint("s", (0, 0))]) is None
    hub.drain_peer(target)
    assert send(hub, command("c"), sender(hub)) is None
    assert ids(target) == ["one", "c"], "at once, not when its replay gets there"
    drain(hub, target)
    assert ids(target).count("c") == 1


def test_a_slow_target_that_is_paced_gets_the_command_once() -> None:
    hub = relay(soft_limit_bytes=300, hard_limit_bytes=50_000)
    target = emitter(hub, "s")
    ingest(hub, event("t1", 1, session="t"))
    sink(target).capacity_bytes = 0
    assert hub.subscribe(target, "sub", filters.EMPTY, None, [ResumePoint("t", (0, 0))]) is None
    ingest(hub, event("x", 300), event("y", 301), event("z", 302))
    assert send(hub, command("c"), sender(hub)) is None
    ingest(hub, event("w", 303))
    sink(target).capacity_bytes = None
    drain(hub, target)
    assert ids(target).count("c") == 1
    assert {"t1", "x", "y", "z", "w"} <= set(ids(target))


def test_a_sender_that_subscribes_gets_its_audit_copy() -> None:
    hub = relay()
    emitter(hub, "s")
    peer = sender(hub)
    assert hub.subscribe(peer, "sub", filters.EMPTY, None) is None
    send(hub, command("c"), peer)
    assert ids(peer) == ["c"]


def test_a_sender_that_is_the_target_gets_it_once() -> None:
    hub = relay()
    target = emitter(hub, "s")
    target.grants = FULL
    assert hub.subscribe(target, "sub", filters.EMPTY, None) is None
    send(hub, command("c"), target)
    assert ids(target) == ["c"]


def test_a_command_is_kept_in_the_history_behind_what_came_before() -> None:
    hub = relay()
    emitter(hub, "s")
    send(hub, command("c"), sender(hub))
    ingest(hub, event("after", 900))
    peer = consumer(hub, from_="all")
    drain(hub, peer)
    assert ids(peer)[-2:] == ["c", "after"]


def test_a_retry_passes_and_is_kept_once() -> None:
    hub = relay()
    target, watcher, peer = emitter(hub, "s"), consumer(hub), sender(hub)
    for _ in range(2):
        assert send(hub, command("c"), peer) is None
    assert ids(target) == ids(watcher) == ["c", "c"]
    late = consumer(hub, from_="all")
    drain(hub, late)
    assert ids(late).count("c") == 1


def test_a_repeated_acknowledgement_passes_byte_for_byte() -> None:
    hub = relay()
    target, watcher = emitter(hub, "s"), consumer(hub)
    accepted = event("ack", 700, type="control.accepted", cause="c")
    for _ in range(2):
        assert hub.ingest(accepted, target) is None
    flush(hub)
    assert received(watcher) == [accepted.raw, accepted.raw]


def test_a_vendor_command_is_a_command() -> None:
    hub = relay()
    target = emitter(hub, "s", accepts=("x.acme.control.restart",))
    assert send(hub, command("c", type_="x.acme.control.restart"), sender(hub)) is None
    assert ids(target) == ["c"]


def test_a_command_keeps_its_place_between_live_events_for_the_target() -> None:
    hub = relay()
    target = emitter(hub, "s")
    assert hub.subscribe(target, "sub", filters.EMPTY, None) is None
    hub.ingest(event("before", 500))
    assert hub.ingest(command("c"), sender(hub)) is None
    assert ids(target) == ["before", "c"], "what came before it is handed over before it"


def test_a_target_whose_queue_overflows_gets_no_command() -> None:
    hub = relay(soft_limit_bytes=10, hard_limit_bytes=300)
    target = emitter(hub, "s")
    sink(target).capacity_bytes = 0
    peer = sender(hub)
    codes = [send(hub, command(f"c{number}"), peer) for number in range(4)]
    assert codes == [None, None, "no-route", "no-route"]
    assert target.closing == "slow-consumer"
    (refused,) = {frame["reason"] for frame in _closings(hub, target)}
    assert refused == "slow-consumer"
    assert hub.stats.routed_commands == 2


def _closings(hub: Relay, peer: Peer) -> list[dict[str, object]]:
    sink(peer).capacity_bytes = None
    drain(hub, peer)
    return frames_of(peer, "closing")


def test_claims_are_bounded_by_what_they_add_to_a_roster() -> None:
    hub = relay(max_claim_bytes=2_000)
    peer = emitter(hub, "a" * 900, "b" * 900)
    refusal = hub.ingest(event("c", 1, session="c" * 900), peer)
    assert code(refusal) == "limit-exceeded"
    assert refusal is not None
    assert "max_claim_bytes" in refusal.detail
    assert hub.ingest(event("a2", 2_000, session="a" * 900), peer) is None
    hub.detach(peer)
    assert hub.claims.size_bytes == 0
    declaring = emitter(hub)
    declaring.declared_bytes = 1_500
    assert hub.ingest(event("d", 1, session="d"), declaring) is None
    assert code(hub.ingest(event("e", 1, session="e"), declaring)) == "limit-exceeded"


def test_filters_and_positions_are_bounded_for_each_connection() -> None:
    hub = relay(max_subscription_bytes=64 * 1024)
    peer = hub.attach("test", Framing.WEBSOCKET, MemorySink())
    large = filters.parse({"run": [f"r{number}" for number in range(100)]})
    assert hub.subscribe(peer, "one", large, None) is None
    refusal = hub.subscribe(peer, "other", large, None)
    assert code(refusal) == "limit-exceeded"
    assert refusal is not None
    assert "max_subscription_bytes" in refusal.detail
    assert hub.subscribe(peer, "one", large, None) is None, "in place of itself"
    points = [ResumePoint("s" * 500, (0, number)) for number in range(30)]
    assert code(hub.subscribe(peer, "other", filters.EMPTY, None, points)) == "limit-exceeded"
    assert hub.unsubscribe(peer, "one")
    assert hub.subscribe(peer, "other", large, None) is None
