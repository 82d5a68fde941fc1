"""A task's turn on the event loop: how long it may go on before others are let in.

What a peer can send differs in cost by orders of magnitude: an Event may match no group or ten thousand, a frame may be
empty or ask for a roster. So turns are measured by the clock, not counted in Events or frames.
"""

from __future__ import annotations

from time import perf_counter

import trio

TURN_SECONDS = 0.002


class Turn:
    """One task's turn, begun when it is made."""

    __slots__ = ("_until",)

    def __init__(self) -> None:
        self._until = perf_counter() + TURN_SECONDS

    @property
    def over(self) -> bool:
        """Whether it has lasted long enough."""
        return perf_counter() >= self._until

    async def pass_on(self) -> None:
        """Let others run, then begin a new turn."""
        await trio.lowlevel.checkpoint()
        self._until = perf_counter() + TURN_SECONDS
