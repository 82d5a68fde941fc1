"""What the operator plane measures itself: how late the event loop is, and how much passes through the relay."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from typing import NoReturn

    from aep_relay.ops.observed import Observed

TICK_SECONDS = 0.1
"""How often the loop is asked how late it is."""
WINDOW_TICKS = 100
"""Readiness and the gauge look at the worst of so many ticks: ten seconds."""
SAMPLE_SECONDS = 2.0
MAX_SAMPLES = 300
"""Throughput is remembered for ten minutes."""

BUCKETS_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)

Sample = tuple[float, int, int, int, int]
"""Time, and the counters at that time: received, delivered, dropped Events and received bytes."""


class Observer:
    """Event loop latency and throughput history of one relay."""

    def __init__(self, service: Observed) -> None:
        self.service = service
        self.samples: deque[Sample] = deque(maxlen=MAX_SAMPLES)
        self.late_counts = [0] * (len(BUCKETS_SECONDS) + 1)
        """Ticks by bucket, the last one for those beyond all bounds."""
        self.late_seconds_total = 0.0
        self._recent: deque[float] = deque(maxlen=WINDOW_TICKS)

    @property
    def latency_seconds(self) -> float:
        """How late the event loop was at worst in the last ten seconds."""
        return max(self._recent, default=0.0)

    async def run(self) -> NoReturn:
        """Measure until cancelled."""
        next_sample = 0.0
        while True:
            due = trio.current_time() + TICK_SECONDS
            await trio.sleep_until(due)
            now = trio.current_time()
            self.tick(now - due)
            if now >= next_sample:
                next_sample = now + SAMPLE_SECONDS
                self.sample(now)

    def tick(self, late_seconds: float) -> None:
        """Count one tick that came ``late_seconds`` late."""
        self._recent.append(late_seconds)
        self.late_seconds_total += late_seconds
        for index, bound in enumerate(BUCKETS_SECONDS):
            if late_seconds <= bound:
                self.late_counts[index] += 1
                return
        self.late_counts[-1] += 1

    def sample(self, now: float) -> None:
        """Remember the counters as they are at ``now``."""
        stats = self.service.relay.stats
        self.samples.append(
            (now, stats.received_events, stats.delivered_events, stats.dropped_events, stats.received_bytes)
        )
