"""``/metrics``: the relay's counters in Prometheus' format.

Nothing is counted here: the hot path counts in plain integers, and a scrape reads them. What has to be summed over
connections is summed in slices before (``views.tally``), so that rendering itself takes well under a millisecond.
Every label has few values that the relay's own code chooses; whatever goes beyond ``MAX_LABELS`` is summed as
``other``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from aep_relay import __version__, stderr
from aep_relay.ops import health, links
from aep_relay.ops.observer import BUCKETS_SECONDS
from aep_relay.ops.views import Tally, tally, uptime_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from prometheus_client.core import Metric

    from aep_relay.ops.observer import Observer

MAX_LABELS = 40

_PREFIX = "aep_relay_"


class RelayCollector(Collector):
    """All metrics of one relay."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self.tally = Tally()

    def collect(self) -> Iterator[Metric]:
        """Yield every family as it is now."""
        yield InfoMetricFamily(_PREFIX + "build", "Version of the relay", {"version": __version__})
        yield from self._events()
        yield from self._connections()
        yield from self._buffers()
        yield from self._health()
        yield from links.families(self._observer.service)

    def _events(self) -> Iterator[Metric]:
        stats = self._observer.service.relay.stats
        yield _counter("events_received", "Events accepted, redeliveries included", stats.received_events)
        yield _counter("received_bytes", "Bytes of the Events accepted", stats.received_bytes)
        yield _counter("events_admitted", "Events that entered a replay buffer", stats.admitted_events)
        yield _counter(
            "events_redelivered",
            "Events fanned out that no buffer admitted a second time",
            stats.redelivered_events,
        )
        yield _counter("events_delivered", "Live deliveries to consumers", stats.delivered_events)
        yield _counter("events_replayed", "Deliveries from replay buffers", stats.replayed_events)
        yield _counter(
            "events_downleveled", "Events rewritten to a lower capture level", stats.downleveled_events
        )
        yield _counter(
            "events_dropped", "Debug and info Events dropped toward slow consumers", self.tally.dropped_events
        )
        yield _counter(
            "replays_exhausted", "Resumes that found part of the history gone", stats.exhausted_replays
        )
        yield _counter("commands_routed", "Commands handed to their target", stats.routed_commands)
        yield _counters("refusals", "Refused commands and requests", "code", stats.refusals)
        yield _counters("disconnects", "Connections the relay ended", "reason", stats.disconnects)
        yield _counter("connections_opened", "Streams and sockets opened", stats.connections_total)
        for name, (text, count) in self._observer.service.counts().items():
            yield _counter(name, text, count)

    def _connections(self) -> Iterator[Metric]:
        relay, found = self._observer.service.relay, self.tally
        yield _gauges("connections", "Open streams and sockets", "binding", found.bindings)
        yield _gauges("peers", "Open streams and sockets by what they are", "role", found.roles)
        yield _gauge("open_connections", "Accepted connections", self._observer.service.open_connections)
        yield _gauge("open_connections_limit", "Connections accepted at most", relay.limits.max_connections)
        yield _gauge("subscriptions", "Live subscriptions", found.subscriptions)
        yield _gauge("subscription_groups", "Distinct filters evaluated", len(relay.fanout.index.groups))
        yield _gauge("filter_predicates", "What max_predicates counts", relay.membership.predicates)
        yield _gauge("filter_predicates_limit", "max_predicates", relay.limits.max_predicates)
        yield _gauge("consumers_behind", "Consumers with bytes pending", found.behind)
        yield _gauge("consumers_replaying", "Consumers that are being replayed to", found.replaying)
        yield _gauge("queued_bytes", "Bytes pending to consumers", found.queued_bytes)
        yield _gauge("claimed_sessions", "Sessions with a live emitter", len(relay.claims))

    def _buffers(self) -> Iterator[Metric]:
        store, limits = self._observer.service.relay.store, self._observer.service.relay.limits
        yield _gauge("buffered_sessions", "Sessions with a replay buffer", len(store))
        yield _gauge("buffered_sessions_limit", "Sessions with a replay buffer at most", limits.max_sessions)
        yield _gauge("buffered_events", "Events held for replay", store.events)
        yield _gauge("buffered_bytes", "Bytes held for replay", store.size_bytes)
        yield _gauge("buffered_bytes_limit", "Bytes held for replay at most", limits.max_buffer_bytes)
        yield _counter("events_evicted", "Events evicted from replay buffers", store.evicted_events)

    def _health(self) -> Iterator[Metric]:
        observer = self._observer
        yield _gauge("uptime_seconds", "Time since the relay's start", uptime_seconds(observer.service))
        yield _gauge("ready", "Whether the relay is ready for traffic", int(health.is_ready(observer)))
        yield _gauge("draining", "Whether the relay is shutting down", int(observer.service.draining))
        yield _counter(
            "log_records_lost", "Lines of the log that standard error did not take", stderr.lost_lines()
        )
        yield _gauge("tasks", "Tasks of the event loop", trio.lowlevel.current_statistics().tasks_living)
        yield _gauge(
            "event_loop_late_seconds_max",
            "How late the event loop was at worst in the last ten seconds",
            observer.latency_seconds,
        )
        total, buckets = 0, []
        for bound, count in zip([*map(str, BUCKETS_SECONDS), "+Inf"], observer.late_counts, strict=True):
            total += count
            buckets.append((bound, float(total)))
        yield HistogramMetricFamily(
            _PREFIX + "event_loop_late_seconds",
            "How late the event loop came to a timer",
            buckets=buckets,
            sum_value=observer.late_seconds_total,
        )


class Exposition:
    """Renders the metrics of one relay."""

    def __init__(self, observer: Observer) -> None:
        self._relay = observer.service.relay
        self._collector = RelayCollector(observer)
        self._registry = CollectorRegistry()
        self._registry.register(self._collector)
        ProcessCollector(registry=self._registry)

    async def render(self, accept: str) -> tuple[bytes, str]:
        """Return the text and its content type, in the format that ``accept`` asks for."""
        self._collector.tally = await tally(self._relay)
        encode: Callable[[CollectorRegistry], bytes]
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(_PREFIX + name, text, value=value)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(_PREFIX + name, text, value=value)


def _counters(name: str, text: str, label: str, values: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(_PREFIX + name, text, labels=[label])
    for value, count in _bounded(values).items():
        family.add_metric([value], count)
    return family


def _gauges(name: str, text: str, label: str, values: Mapping[str, int]) -> Metric:
    family = GaugeMetricFamily(_PREFIX + name, text, labels=[label])
    for value, count in _bounded(values).items():
        family.add_metric([value], count)
    return family


def _bounded(values: Mapping[str, int]) -> dict[str, int]:
    items = list(values.items())
    bounded = dict(items[:MAX_LABELS])
    if len(items) > MAX_LABELS:
        bounded["other"] = bounded.get("other", 0) + sum(count for _, count in items[MAX_LABELS:])
    return bounded
