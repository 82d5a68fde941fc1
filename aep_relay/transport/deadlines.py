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
_DUE_SLICE = 200
"""So many are called, each to send something perhaps, before other tasks get a turn: a millisecond or two."""


class Waiting(Protocol):
    """What can be late."""

    deadline: float
    """In ``trio.current_time()`` seconds."""

    def expire(self) -> None:
        """Give the wait up. Must not raise; called at least once after ``deadline``."""


class Watched(Protocol):
    """What is due at long intervals."""

    deadline: float
    """In ``trio.current_time()`` seconds."""

    def fall_due(self, now: float) -> None:
        """Do what is due, and set the next deadline. Must not raise; called soon after ``deadline`` has passed.

        ``now`` is the time, looked up once for many.
        """


class Deadlines:
    """What waits, and the task that looks for what is late.

    There are two kinds: what waits for a moment, thousands of times a second, is in ``waiting``, and each of it is
    looked at once a second; what lives for long and is due at long intervals is watched, and looked at when it
    is due.
    """

    __slots__ = ("_slots", "_watched", "waiting")

    def __init__(self) -> None:
        self.waiting: set[Waiting] = set()
        """Whoever waits adds itself before and removes itself after, in ``finally``."""
        self._watched: dict[Watched, int] = {}
        self._slots: dict[int, dict[Watched, None]] = {}

    def watch(self, watched: Watched) -> None:
        """Call ``fall_due`` whenever ``watched.deadline`` has passed, until ``forget``.

        To be called again when the deadline is brought forward.
        """
        self.forget(watched)
        self._enter(watched)

    def forget(self, watched: Watched) -> None:
        """Watch it no longer, and hold nothing of it: peers come and go faster than deadlines pass."""
        slot = self._watched.pop(watched, None)
        if slot is not None:
            self._slots.get(slot, {}).pop(watched, None)

    def _enter(self, watched: Watched) -> None:
        self._watched[watched] = slot = int(watched.deadline / SWEEP_SECONDS) + 1
        found = self._slots.get(slot)
        if found is None:
            found = self._slots[slot] = {}
        found[watched] = None

    async def run(self) -> NoReturn:
        """Look once every ``SWEEP_SECONDS``, as a slot begins, until cancelled."""
        while True:
            # Not that much after the last: what is looked at in a slot would come ever later after it has begun.
            await trio.sleep_until((int(trio.current_time() / SWEEP_SECONDS) + 1) * SWEEP_SECONDS)
            await self._sweep()
            await self._call_due()

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

    async def _call_due(self) -> None:
        last = int(trio.current_time() / SWEEP_SECONDS)
        for slot in sorted(number for number in self._slots if number <= last):
            now = trio.current_time()
            for count, watched in enumerate(self._slots.pop(slot)):
                if count % _DUE_SLICE == _DUE_SLICE - 1:
                    await trio.lowlevel.checkpoint()
                    now = trio.current_time()
                if self._watched.get(watched) != slot:
                    continue
                if watched.deadline <= now:
                    watched.fall_due(now)
                # Unless it has been forgotten meanwhile, or watched anew.
                if self._watched.get(watched) == slot:
                    self._enter(watched)
