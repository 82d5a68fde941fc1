"""One timer for everything that waits for a peer, instead of a cancel scope around every receive.

Entering and leaving a cancel scope costs as much as parsing a request, and ten thousand idle connections
would hold ten thousand of them. What waits here is entered in a set and left out of it again; once a second
the set is swept. A deadline is a total: it holds against a peer that sends a byte at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import trio

if TYPE_CHECKING:
    from typing import NoReturn

SWEEP_SECONDS = 1.0
"""How late a deadline may be noticed."""

_SLICE = 2_000
"""So many are looked at before other tasks get a turn."""


class Waiting(Protocol):
    """What can be late."""

    deadline: float
    """In ``trio.current_time()`` seconds."""

    def expire(self) -> None:
        """Give the wait up. Must not raise; called at least once after ``deadline``."""


class Deadlines:
    """The set of what waits, and the task that sweeps it."""

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting: set[Waiting] = set()
        """Whoever waits adds itself before and removes itself after, in ``finally``."""

    async def run(self) -> NoReturn:
        """Sweep once every ``SWEEP_SECONDS``, until cancelled."""
        while True:
            await trio.sleep(SWEEP_SECONDS)
            await self._sweep()

    async def _sweep(self) -> None:
        candidates = list(self.waiting)
        for start in range(0, len(candidates), _SLICE):
            if start:
                await trio.lowlevel.checkpoint()
            now = trio.current_time()
            for waiting in candidates[start : start + _SLICE]:
                # It may have stopped waiting, or begun to wait for something else, since the list was made.
                if waiting.deadline <= now and waiting in self.waiting:
                    waiting.expire()
