"""How many Events may come: an allowance that refills steadily and may be overdrawn once.

An input is taken whole when one Event is allowed, however many it holds, and what it overdraws has to be refilled
before the next one. So the rate holds on average, and no batch is too large to be sent eventually.
"""

from __future__ import annotations

BURST_SECONDS = 1.0
"""So much of the rate may come at once after a pause, and one Event at least."""

_NEARLY_ONE = 1 - 1e-6


class Rate:
    """An allowance of ``per_second`` Events. Times are seconds of any one clock that never goes back."""

    __slots__ = ("_at", "_left", "per_second")

    def __init__(self, per_second: float, now: float) -> None:
        self.per_second = per_second
        self._left = self._most
        self._at = now

    @property
    def _most(self) -> float:
        return max(1.0, self.per_second * BURST_SECONDS)

    def _refill(self, now: float) -> float:
        self._left = min(self._most, self._left + (now - self._at) * self.per_second)
        self._at = now
        return self._left

    def wait_seconds(self, now: float) -> float:
        """Return how long it takes until one Event is allowed; 0.0 when it is."""
        left = self._refill(now)
        return 0.0 if left >= _NEARLY_ONE else (1.0 - left) / self.per_second

    def spend(self, events: int, now: float) -> float:
        """Use the allowance up by ``events``, overdrawn or not; return how long it takes until it is not."""
        self._left = left = self._refill(now) - events
        return 0.0 if left >= 0.0 else -left / self.per_second

    def change(self, per_second: float, now: float) -> None:
        """Go on with another rate; what was overdrawn stays overdrawn."""
        self._refill(now)
        self.per_second = per_second
        self._left = min(self._left, self._most)
