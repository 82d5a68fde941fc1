"""Fan-out: matched once, framed once, handed over in runs and slices, once for a connection and Event."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from aep_relay.hub import fanout, pacing
from aep_relay.hub import relay as relay_module
from aep_relay.hub.store import Store
from aep_relay.protocol import filters
from aep_relay.protocol import framing as framing_module
from aep_relay.protocol.framing import Framing
from aep_relay.protocol.position import ResumePoint
from tests.fakes.sink import MemorySink, ids, received, texts
from tests.hub.build import consumer, drain, event, flush, ingest, relay, sink

if TYPE_CHECKING:
    from aep_relay.hub.buffer import SessionBuffer
    from aep_relay.protocol.event import Event


def secretive(id_: str, seq: int) -> Event:
    """An Event that loses its data at a ceiling of none."""
    return event(id_, seq, capture="full", data={"tool": {"name": "Bash"}})


@pytest.fixture
def encodings(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, Framing]]:
    """How often each Event was framed."""
    counter: Counter[tuple[str, Framing]] = Counter()
    original = framing_module.encode

    def counted(framing: Framing, item: Event, raw: bytes) -> bytes:
        counter[(item.id, framing)] += 1
        return original(framing, item, raw)

    monkeypatch.setattr(fanout, "encode", counted)
    return counter


def test_every_framing_carries_the_bytes_that_came_in() -> None:
    hub = relay()
    peers = [consumer(hub, framing=framing) for framing in Framing]
    odd = event("odd", 1, data={"text": 'ü\n"\\'}, extension=True)
    ingest(hub, odd)
    assert [received(peer) for peer in peers] == [[odd.raw]] * len(peers)


def test_an_event_is_framed_once_for_each_ceiling_and_framing(
    encodings: Counter[tuple[str, Framing]],
) -> None:
    hub = relay()
    for number in range(5):
        consumer(hub)
        consumer(hub, filters.parse({"session": ["s", f"{number}"]}))
        consumer(hub, ceiling=0)
        consumer(hub, framing=Framing.SSE)
    ingest(hub, secretive("a", 1))
    assert encodings == {("a", Framing.WEBSOCKET): 2, ("a", Framing.SSE): 1}
    assert hub.stats.downleveled_events == 1


def test_an_event_below_every_ceiling_is_framed_once(encodings: Counter[tuple[str, Framing]]) -> None:
    hub = relay()
    peers = [consumer(hub, ceiling=ceiling) for ceiling in (None, 0, 1, 2, 3)]
    assert hub.subscribe(peers[1], "more", filters.parse({"agent": ["coder", "a"]}), 2) is None
    plain = event("a", 1, capture="none")
    ingest(hub, plain)
    assert encodings == {("a", Framing.WEBSOCKET): 1}
    assert [received(peer)[-1:] for peer in peers] == [[plain.raw]] * len(peers)


def test_an_event_that_nobody_wants_is_not_framed(encodings: Counter[tuple[str, Framing]]) -> None:
    hub = relay()
    consumer(hub, filters.parse({"session": "other"}))
    ingest(hub, event("a", 1))
    assert not encodings


def test_a_chunk_of_input_costs_each_connection_one_send() -> None:
    hub = relay()
    peers = [consumer(hub), consumer(hub), consumer(hub, framing=Framing.SSE)]
    ingest(hub, *(event(f"e{seq}", seq) for seq in range(50)))
    assert [sink(peer).sends for peer in peers] == [1, 1, 1]
    assert len(ids(peers[0])) == 50


def test_joined_bytes_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = relay()
    sent: list[bytes | memoryview] = []

    def send(_: MemorySink, data: bytes | memoryview) -> int:
        sent.append(data)
        return len(data)

    monkeypatch.setattr(MemorySink, "send", send)
    for _ in range(3):
        consumer(hub)
    ingest(hub, event("a", 1), event("b", 2))
    assert len(sent) == 3
    assert sent[0] is sent[1] is sent[2]


def test_one_delivery_at_the_richest_ceiling_that_matches() -> None:
    hub = relay()
    peer = consumer(hub, filters.parse({"session": "s"}), ceiling=0)
    hub.subscribe(peer, "more", filters.parse({"severity": {"gte": "error"}}), 3)
    hub.subscribe(peer, "all", filters.parse({"agent": "nobody"}), None)
    poor, rich = secretive("poor", 1), event("rich", 2, severity="error", capture="full", data={"tool": {}})
    ingest(hub, poor, rich)
    first, second = received(peer)
    assert b'"data"' not in first
    assert second == rich.raw


@pytest.mark.parametrize("ceilings", [(None, 0), (0, None), (None, 3), (1, None)])
def test_no_ceiling_is_the_richest(ceilings: tuple[int | None, int | None]) -> None:
    hub = relay()
    peer = consumer(hub, ceiling=ceilings[0])
    hub.subscribe(peer, "other", filters.EMPTY, ceilings[1])
    ingest(hub, secretive("a", 1))
    assert received(peer) == [secretive("a", 1).raw]


def test_redeliveries_and_what_is_not_admitted_are_fanned_out_as_received() -> None:
    hub = relay(buffer_events=1)
    peer = consumer(hub)
    ingest(hub, event("a", 1), event("b", 2), event("a", 1), event("b", 2))
    assert ids(peer) == ["a", "b", "a", "b"]
    assert (hub.stats.received_events, hub.stats.admitted_events, hub.stats.redelivered_events) == (4, 2, 2)


def test_agent_scoped_events_are_live_only() -> None:
    hub = relay()
    peer = consumer(hub)
    ingest(hub, event("a", session=None, type="agent.online"))
    late = consumer(hub, from_="all")
    drain(hub, late)
    assert ids(peer) == ["a"]
    assert ids(late) == []


def test_connections_with_the_same_wishes_share_a_cohort() -> None:
    hub = relay()
    one, other, elsewhere = consumer(hub), consumer(hub), consumer(hub, framing=Framing.SSE)
    assert one.cohort is other.cohort
    assert elsewhere.cohort is not one.cohort
    assert len(hub.fanout.cohorts) == 2
    hub.subscribe(other, "more", filters.parse({"session": "t"}), None)
    assert one.cohort is not other.cohort


def test_who_joins_gets_what_comes_from_then_on_and_who_leaves_what_came_before() -> None:
    hub = relay()
    stays = consumer(hub)
    hub.ingest(event("a", 1))
    joins = consumer(hub)
    hub.ingest(event("b", 2))
    leaves = consumer(hub)
    hub.ingest(event("c", 3))
    assert hub.unsubscribe(leaves, "sub")
    hub.ingest(event("d", 4))
    flush(hub)
    assert (ids(stays), ids(joins), ids(leaves)) == (["a", "b", "c", "d"], ["b", "c", "d"], ["c"])


def test_who_joins_and_leaves_between_the_slices_of_a_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fanout, "SLICE_COST_BYTES", 1)
    hub = relay()
    peers = [consumer(hub) for _ in range(4)]
    hub.ingest(event("a", 1))
    assert hub.flush()
    joins = consumer(hub)
    assert hub.unsubscribe(peers[3], "sub")
    hub.ingest(event("b", 2))
    hub.subscribe(peers[3], "again", filters.EMPTY, None)
    hub.ingest(event("c", 3))
    flush(hub)
    assert [ids(peer) for peer in peers] == [["a", "b", "c"]] * 3 + [["a", "c"]]
    assert ids(joins) == ["b", "c"]


def test_a_slice_ends_when_it_has_cost_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fanout, "SLICE_COST_BYTES", 3 * fanout.SEND_COST_BYTES)
    hub = relay()
    peers = [consumer(hub) for _ in range(10)]
    hub.ingest(event("a", 1))
    slices = 0
    while hub.flush():
        slices += 1
        assert sum(bool(ids(peer)) for peer in peers) <= 3 * slices
    assert slices == 3
    assert all(ids(peer) == ["a"] for peer in peers)
    assert not hub.flush()


@pytest.mark.parametrize(("severity", "slices"), [("notice", 0), ("debug", 1)])
def test_what_is_dropped_counts_toward_a_slice(
    severity: str, slices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = relay(soft_limit_bytes=1, hard_limit_bytes=1 << 20)
    for number in range(4):
        consumer(hub, filters.parse({"agent": ["coder", str(number)]}), capacity_bytes=0)
    ingest(hub, event("a", 1))
    for cohort in hub.fanout.cohorts.values():
        # Batches are as small as the soft limit else.
        cohort.batch_bytes = 1 << 20
    for seq in range(2, 22):
        hub.ingest(event(f"e{seq}", seq, severity=severity))
    cost = 5 * fanout.SEND_COST_BYTES + 21 * fanout.DROP_COST_BYTES
    monkeypatch.setattr(fanout, "SLICE_COST_BYTES", cost)
    found = 0
    while hub.flush():
        found += 1
    assert found == slices


def test_what_is_ingested_between_slices_comes_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fanout, "SLICE_COST_BYTES", 1)
    hub = relay()
    peers = [consumer(hub), consumer(hub), consumer(hub, ceiling=0), consumer(hub, framing=Framing.JSONL)]
    for seq in range(20):
        hub.ingest(event(f"e{seq}", seq))
        hub.flush()
    flush(hub)
    for peer in peers:
        assert ids(peer) == [f"e{seq}" for seq in range(20)]


def test_batches_are_sealed_at_their_size_and_forgotten_when_handed_over() -> None:
    hub = relay(soft_limit_bytes=4_000)
    peer = consumer(hub)
    for seq in range(50):
        hub.ingest(event(f"e{seq}", seq))
    cohort = peer.cohort
    assert cohort is not None
    assert len(cohort.sealed) > 3
    assert all(batch.size_bytes < 1_000 + 300 for batch in cohort.sealed)
    flush(hub)
    assert cohort.sealed == []
    assert cohort.open is None
    assert len(ids(peer)) == 50


def test_ingestion_is_told_to_flush_when_enough_is_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_module, "BACKLOG_COST_BYTES", 2_000)
    hub = relay()
    peers = [consumer(hub) for _ in range(4)]
    crowded = []
    for number in range(3):
        hub.ingest(event(f"e{number}", number))
        crowded.append(hub.crowded)
    assert crowded == [False, False, True]
    flush(hub)
    assert not hub.crowded
    assert hub.fanout.backlog_bytes == 0
    assert len(ids(peers[0])) == 3


def test_a_backlog_of_those_who_left_is_forgotten() -> None:
    hub = relay()
    peer = consumer(hub)
    hub.ingest(event("a", 1))
    hub.detach(peer)
    flush(hub)
    assert hub.fanout.backlog_bytes == 0


def test_a_subscription_that_was_replaced_by_the_same_one_goes_on() -> None:
    hub = relay()
    peer = consumer(hub)
    for seq in range(5):
        hub.ingest(event(f"e{seq}", seq))
        hub.subscribe(peer, "sub", filters.EMPTY, None)
    flush(hub)
    assert ids(peer) == [f"e{seq}" for seq in range(5)]
    assert len(hub.fanout.index.groups) == len(hub.fanout.cohorts) == 1


def test_tracks_of_sessions_that_are_gone_are_forgotten() -> None:
    hub = relay(max_sessions=3)
    peer = consumer(hub)
    for number in range(50):
        ingest(hub, event("a", 1, session=f"s{number}"))
    (group,) = hub.fanout.index.groups.values()
    assert len(group.tracks) <= 6
    other = consumer(hub, framing=Framing.SSE)
    hub.detach(peer)
    assert not group.tracks, "who is left reports no positions"
    hub.detach(other)


def test_a_full_table_is_looked_through_by_and_by(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = relay(max_sessions=100)
    consumer(hub)
    (group,) = hub.fanout.index.groups.values()
    for number in range(200):
        ingest(hub, event("a", 1, session=f"s{number}"))
    assert len(group.tracks) == 200
    looked_for: list[str] = []
    get = Store.get

    def noted(store: Store, name: str) -> SessionBuffer | None:
        looked_for.append(name)
        return get(store, name)

    monkeypatch.setattr(Store, "get", noted)
    for number in range(200, 600):
        looked_for.clear()
        ingest(hub, event("a", 1, session=f"s{number}"))
        assert len(looked_for) <= pacing.FORGOTTEN_AT_A_TIME + 2
        assert len(group.tracks) <= 250
    assert set(hub.store) <= set(group.tracks), "what is held can be resumed"


def test_sse_alone_keeps_no_tracks() -> None:
    hub = relay()
    consumer(hub, framing=Framing.SSE)
    ingest(hub, event("a", 1))
    (group,) = hub.fanout.index.groups.values()
    assert not group.tracks


def test_limits_of_a_connection() -> None:
    hub = relay(max_subscriptions=2, max_from_positions=1)
    peer = consumer(hub)
    assert hub.subscribe(peer, "two", filters.EMPTY, None) is None
    refused = hub.subscribe(peer, "three", filters.EMPTY, None)
    assert refused is not None
    assert (refused.code, "max_subscriptions" in refused.detail) == ("limit-exceeded", True)
    assert hub.subscribe(peer, "two", filters.parse({"session": "s"}), None) is None, "replacing is no growth"
    points = [ResumePoint("s", (0, seq)) for seq in range(2)]
    refused = hub.subscribe(peer, "two", filters.EMPTY, None, points)
    assert refused is not None
    assert (refused.code, "max_from_positions" in refused.detail) == ("limit-exceeded", True)
    assert peer.subscriptions["two"].filter == filters.parse({"session": "s"}), "what there was is left alone"
    assert set(peer.subscriptions) == {"sub", "two"}


def test_down_leveled_texts_are_not_kept() -> None:
    hub = relay()
    consumer(hub, ceiling=0)
    kept = secretive("a", 1)
    ingest(hub, kept)
    late = consumer(hub, from_="all", ceiling=0)
    drain(hub, late)
    assert kept.variants is None


def test_a_session_that_no_line_can_hold_breaks_no_stream() -> None:
    hub = relay()
    peers = [consumer(hub, framing=framing) for framing in (Framing.SSE, Framing.SSE_UNCHUNKED)]
    odd = event("a", 1, session="a\r\ndata: x\n\n")
    ingest(hub, odd)
    for peer in peers:
        taken = bytes(sink(peer).taken)
        assert texts(peer.framing, taken) == [odd.raw]
        assert b"id:" not in taken


def test_one_that_replays_is_alone_until_it_has_caught_up() -> None:
    hub = relay()
    ingest(hub, event("a", 1))
    peers = [consumer(hub), consumer(hub, from_="all")]
    assert len({peer.cohort for peer in peers}) == 2
    drain(hub, peers[1])
    assert len({peer.cohort for peer in peers}) == 1
    assert not any(group.mixed for group in hub.fanout.index.groups.values())
