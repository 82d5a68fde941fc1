"""What a soak comes to: samples of what the relay holds, and whether it has grown."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

WARM_SHARE = 0.25
"""Of the time: what the relay holds from then on is to stay as it is."""
SLACK = {"rss_bytes": 24 * 1024 * 1024, "tasks": 60, "descriptors": 60}
"""How much more it may be late than early: peers come and go at random."""
LEFT = 3
"""Tasks, descriptors and connections that may be there when all have left: a scrape, and a peer that is just going."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What the relay held and did at one moment."""

    seconds: float
    share: float
    """Of a core, since the last one."""
    rss_bytes: int
    descriptors: int
    tasks: int
    connections: int
    late_seconds: float
    """The event loop's worst in ten seconds."""

    def __str__(self) -> str:
        return (
            f"{self.seconds:6.0f} s {self.share:4.0%} {self.rss_bytes / 1048576:6.1f} MiB {self.tasks:4} tasks "
            f"{self.descriptors:4} fds {self.connections:4} open, late {self.late_seconds * 1000:.0f} ms"
        )


def warm(samples: Sequence[Sample]) -> list[Sample]:
    """Return the samples after the first minutes."""
    return [sample for sample in samples if sample.seconds >= samples[-1].seconds * WARM_SHARE]


def growth(samples: Sequence[Sample]) -> dict[str, tuple[float, float]]:
    """Return by name the medians of the first and of the last third of the warm samples."""
    found = warm(samples)
    third = max(1, len(found) // 3)
    return {
        name: (
            statistics.median(getattr(sample, name) for sample in found[:third]),
            statistics.median(getattr(sample, name) for sample in found[-third:]),
        )
        for name in SLACK
    }


def grown(samples: Sequence[Sample]) -> list[str]:
    """Return what grew."""
    return [
        f"{name} grew from {early:,.0f} to {late:,.0f}"
        for name, (early, late) in growth(samples).items()
        if late - early > SLACK[name]
    ]


def left(before: Sample, after: Sample) -> list[str]:
    """Return what is still there when all have left."""
    return [
        f"{name}: {getattr(after, name)} left, {getattr(before, name)} at the start"
        for name in ("tasks", "descriptors", "connections")
        if getattr(after, name) > getattr(before, name) + LEFT
    ]
