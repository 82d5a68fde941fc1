"""The scenarios by name, in the order of the table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from . import (
    scenarios_chain,
    scenarios_fairness,
    scenarios_fanout,
    scenarios_ingest,
    scenarios_latency,
    scenarios_scale,
    scenarios_text,
)
from .harness import Bench
from .report import Row

Scenario = Callable[[Bench], list[Row]]

SCENARIOS: Mapping[str, Scenario] = MappingProxyType(
    {
        "fanout": scenarios_fanout.fanout,
        "fanout-1000": scenarios_fanout.fanout_1000,
        "fanout-single": scenarios_fanout.fanout_single,
        "last-of-1000": scenarios_latency.last_of_1000,
        "ingest-ndjson": scenarios_ingest.ingest_ndjson,
        "ingest-websocket": scenarios_ingest.ingest_websocket,
        "ingest-post": scenarios_ingest.ingest_post,
        "other-sessions": scenarios_ingest.other_sessions,
        "filters": scenarios_ingest.distinct_filters,
        "idle": scenarios_scale.idle,
        "stalled": scenarios_latency.stalled,
        "replay": scenarios_scale.replay,
        "downlevel": scenarios_fanout.downlevel,
        "latency": scenarios_latency.latency,
        "fairness": scenarios_fairness.fairness,
        "crowd": scenarios_fairness.crowd,
        "push": scenarios_chain.push,
        "pull": scenarios_chain.pull,
        "redaction": scenarios_text.redaction,
    }
)


def summary(scenario: Scenario) -> str:
    """The first line a scenario says of itself."""
    return (scenario.__doc__ or "").strip().splitlines()[0]
