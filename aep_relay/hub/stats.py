"""Counters of one relay: plain integers, since the hot path counts too."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Stats:
    """What has happened since the relay's start."""

    received_events: int = 0
    """Events that were accepted, redeliveries included."""
    received_bytes: int = 0
    admitted_events: int = 0
    """Events that entered a replay buffer."""
    redelivered_events: int = 0
    """Events with a session that were fanned out and not admitted: held already, or below the eviction mark."""
    delivered_events: int = 0
    """Live deliveries handed to a connection or its queue."""
    replayed_events: int = 0
    downleveled_events: int = 0
    """Down-levelings: one for each Event and ceiling, however many consumers share it."""
    dropped_events: int = 0
    """``debug`` and ``info`` Events dropped toward slow consumers."""
    exhausted_replays: int = 0
    routed_commands: int = 0
    refusals: dict[str, int] = field(default_factory=dict)
    """Refused commands and requests, by code."""
    disconnects: dict[str, int] = field(default_factory=dict)
    """Connections that the relay ended, by reason."""
    connections_total: int = 0

    def refused(self, code: str) -> None:
        """Count a refusal."""
        self.refusals[code] = self.refusals.get(code, 0) + 1

    def disconnected(self, reason: str) -> None:
        """Count a connection that the relay ended."""
        self.disconnects[reason] = self.disconnects.get(reason, 0) + 1
