from __future__ import annotations

import json
from typing import Any

import trio.testing

from aep_relay.ops import views
from tests.ops.observed import Observation, consumer, event, ingest


async def listed(pieces: Any) -> Any:
    return json.loads(b"".join([piece async for piece in pieces]))


async def test_a_listing_is_one_document_however_long() -> None:
    for count in (0, 1, views.SLICE_ITEMS, views.SLICE_ITEMS + 1, 5 * views.SLICE_ITEMS):
        items = [{"n": n} for n in range(count)]
        assert await listed(views.listing("items", items.copy)) == {"items": items}


async def test_a_listing_lets_others_run_in_between() -> None:
    with trio.testing.assert_checkpoints():
        await listed(views.listing("items", lambda: [0] * (views.SLICE_ITEMS + 1)))
    with trio.testing.assert_checkpoints():
        await listed(views.listing("items", lambda: ["x" * (views.SLICE_BYTES + 1)] * 2))


def test_a_connection_is_described_with_how_far_it_is_behind() -> None:
    relay = Observation().relay
    peer = consumer(relay, capacity_bytes=10)
    peer.agent, peer.instance = "watch\x1b[2Jer", {"not": "text"}
    ingest(relay, event(1))
    peer.progress = (10, 5.0)
    document = views.connection(peer, 12.5)
    assert document["agent"] == "watch\\x1b[2Jer"
    assert document["instance"] is None
    assert document["delivered_events"] == 1
    queued = document["queued_bytes"]
    assert isinstance(queued, int)
    assert queued > 100
    assert document["stalled_seconds"] == 7.5
    assert document["subscriptions"] == [{"id": "all", "filter": "{}", "capture": None, "replaying": False}]
    json.dumps(document)


def test_what_a_peer_calls_itself_is_cut() -> None:
    peer = consumer(Observation().relay)
    peer.agent = "x" * 100_000
    assert len(str(views.connection(peer, 0)["agent"])) <= views.MAX_CHARACTERS


def test_sessions_are_listed_last_written_first() -> None:
    relay = Observation().relay
    ingest(relay, event(3, "a"), event(1, "b", epoch=2), event(5, "a"))
    first, second = views.sessions(relay)
    assert first["session"] == "a"
    assert first["events"] == 2
    assert first["earliest"] == {"epoch": 0, "seq": 3}
    assert first["latest"] == {"epoch": 0, "seq": 5}
    assert first["lost"] is None
    assert second["latest"] == {"epoch": 2, "seq": 1}


def test_a_session_of_riders_alone_has_no_position() -> None:
    relay = Observation().relay
    raw = json.loads(event(1)) | {"type": "attention.routed"}
    del raw["seq"]
    ingest(relay, json.dumps(raw).encode())
    (only,) = views.sessions(relay)
    assert only["latest"] is None


async def test_the_tally_sums_and_finds_the_worst() -> None:
    relay = Observation().relay
    good, bad, worst = consumer(relay), consumer(relay), consumer(relay, capacity_bytes=5)
    relay.stats.dropped_events = 100
    bad.outbox.dropped_events = 7
    ingest(relay, event(1))
    found = await views.tally(relay, 2)
    assert found.bindings == {"websocket": 3}
    assert found.subscriptions == 3
    assert found.behind == 1
    assert found.queued_bytes == worst.outbox.queued_bytes > 0
    assert found.dropped_events == 107
    assert found.worst == [worst, bad]
    assert good not in found.worst


async def test_dropped_events_never_count_twice_when_a_consumer_leaves() -> None:
    relay = Observation().relay
    peer = consumer(relay)
    peer.outbox.dropped_events = 7
    before = await views.tally(relay)
    relay.detach(peer)
    after = await views.tally(relay)
    assert before.dropped_events == after.dropped_events == 7


async def test_a_tally_of_many_lets_others_run() -> None:
    relay = Observation().relay
    for _ in range(views.SLICE_PEERS + 1):
        consumer(relay)
    with trio.testing.assert_checkpoints():
        found = await views.tally(relay)
    assert found.subscriptions == views.SLICE_PEERS + 1
