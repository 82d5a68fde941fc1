"""Bursts: how much is taken in as one, and that it comes to the same."""

from __future__ import annotations

import pytest

from aep_relay.hub import burst
from aep_relay.hub.fanout import REDACTION_FACTOR
from aep_relay.hub.limits import Limits
from aep_relay.hub.relay import Relay
from aep_relay.protocol import filters
from aep_relay.protocol.event import Event
from aep_relay.protocol.registry import CAPTURE_RANK
from tests.hub.build import consumer, event, flush, ingest, relay, sink


def ordered(count: int, *, first: int = 1, session: str = "s", **members: object) -> list[Event]:
    return [event(f"{session}-{seq}", seq, session=session, **members) for seq in range(first, first + count)]


def taken(hub: Relay, events: list[Event]) -> list[int]:
    """Take ``events`` in; return how many at a time, a 0 for each that had to come alone."""
    found, at = [], 0
    while at < len(events):
        count = hub.ingest_burst(events, at)
        found.append(count)
        if not count:
            assert hub.ingest(events[at]) is None
        at += count or 1
    return found


def held(hub: Relay, session: str = "s") -> list[str]:
    buffer = hub.store.get(session)
    assert buffer is not None
    return [item.id for item in buffer.read(buffer.cursor_at_start(), 10_000, 10**9)[0]]


