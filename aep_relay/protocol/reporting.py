"""Which of many lines at fault are reported one by one, so that a log stays readable whatever comes.

Time comes from the caller. Invariants: in a window at most ``REPORTS_EACH`` lines of one source are reported and
``REPORTS`` in all; each line is either reported or part of exactly one number that is.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, NamedTuple

WINDOW_SECONDS: Final = 10.0
REPORTS_EACH: Final = 10
REPORTS: Final = 100


class Unreported(NamedTuple):
    """How many lines were not reported, and of how many sources."""

    lines: int
    sources: int


class Reports:
    """Counts the lines at fault of several sources, which are named by who bounds their number."""

    def __init__(self) -> None:
        self._ends_at: float | None = None
        """When the present window does; None as long as nothing is at fault."""
        self._reported: Counter[str] = Counter()
        self._unreported_lines = 0
        self._unreported_sources: set[str] = set()

    def admit(self, source: str, now: float) -> bool:
        """Say whether a line of ``source`` is to be reported; it is counted if not."""
        if self._ends_at is None or now >= self._ends_at:
            self._ends_at = now + WINDOW_SECONDS
            self._reported.clear()
        if self._reported[source] < REPORTS_EACH and self._reported.total() < REPORTS:
            self._reported[source] += 1
            return True
        self._unreported_lines += 1
        self._unreported_sources.add(source)
        return False

    def take(self, now: float | None = None) -> Unreported | None:
        """Return the number of lines that were not reported and begin to count anew, None if there is none.

        With ``now`` only when the window that they fell into is over.
        """
        if not self._unreported_lines or (
            now is not None and self._ends_at is not None and now < self._ends_at
        ):
            return None
        found = Unreported(self._unreported_lines, len(self._unreported_sources))
        self._unreported_lines = 0
        self._unreported_sources.clear()
        return found
