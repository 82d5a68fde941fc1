"""Every limit of the relay: its one name, its one default, what it may be set to, and why it is there.

A field's name is its key in the ``[limits]`` table of the configuration. Its metadata holds ``why`` (one
line), ``minimum`` and ``maximum`` (inclusive), which the configuration enforces; a ``Limits`` built in code
may hold any value, so that a test can use tiny ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


def _limit(default: float, minimum: float, maximum: float, why: str) -> Any:
    return field(default=default, metadata={"minimum": minimum, "maximum": maximum, "why": why})


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on memory, on time and on what one peer may hold. Bytes, counts and seconds, as named."""

    # Replay buffers (AEP-0003 §5)
    buffer_events: int = _limit(10_000, 1, 100_000_000, "Events kept for replay, per session")
    max_sessions: int = _limit(500, 1, 10_000_000, "sessions with a replay buffer")
    max_session_bytes: int = _limit(64 * MIB, 64 * KIB, 1024 * GIB, "replay buffer of one session")
    max_buffer_bytes: int = _limit(512 * MIB, 64 * KIB, 1024 * GIB, "replay buffers of all sessions together")
    max_evicted_sessions: int = _limit(
        10_000, 0, 10_000_000, "sessions without a buffer whose last evicted position is remembered"
    )

    # Backpressure (AEP-0003 §8.4)
    soft_limit_bytes: int = _limit(
        1 * MIB, 1 * KIB, 1 * GIB, "queued for one consumer: above it, debug and info Events are dropped"
    )
    hard_limit_bytes: int = _limit(
        8 * MIB, 8 * KIB, 4 * GIB, "queued for one consumer: above it, the connection ends"
    )

    # Size of what is received
    max_event_bytes: int = _limit(4 * MIB, 1 * KIB, 2 * GIB, "one Event; at most half of hard_limit_bytes")
    max_body_bytes: int = _limit(16 * MIB, 1 * KIB, 4 * GIB, "body of one POST")
    max_batch_events: int = _limit(10_000, 1, 10_000_000, "Events in one POST")
    max_frame_bytes: int = _limit(1 * MIB, 1 * KIB, 1 * GIB, "one WebSocket frame that is not an Event")
    max_hello_bytes: int = _limit(
        64 * KIB, 1 * KIB, 1 * MIB, "hello of one WebSocket connection, kept as long as it lasts"
    )
    max_head_bytes: int = _limit(
        128 * KIB, 1 * KIB, 1 * MIB, "request line and headers, with a from of 500 positions"
    )

    # What one peer may hold
    max_connections: int = _limit(20_000, 1, 1_000_000, "open connections")
    max_address_connections: int = _limit(
        0, 0, 1_000_000, "streams and sockets of one client address; 0 for any number"
    )
    max_subscriptions: int = _limit(256, 1, 1_000_000, "subscriptions of one connection")
    max_subscription_bytes: int = _limit(
        16 * MIB, 64 * KIB, 1 * GIB, "filters, resume positions and replays of one connection's subscriptions"
    )
    max_predicates: int = _limit(
        30_000,
        0,
        100_000_000,
        "predicates in the filters of all subscriptions, two of each connection not counted",
    )
    max_claims: int = _limit(1_000, 1, 1_000_000, "sessions claimed by one connection")
    max_claim_bytes: int = _limit(
        1 * MIB,
        128 * KIB,
        1 * GIB,
        "what one connection's claims add to a roster, its declarations with each",
    )
    max_from_positions: int = _limit(
        0, 0, 10_000_000, "resume positions in one request; 0 for as many as max_sessions"
    )

    # Deadlines
    head_timeout_seconds: float = _limit(10, 0.1, 3600, "to receive a request's head, once it began")
    body_timeout_seconds: float = _limit(60, 0.1, 3600, "to receive a request's body")
    hello_timeout_seconds: float = _limit(10, 0.1, 3600, "to receive hello after the WebSocket upgrade")
    idle_timeout_seconds: float = _limit(75, 0.1, 86_400, "a kept-alive connection between two requests")
    ping_interval_seconds: float = _limit(30, 0.1, 30, "between heartbeats; the protocol allows 30 at most")
    ping_timeout_seconds: float = _limit(90, 0.1, 3600, "without a byte from a WebSocket peer: it is gone")
    stalled_timeout_seconds: float = _limit(90, 0.1, 3600, "bytes pending and none taken: the peer is gone")
    closing_timeout_seconds: float = _limit(5, 0.1, 60, "to hand a closing frame to a consumer being closed")
    drain_timeout_seconds: float = _limit(5, 0, 600, "for all connections to end at shutdown")

    @property
    def resume_positions(self) -> int:
        """How many resume positions one request may name: ``max_from_positions`` with its 0 resolved."""
        return self.max_from_positions or self.max_sessions
