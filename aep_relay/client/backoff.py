"""How long to wait before the next attempt: exponential, with jitter, so that many clients don't come at once."""

from __future__ import annotations

import random
from typing import Final

FIRST_SECONDS: Final = 0.25
LONGEST_SECONDS: Final = 15.0
STABLE_SECONDS: Final = 10.0
"""Having held for so long, a connection counts as good: the next pause is short again."""


class Backoff:
    """The pauses of one client."""

    def __init__(
        self, first_seconds: float = FIRST_SECONDS, longest_seconds: float = LONGEST_SECONDS
    ) -> None:
        self._first_seconds = first_seconds
        self._longest_seconds = longest_seconds
        self._failures = 0

    def succeeded(self) -> None:
        """Begin with short pauses again."""
        self._failures = 0

    def next_seconds(self) -> float:
        """Return how long to wait now."""
        bound = min(self._longest_seconds, self._first_seconds * 2.0**self._failures)
        self._failures = min(self._failures + 1, 16)
        return bound / 2 + bound / 2 * random.random()  # noqa: S311  # no secret
