"""What the operator plane measures itself: how late the event loop is, and how much passes through the relay."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from aep_relay.ops.observed import Observed

TICK_SECONDS = 0.1
"""How often the loop is asked how late it is."""
IDLE_TICKS = 10
"""Of so many only the last is done while the process does next to nothing: each wakes it from its sleep, which costs
more than all else that an idle relay does."""
BUSY_SHARE = 0.02
"""Of the time since the last tick, used on the CPU: above it the process does something. Who holds the loop does."""
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

    def __init__(self, service: Observed, cpu_seconds: Callable[[], float] = time.process_time) -> None:
        self.service = service
        self._cpu_seconds = cpu_seconds
        """How much CPU time the process has used."""
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
        ticks, used = 1, self._cpu_seconds()
        while True:
            interval = ticks * TICK_SECONDS
            due = trio.current_time() + interval
            await trio.sleep_until(due)
            now = trio.current_time()
            self.tick(now - due, ticks)
            used, before = self._cpu_seconds(), used
            ticks = 1 if used - before > BUSY_SHARE * interval else IDLE_TICKS
            if now >= next_sample:
                next_sample = now + SAMPLE_SECONDS
                self.sample(now)

    def tick(self, late_seconds: float, ticks: int = 1) -> None:
        """Count one tick that came ``late_seconds`` late and stands for ``ticks`` in the window."""
        self._recent.extend([late_seconds] * ticks)
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
