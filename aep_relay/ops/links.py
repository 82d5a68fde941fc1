"""What is counted of upstream links, and of the circles that were refused, as metrics.

``upstream.link.Link.describe`` counts, and this names it. Labels are the links' names, as configured, and the paths of
circles, which are bounded in number and in length.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from aep_relay.hub import feeders

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from aep_relay.ops.observed import Observed

    Link = dict[str, object]

MAX_LINKS: Final = 40
"""Those beyond are not told apart."""
MAX_PATH_CHARACTERS: Final = 256

_PREFIX: Final = "aep_relay_"

COUNTERS: Final = {
    "attempts": ("upstream_attempts", "Attempts to establish an upstream link"),
    "times_up": ("upstream_connects", "Times that an upstream link was established"),
    "pushed_events": ("upstream_events_pushed", "Events that an upstream confirmed"),
    "resent_events": ("upstream_events_resent", "Events sent again since nobody had confirmed them"),
    "refused_events": ("upstream_events_refused", "Events that an upstream would not take"),
    "pulled_events": ("upstream_events_pulled", "Events that came down and were new"),
    "known_events": ("upstream_events_known", "Events that came down and were held already"),
    "invalid_events": ("upstream_events_invalid", "Messages that came down and were no Events or frames"),
    "exhausted_sessions": ("upstream_replays_exhausted", "Sessions of which an upstream had lost Events"),
    "forwarded_commands": ("upstream_commands_forwarded", "Commands that went up"),
}
GAUGES: Final = {
    "mirrors": ("upstream_mirrors", "Emitters here that stand in an upstream's roster"),
    "sessions_behind": ("upstream_sessions_behind", "Sessions that go up from their replay buffers"),
    "unconfirmed_bytes": ("upstream_unconfirmed_bytes", "Bytes kept for an upstream, replay buffers aside"),
}


def families(service: Observed) -> Iterator[Metric]:
    """Yield every family as it is now; those of links are without a sample where there is no link of the kind."""
    links = service.links()
    yield _states(links)
    for member, (name, text) in COUNTERS.items():
        yield _per_link(CounterMetricFamily(_PREFIX + name, text, labels=["link"]), links, member)
    for member, (name, text) in GAUGES.items():
        yield _per_link(GaugeMetricFamily(_PREFIX + name, text, labels=["link"]), links, member)
    up = [{**link, "up": int(link.get("state") == "up")} for link in links]
    family = GaugeMetricFamily(
        _PREFIX + "upstream_up", "Whether an upstream link is established", labels=["link"]
    )
    yield _per_link(family, up, "up")
    yield _given_up(links)
    yield _loops(service)


def _named(links: list[Link]) -> Iterator[tuple[str, Link]]:
    for number, link in enumerate(links):
        yield str(link.get("name")) if number < MAX_LINKS else "other", link


def _per_link(
    family: CounterMetricFamily | GaugeMetricFamily, links: list[Link], member: str
) -> CounterMetricFamily | GaugeMetricFamily:
    found: Counter[str] = Counter()
    for name, link in _named(links):
        value = link.get(member)
        if isinstance(value, int):
            found[name] += value
    for name, total in found.items():
        family.add_metric([name], total)
    return family


def _states(links: list[Link]) -> Metric:
    family = GaugeMetricFamily(
        _PREFIX + "upstream_links", "Upstream links by the state they are in", labels=["link", "state"]
    )
    found = Counter((name, str(link.get("state"))) for name, link in _named(links))
    for labels, total in found.items():
        family.add_metric(labels, total)
    return family


def _given_up(links: list[Link]) -> Metric:
    family = CounterMetricFamily(
        _PREFIX + "upstream_events_given_up",
        "Events that will not go up, since an outage left no room for them",
        labels=["link", "severity"],
    )
    found: Counter[tuple[str, str]] = Counter()
    for name, link in _named(links):
        given_up = link.get("given_up_events")
        for severity, count in given_up.items() if isinstance(given_up, dict) else ():
            found[name, severity] += count
    for labels, total in found.items():
        family.add_metric(labels, total)
    return family


def _loops(service: Observed) -> Metric:
    family = CounterMetricFamily(
        _PREFIX + "loops_refused", "Upstream links refused for the circle they would close", labels=["path"]
    )
    found: Counter[str] = Counter()
    for path, times in service.relay.feeders.loops.items():
        text = feeders.text(path)
        found[text if len(text) <= MAX_PATH_CHARACTERS else f"{text[:MAX_PATH_CHARACTERS]}..."] += times
    for text, total in found.items():
        family.add_metric([text], total)
    return family
