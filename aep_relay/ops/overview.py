"""``/overview``: everything on the dashboard that is not an Event."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import trio

from aep_relay import __version__
from aep_relay.ops import dataport, health, views

if TYPE_CHECKING:
    from aep_relay.ops.observer import Observer, Sample

WORST_CONSUMERS = 50


async def document(observer: Observer, host: str) -> dict[str, object]:
    """Return the numbers of one relay for a page that was asked for under the Host ``host``."""
    service = observer.service
    relay = service.relay
    found = await views.tally(relay, WORST_CONSUMERS)
    now = trio.current_time()
    return {
        "version": __version__,
        "instance": relay.instance,
        "uptime_seconds": views.uptime_seconds(service),
        "urls": dataport.base_urls(service, host),
        "token": not service.authority.open,
        "query_token": service.config.auth.query_token,
        "readiness": health.readiness(observer),
        "loop_latency_seconds": observer.latency_seconds,
        "counters": _counters(observer, found),
        "connections": dict(found.bindings),
        "consumers": [views.connection(peer, now) for peer in found.worst],
        "disconnects": dict(relay.stats.disconnects),
        "refusals": dict(relay.stats.refusals),
        "links": service.links(),
        "throughput": rates(list(observer.samples), now),
    }


def _counters(observer: Observer, found: views.Tally) -> dict[str, int]:
    relay = observer.service.relay
    return {
        "received_events": relay.stats.received_events,
        "received_bytes": relay.stats.received_bytes,
        "delivered_events": relay.stats.delivered_events,
        "replayed_events": relay.stats.replayed_events,
        "dropped_events": found.dropped_events,
        "routed_commands": relay.stats.routed_commands,
        "connections": sum(found.bindings.values()),
        "subscriptions": found.subscriptions,
        "consumers_behind": found.behind,
        "queued_bytes": found.queued_bytes,
        "sessions": len(relay.store),
        "claimed_sessions": len(relay.claims),
        "buffered_events": relay.store.events,
        "buffered_bytes": relay.store.size_bytes,
        "evicted_events": relay.store.evicted_events,
    }


def rates(samples: list[Sample], now_seconds: float) -> list[list[float]]:
    """Return for each pair of samples its age in seconds and the Events received, delivered and dropped per second."""
    found: list[list[float]] = []
    for before, after in pairwise(samples):
        seconds = after[0] - before[0]
        if seconds > 0:
            counts = ((after[index] - before[index]) / seconds for index in (1, 2, 3))
            found.append([round(now_seconds - after[0], 1), *(round(count, 2) for count in counts)])
    return found
