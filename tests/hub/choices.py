"""What the state machine chooses from: few of each, so that they meet."""

from __future__ import annotations

import hypothesis.strategies as st

from aep_relay.hub.limits import Limits
from aep_relay.protocol import filters
from aep_relay.protocol.framing import Framing
from aep_relay.protocol.position import ResumePoint

SESSIONS = ("s", "t:1", "u\nv")
SOURCES = ("aep://host-a/agent/coder", "aep://host-b/agent/coder")
SEVERITIES = ("debug", "info", "notice", "warning", "error", "critical")
FILTERS = [
    filters.parse(value)
    for value in (
        {},
        {"severity": {"gte": "notice"}},
        {"session": "s"},
        {"session": ["s", "u\nv"], "source": SOURCES[0]},
        {"type": ["tool.*", "control.*"]},
        {"agent": "coder", "severity": {"lte": "warning"}},
    )
]
LIMITS = [
    Limits(),
    # Few Events of few sessions, and short queues.
    Limits(
        buffer_events=5,
        max_sessions=2,
        soft_limit_bytes=2_000,
        hard_limit_bytes=6_000,
        max_from_positions=9,
    ),
    # Bounded by bytes, and not by the number of Events.
    Limits(max_session_bytes=4_000, max_buffer_bytes=7_000, soft_limit_bytes=900, hard_limit_bytes=20_000),
    # Crowded soon, but not ended soon.
    Limits(buffer_events=30, soft_limit_bytes=1_000, hard_limit_bytes=12_000),
]

positions = st.tuples(st.sampled_from([0, 1, 2**62]), st.integers(0, 7))
severities = st.sampled_from(SEVERITIES)
captures = st.sampled_from(["none", "metadata", "redacted", "full"])
sessions = st.sampled_from(SESSIONS)
paddings = st.sampled_from([0, 0, 0, 300, 2_500])
framings = st.sampled_from([Framing.WEBSOCKET, Framing.WEBSOCKET, Framing.SSE, Framing.SSE_UNCHUNKED])
ceilings = st.sampled_from([None, None, 0, 1, 2, 3])
capacities = st.sampled_from([None, 0, 300, 1_500])
subscription_ids = st.sampled_from(["a", "b", "c"])
froms = st.one_of(
    st.none(),
    st.just("all"),
    st.lists(st.builds(ResumePoint, st.sampled_from([*SESSIONS, "w"]), positions), max_size=3),
)
