"""From followed files to a relay: what ``tail-files`` does.

Invariant: when ``accept`` returns, each line it was given has been accepted by the relay or reported as refused; as
long as the relay can't be reached it does not return, and the files wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from aep_relay.cli.support import exits
from aep_relay.client.emitting import MAX_BATCH_BYTES, MAX_BATCH_EVENTS, BadLine, Emitter
from aep_relay.client.errors import Misused, Refused, TimedOut, Unreachable
from aep_relay.client.http import asking
from aep_relay.protocol.event import Shape
from aep_relay.protocol.jsonl import one_line

if TYPE_CHECKING:
    from aep_relay.client.target import Target
    from aep_relay.journal.following import Reading
    from aep_relay.journal.tail import Lines, Source, Tail
    from aep_relay.protocol.jsonl import Placed

    _Sending = tuple[Placed, bytes]
    """A line as it was read, and as it is sent."""

_ABOUT_LINES = (400, 413, 422)
"""Statuses that say something of what was sent, not of who sends it."""


class Shipper:
    """Sends the lines of files on, each file's in order."""

    def __init__(self, target: Target, reading: Reading) -> None:
        self._target = target
        self._reading = reading
        self.accepted = 0

    async def follow(self, tail: Tail) -> None:
        """Send what comes, until cancelled. Raises ``Refused`` when the relay wants nothing of it at all."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._reading.report)
            await tail.run(self.accept)

    async def once(self, tail: Tail) -> None:
        """Send what is there. Raises as ``follow``, and ``Misused`` when there is no file."""
        await tail.start()
        try:
            while await tail.turn(self.accept):
                pass
            if not tail.files:
                raise Misused(
                    "no file matches", "put patterns in quotes, and check where they lead from here"
                )
        finally:
            self._reading.report_rest()
            tail.stop()

    async def accept(self, source: Source, lines: Lines) -> None:
        """Send ``lines`` of the file ``source``; return when they are accepted. Raises ``Refused``."""
        batch: list[_Sending] = []
        size = 0
        for line in lines:
            event = self._reading.event(source, line)
            if event is None:
                continue
            if event.shape is Shape.COMMAND:
                why = "commands need a connection: `aep-relay send`"
                self._reading.refused(source, line, "unauthorized", why)
                continue
            if len(batch) >= MAX_BATCH_EVENTS or size + len(event.raw) > MAX_BATCH_BYTES:
                await self._emit(source, batch)
                batch, size = [], 0
            batch.append((line, one_line(event.raw)))
            size += len(event.raw)
        await self._emit(source, batch)

    async def _emit(self, source: Source, batch: list[_Sending]) -> None:
        while batch:
            try:
                async with asking(self._target) as client:
                    await Emitter(client, waiting=exits.waiting).emit([text for _, text in batch])
            except Refused as error:
                batch = await self._leave_out(source, batch, error)
            except TimedOut as error:
                exits.waiting(error)
            except Unreachable:
                # The emitter has told it.
                continue
            else:
                self.accepted += len(batch)
                return

    async def _leave_out(self, source: Source, batch: list[_Sending], error: Refused) -> list[_Sending]:
        """Return what is left of ``batch`` without the line that ``error`` is about; raises it if it is about none."""
        if isinstance(error, BadLine) and 0 <= error.index < len(batch):
            at = error.index
        elif error.status not in _ABOUT_LINES:
            raise error
        elif len(batch) == 1:
            at = 0
        else:
            # The relay does not say which line it is about.
            middle = len(batch) // 2
            await self._emit(source, batch[:middle])
            return batch[middle:]
        self._reading.refused(source, batch[at][0], error.code, error.detail)
        return [*batch[:at], *batch[at + 1 :]]
