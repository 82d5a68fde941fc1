from __future__ import annotations

import re

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from aep_relay.ops.metrics import MAX_LABELS, Exposition
from aep_relay.ops.observer import Observer
from aep_relay.protocol.filters import parse
from tests.ops.observed import Observation, consumer, event, ingest, relay_with_everything, serving


async def scraped(service: Observation) -> dict[str, float]:
    text, _ = await Exposition(Observer(service)).render("")
    return {
        sample.name + "".join(f"[{value}]" for value in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


async def test_what_the_hub_counted_is_what_is_shown() -> None:
    service = Observation(open_connections=3)
    peer = consumer(service.relay)
    assert service.relay.subscribe(peer, "more", parse({"agent": ["a", "b"], "run": "r"}), None) is None
    ingest(service.relay, event(1), event(2), event(2))
    service.relay.stats.refused("no-route")
    found = await scraped(service)
    assert found["aep_relay_events_received_total"] == 3
    assert found["aep_relay_events_admitted_total"] == 2
    assert found["aep_relay_events_redelivered_total"] == 1
    assert found["aep_relay_events_delivered_total"] == 3
    assert found["aep_relay_received_bytes_total"] == sum(len(event(n)) for n in (1, 2, 2))
    assert found["aep_relay_refusals_total[no-route]"] == 1
    assert found["aep_relay_connections[websocket]"] == 1
    assert found["aep_relay_open_connections"] == 3
    assert found["aep_relay_filter_predicates"] == 1
    assert found["aep_relay_filter_predicates_limit"] == 30_000
    assert found["aep_relay_buffered_sessions"] == 1
    assert found["aep_relay_buffered_events"] == 2
    assert found["aep_relay_ready"] == 1
    assert found["aep_relay_tasks"] == trio.lowlevel.current_statistics().tasks_living


async def test_the_histogram_is_cumulative() -> None:
    observer = Observer(Observation())
    for late in (0.0001, 0.002, 50):
        observer.tick(late)
    text, _ = await Exposition(observer).render("")
    buckets = re.findall(r'late_seconds_bucket\{le="([^"]+)"\} ([0-9.]+)', text.decode())
    counts = [float(count) for _, count in buckets]
    assert counts == sorted(counts)
    assert (counts[0], counts[1], counts[-1]) == (1, 2, 3)
    assert buckets[-1][0] == "+Inf"


async def test_labels_are_bounded_whatever_is_counted() -> None:
    service = Observation()
    for number in range(10 * MAX_LABELS):
        service.relay.stats.disconnected(f"reason-{number}")
    found = await scraped(service)
    names = [name for name in found if name.startswith("aep_relay_disconnects_total[")]
    assert len(names) == MAX_LABELS + 1
    assert sum(found[name] for name in names) == 10 * MAX_LABELS


async def test_no_session_agent_or_token_becomes_a_label() -> None:
    service = relay_with_everything()
    ingest(service.relay, event(9, "a-session-of-a-customer"))
    text, _ = await Exposition(Observer(service)).render("")
    labels = set(re.findall(r"[{,]([a-z_]+)=", text.decode()))
    known = {"version", "binding", "role", "code", "reason", "le", "link", "state", "severity", "path"}
    assert labels <= known
    assert "customer" not in text.decode()


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [("", "text/plain"), ("application/openmetrics-text;version=1.0.0", "application/openmetrics-text")],
)
async def test_scrapers_get_the_format_they_ask_for(accept: str, content_type: str) -> None:
    async with serving(relay_with_everything()) as (client, _):
        answer = await client.get("/metrics", headers={"Accept": accept})
    assert answer.headers["content-type"].startswith(content_type)
    assert ("# EOF" in answer.text) == ("openmetrics" in content_type)