@pytest.mark.parametrize(
    ("events", "parts"),
    [
        (ordered(burst.MAX_EVENTS + 9), [burst.MAX_EVENTS, 9]),
        (ordered(3) + ordered(2, session="t"), [3, 2]),
        (ordered(3) + ordered(3), [3, 3]),
        ([*ordered(2), event("rider"), *ordered(2, first=3)], [2, 0, 2]),
        ([*ordered(2), event("agent", session=None, type="agent.online")], [2, 0]),
        (ordered(1) + ordered(1, session="t"), [0, 0]),
        (ordered(4, data={"text": "x" * (burst.MAX_BYTES // 3)}), [2, 2]),
        (ordered(2, data={"text": "x" * burst.MAX_BYTES}), [0, 0]),
    ],
)
def test_how_much_is_one(events: list[Event], parts: list[int]) -> None:
    assert taken(relay(), events) == parts


def test_no_burst_beside_a_connection_that_replays() -> None:
    hub = relay()
    ingest(hub, *ordered(3))
    slow = consumer(hub, from_="all", capacity_bytes=0)
    assert taken(hub, ordered(2, first=4)) == [0, 0]
    sink(slow).capacity_bytes = None
    while hub.drain_peer(slow):
        pass
    assert taken(hub, ordered(2, first=6)) == [2]
    hub.detach(slow)
    assert hub.fanout.solos == 0


def test_no_burst_to_very_many_cohorts() -> None:
    hub = relay()
    for number in range(burst.MAX_COHORTS):
        consumer(hub, filters.parse({"subject": f"x{number}"}))
    assert taken(hub, ordered(2)) == [2]
    consumer(hub, filters.parse({"subject": "x"}))
    assert taken(hub, ordered(2, first=3)) == [0, 0]


def test_many_predicates_bound_a_burst_by_those_that_may_be_evaluated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hub = relay()
    peer = consumer(hub, filters.parse({"session": "elsewhere"}))
    for number in range(burst.FEW_PREDICATES // 2):
        chosen = {"type": ["tool.completed", f"x.a.b{number}"], "severity": "error"}
        assert hub.subscribe(peer, f"{number}", filters.parse(chosen), None) is None
    monkeypatch.setattr(burst, "MAX_WEIGHT", 3 * burst.FEW_PREDICATES)
    assert taken(hub, ordered(7)) == [3, 3, 0]
    assert taken(hub, ordered(7, first=10, type="tool.started")) == [7]


def test_a_few_filters_of_very_many_predicates_bound_a_burst_as_well() -> None:
    hub = relay()
    peer = consumer(hub, filters.parse({"session": "elsewhere"}))
    for number in range(16):
        chosen = {f"region{at}": [number, at] for at in range(64)}
        assert hub.subscribe(peer, f"{number}", filters.parse(chosen), None) is None
    assert taken(hub, ordered(9)) == [4, 4, 0]
    for number in range(16):
        assert hub.unsubscribe(peer, f"{number}")
    assert taken(hub, ordered(9, first=10)) == [9]


def test_a_rider_stands_behind_the_burst_it_came_after() -> None:
    hub = relay()
    first, burst_, rider = ordered(1), ordered(3, first=2), event("rider")
    ingest(hub, *first)
    assert taken(hub, burst_) == [3]
    ingest(hub, rider)
    buffer = hub.store.get("s")
    assert buffer is not None
    held, _ = buffer.read(buffer.cursor_at_start(), 100, 1 << 20)
    assert held == [*first, *burst_, rider]
    assert hub.stats.received_bytes == sum(len(each.raw) for each in held)


def test_a_burst_is_as_short_as_what_each_event_has_to_be_queued_for_is_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(burst, "MAX_PLACES", 40)
    hub = relay()
    peers = [consumer(hub, filters.parse({"agent": ["coder", f"a{number}"]})) for number in range(4)]
    assert hub.fanout.places == 4
    assert taken(hub, ordered(9)) == [9]
    for peer in peers[1:]:
        for number in range(4):
            chosen = filters.parse({"agent": ["coder", f"b{number}"]})
            assert hub.subscribe(peer, f"{number}", chosen, None) is None
    assert hub.fanout.places == 1 + 3 * 5
    assert taken(hub, ordered(5, first=10)) == [2, 2, 0]
    assert taken(hub, ordered(5, first=10, agent="other")) == [5], "nobody asks for those"
    for peer in peers:
        hub.detach(peer)
    assert hub.fanout.places == 0
    assert taken(hub, ordered(9, first=20)) == [9]


@pytest.mark.parametrize(("ceiling", "parts"), [("metadata", [6]), ("redacted", [2, 2, 2])])
def test_text_that_is_redacted_makes_a_burst_short(ceiling: str, parts: list[int]) -> None:
    hub = Relay(Limits(), redact=str.upper)
    consumer(hub, ceiling=CAPTURE_RANK[ceiling])
    text = "x" * (burst.MAX_BYTES // REDACTION_FACTOR // 3)
    events = ordered(7, type="run.started", capture="full", data={"prompt": text})
    assert hub.ingest(events[0]) is None
    assert taken(hub, events[1:]) == parts


def test_an_emitter_claims_before_it_may_send_bursts() -> None:
    hub = relay()
    emitter = hub.attach("test", consumer(hub).framing, sink(consumer(hub)))
    emitter.role = "emitter"
    events = ordered(5)
    assert hub.ingest_burst(events, 0, emitter) == 0
    assert hub.ingest(events[0], emitter) is None
    assert emitter.claims == {"s"}
    assert hub.ingest_burst(events, 1, emitter) == 4
    assert emitter.received_events == 5


def test_what_is_held_is_held_once_and_forwarded_each_time() -> None:
    hub = relay()
    peer = consumer(hub)
    events = ordered(6)
    taken(hub, events[:4])
    assert taken(hub, events[2:]) == [4]
    flush(hub)
    assert held(hub) == [each.id for each in events]
    assert (hub.stats.admitted_events, hub.stats.redelivered_events) == (6, 2)
    assert [sink(peer).taken.count(each.raw) for each in events] == [1, 1, 2, 2, 1, 1]


def test_an_id_that_comes_twice_in_a_burst_is_held_once() -> None:
    hub = relay()
    ingest(hub, *ordered(1))
    assert taken(hub, [event("x", 2), event("x", 3), event("y", 4)]) == [3]
    assert held(hub) == ["s-1", "x", "y"]


def test_what_comes_late_stands_in_its_place() -> None:
    hub = relay()
    ingest(hub, *ordered(2, first=1), *ordered(2, first=8))
    assert taken(hub, ordered(3, first=4)) == [3]
    assert held(hub) == ["s-1", "s-2", "s-4", "s-5", "s-6", "s-8", "s-9"]


def test_bounds_are_kept_behind_a_burst() -> None:
    hub = relay(buffer_events=5)
    evicted: list[str] = []
    hub.store.watchers.append(lambda gone: evicted.append(gone.id))
    taken(hub, ordered(2))
    assert taken(hub, ordered(12, first=3)) == [12]
    assert held(hub) == [f"s-{seq}" for seq in range(10, 15)]
    assert evicted == [f"s-{seq}" for seq in range(1, 10)]
    assert (hub.store.events, hub.store.evicted_events) == (5, 9)
    assert hub.store.size_bytes == sum(each.held_bytes for each in ordered(5, first=10))
    lost = hub.store.lost("s")
    assert lost is not None
    assert lost.position == (0, 9)


def test_riders_go_with_their_entries_when_many_go() -> None:
    hub = relay(buffer_events=4)
    ingest(hub, event("a", 1), event("rider"), event("b", 2), event("c", 3))
    assert taken(hub, ordered(2, first=4)) == [2]
    assert held(hub) == ["b", "c", "s-4", "s-5"]
    lost = hub.store.lost("s")
    assert lost is not None
    assert (lost.position, lost.riders) == ((0, 1), True)


def test_taps_and_keepers_are_told_before_anything_is_evicted() -> None:
    hub = relay(buffer_events=2)
    told: list[tuple[str, int]] = []

    class Noting:
        def accepted(self, events: list[Event], peer: object) -> None:
            told.append(("tap", len(events)))

    hub.taps.append(Noting())  # type: ignore[arg-type]  # of lists, where a Tap takes any sequence
    hub.keepers.append(lambda kept: told.append(("keeper", 1)))
    hub.store.watchers.append(lambda gone: told.append(("evicted", 1)))
    ingest(hub, *ordered(2))
    told.clear()
    assert taken(hub, ordered(2, first=3)) == [2]
    assert told == [("keeper", 1), ("keeper", 1), ("tap", 2), ("evicted", 1), ("evicted", 1)]
