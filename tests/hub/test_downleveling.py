"""Ceilings at fan-out: one down-level for an Event and ceiling, and nothing of it kept (AEP-0003 §6.4)."""

from __future__ import annotations

import json

from aep_relay.protocol import filters
from aep_relay.protocol.event import Event
from aep_relay.protocol.registry import CAPTURE_RANK
from tests.fakes.sink import received
from tests.hub.build import consumer, drain, event, flush, relay

METADATA = CAPTURE_RANK["metadata"]


def redacted(seq: int) -> Event:
    return event(
        f"e{seq}", seq, type="run.started", capture="redacted", data={"trigger": "user", "prompt": "x"}
    )


def test_one_downlevel_serves_all_who_share_a_ceiling() -> None:
    hub = relay()
    peers = [consumer(hub, ceiling=METADATA) for _ in range(5)]
    peers += [consumer(hub, filters.parse({"session": "s"}), ceiling=METADATA) for _ in range(5)]
    for seq in range(3):
        hub.ingest(redacted(seq))
    flush(hub)
    assert hub.stats.downleveled_events == 3
    for peer in peers:
        texts = [json.loads(text) for text in received(peer)]
        assert [(text["capture"], text["data"]) for text in texts] == [("metadata", {"trigger": "user"})] * 3


def test_what_was_downleveled_is_not_kept_with_the_event() -> None:
    hub = relay()
    consumer(hub, ceiling=METADATA)
    held = redacted(0)
    hub.ingest(held)
    flush(hub)
    assert held.variants is None
    late = consumer(hub, ceiling=METADATA, from_="all")
    drain(hub, late)
    assert [json.loads(text)["capture"] for text in received(late)] == ["metadata"]
    assert held.variants is None


def test_what_was_prepared_is_sent_as_it_is() -> None:
    hub = relay()
    none = CAPTURE_RANK["none"]
    peers = {ceiling: consumer(hub, ceiling=ceiling) for ceiling in (METADATA, none, None)}
    consumer(hub, filters.parse({"session": "other"}), ceiling=CAPTURE_RANK["redacted"])
    held = redacted(0)
    # Others have their turn before each ceiling that is asked for, and before the Event is sent.
    assert [set(held.variants or ()) for _ in hub.fanout.prepare(held)][-1] == {METADATA, none}
    assert len(list(hub.fanout.prepare(redacted(1)))) == 3
    downleveled = hub.stats.downleveled_events
    hub.ingest(held)
    flush(hub)
    assert hub.stats.downleveled_events == downleveled
    captures = [json.loads(received(peer)[0])["capture"] for peer in peers.values()]
    assert captures == ["metadata", "none", "redacted"]


def test_what_was_prepared_for_who_has_left_is_not_kept() -> None:
    hub = relay()
    peer = consumer(hub, ceiling=METADATA)
    held = redacted(0)
    assert list(hub.fanout.prepare(held))
    hub.detach(peer)
    hub.ingest(held)
    assert held.variants is None
