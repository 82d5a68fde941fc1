"""From followed files to a relay: what ``tail-files`` does.

Invariant: when ``accept`` returns, each line it was given has been accepted by the relay or reported as refused; as
long as the relay can't be reached it does not return, and the files wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aep_relay.cli.support import exits
from aep_relay.client.emitting import MAX_BATCH_BYTES, MAX_BATCH_EVENTS, BadLine, Emitter
from aep_relay.client.errors import TimedOut, Unreachable
from aep_relay.client.http import asking
from aep_relay.protocol.event import Shape
from aep_relay.protocol.jsonl import one_line

if TYPE_CHECKING:
    from aep_relay.client.target import Target
    from aep_relay.journal.following import Reading
    from aep_relay.journal.tail import Lines, Tail


class Shipper:
    """Sends the lines of files on, each file's in order."""

    def __init__(self, target: Target, reading: Reading) -> None:
        self._target = target
        self._reading = reading
        self.accepted = 0

    async def follow(self, tail: Tail) -> None:
        """Send what comes, until cancelled. Raises ``Refused`` when the relay wants nothing of it at all."""
        await tail.run(self.accept)

    async def once(self, tail: Tail) -> None:
        """Send what is there. Raises as ``follow``."""
        await tail.start()
        try:
            while await tail.turn(self.accept):
                pass
        finally:
            tail.stop()

    async def accept(self, path: str, lines: Lines) -> None:
        """Send ``lines`` of the file at ``path``; return when they are accepted. Raises ``Refused``."""
        batch: list[bytes] = []
        size = 0
        for line in lines:
            event = self._reading.event(path, line)
            if event is None:
                continue
            if event.shape is Shape.COMMAND:
                self._reading.refused(path, "unauthorized", "commands need a connection: `aep-relay send`")
                continue
            if len(batch) >= MAX_BATCH_EVENTS or size + len(event.raw) > MAX_BATCH_BYTES:
                await self._emit(path, batch)
                batch, size = [], 0
            batch.append(one_line(event.raw))
            size += len(event.raw)
        await self._emit(path, batch)

    async def _emit(self, path: str, batch: list[bytes]) -> None:
        while batch:
            try:
                async with asking(self._target) as client:
                    await Emitter(client).emit(batch)
            except BadLine as error:
                self._reading.refused(path, error.code, error.detail)
                batch = [*batch[: error.index], *batch[error.index + 1 :]]
            except (Unreachable, TimedOut) as error:
                exits.tell(f"{error.message}; trying again")
            else:
                self.accepted += len(batch)
                return
