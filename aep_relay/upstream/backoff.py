"""How long to wait before the next attempt: exponential with full jitter, so that many links don't come at once.

Invariant: only a link that has held for a while begins with short pauses again, so that one that is accepted and
dropped at once is no busy loop.
"""

from __future__ import annotations

import random


class Backoff:
    """The pauses of one link, in seconds."""

    def __init__(self, min_seconds: float, max_seconds: float, stable_seconds: float) -> None:
        self._min_seconds = min_seconds
        self._max_seconds = max_seconds
        self._stable_seconds = stable_seconds
        self.failures = 0
        """Attempts since the link last counted as good."""

    def held(self, seconds: float) -> None:
        """Note that the link held for so long before it broke."""
        if seconds >= self._stable_seconds:
            self.failures = 0

    def next_seconds(self) -> float:
        """Return how long to wait now: anything up to a bound that doubles."""
        bound = min(self._max_seconds, self._min_seconds * 2.0 ** min(self.failures, 64))
        self.failures += 1
        return bound * random.random()  # noqa: S311  # no secret

    def slow_seconds(self) -> float:
        """Return how long to wait where only an operator can help: at least the longest bound."""
        self.failures += 1
        return self._max_seconds * (1.0 + random.random())  # noqa: S311  # no secret
