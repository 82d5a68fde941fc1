"""From lines to a relay: what ``emit`` does.

One task reads and one sends, so that a batch is whatever has come in while the last one was on its way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from aep_relay.cli.support import exits
from aep_relay.cli.support.lines import Line, Lines, opened
from aep_relay.cli.support.progress import Progress
from aep_relay.client.emitting import MAX_BATCH_BYTES, MAX_BATCH_EVENTS, BadLine, Emitter
from aep_relay.client.errors import Refused
from aep_relay.client.http import asking
from aep_relay.client.socket import only
from aep_relay.protocol.errors import InvalidEvent
from aep_relay.protocol.event import Shape, decode
from aep_relay.protocol.jsonl import OverlongLine, one_line

if TYPE_CHECKING:
    from aep_relay.client.target import Target
    from aep_relay.protocol.event import Event

Numbered = tuple[int, bytes]
"""Line number and text of an Event."""

QUEUED_LINES: Final = 4 * MAX_BATCH_EVENTS
MAX_EVENT_BYTES: Final = 64 << 20

_ABOUT_EVENTS = (400, 403, 413)
"""Statuses that may be about single Events."""

_COMMAND = "commands are not emitted; `aep-relay send` sends one and waits for its acknowledgement"


class Feed:
    """Sends Events, and counts."""

    def __init__(self, target: Target, patience_seconds: float, *, keep_going: bool = False) -> None:
        self._target = target
        self._patience_seconds = patience_seconds
        self._keep_going = keep_going
        self.accepted = 0
        self.refused = 0
        self.retries = 0

    async def one(self, event: Event) -> None:
        """Send one Event. Raises what ``Emitter.emit`` raises."""
        _check_shape(event)
        async with asking(self._target) as client:
            await Emitter(client, self._patience_seconds, exits.waiting).emit([one_line(event.raw)])
        self.accepted = 1

    async def file(self, name: str) -> None:
        """Send the Events of a file. Raises ``Refused`` naming the line, and what ``Emitter.emit`` raises."""
        with opened(name) as lines, Progress(lines.size_bytes) as progress:
            try:
                async with trio.open_nursery() as nursery:
                    into, out = trio.open_memory_channel[Line](QUEUED_LINES)
                    nursery.start_soon(_read, lines, into)
                    await self._send(out, lines, progress)
            except BaseExceptionGroup as group:
                raise only(group) from None

    async def _send(self, out: trio.MemoryReceiveChannel[Line], lines: Lines, progress: Progress) -> None:
        async with asking(self._target) as client:
            emitter = Emitter(client, self._patience_seconds, exits.waiting)
            async for first in out:
                await self._batch(emitter, _available(first, out))
                self.retries = emitter.retries
                progress.update(self.accepted, lines.read_bytes)

    async def _batch(self, emitter: Emitter, batch: list[Line]) -> None:
        good: list[Numbered] = []
        for number, line in batch:
            try:
                good.append((number, _checked(line)))
            except InvalidEvent as error:
                if not self._keep_going:
                    await self._emit(emitter, good)
                self._leave_out(number, Refused(error.code, error.detail))
        await self._emit(emitter, good)

    async def _emit(self, emitter: Emitter, events: list[Numbered]) -> None:
        if not events:
            return
        try:
            await emitter.emit([text for _, text in events])
            self.accepted += len(events)
        except Refused as error:
            if error.status not in _ABOUT_EVENTS:
                raise
            at = error.index if isinstance(error, BadLine) else 0 if len(events) == 1 else None
            if at is not None and 0 <= at < len(events):
                if not self._keep_going:
                    await self._emit(emitter, events[:at])
                self._leave_out(events[at][0], error)
                await self._emit(emitter, events[:at] + events[at + 1 :])
            elif self._keep_going:
                middle = len(events) // 2
                await self._emit(emitter, events[:middle])
                await self._emit(emitter, events[middle:])
            else:
                raise

    def _leave_out(self, number: int, error: Refused) -> None:
        text = f"line {number}: {error.detail}"
        if not self._keep_going:
            raise Refused(
                error.code, text, "put the line right, or leave out what is wrong with --keep-going"
            )
        exits.tell(text)
        self.refused += 1


async def _read(lines: Lines, into: trio.MemorySendChannel[Line]) -> None:
    async with into:
        while (found := await lines.read()) is not None:
            for line in found:
                await into.send(line)


def _available(first: Line, out: trio.MemoryReceiveChannel[Line]) -> list[Line]:
    """Return ``first`` and what else has come in, as far as one batch goes."""
    batch = [first]
    size = _length(first)
    try:
        while len(batch) < MAX_BATCH_EVENTS and size < MAX_BATCH_BYTES:
            batch.append(out.receive_nowait())
            size += _length(batch[-1])
    except (trio.WouldBlock, trio.EndOfChannel):
        return batch
    return batch


def _length(line: Line) -> int:
    return len(line[1]) if isinstance(line[1], bytes) else 0


def _checked(line: bytes | OverlongLine) -> bytes:
    """Return a line that is an Event and no command. Raises ``InvalidEvent``."""
    if isinstance(line, OverlongLine):
        raise InvalidEvent(f"longer than {line.limit_bytes} bytes")
    event = decode(line, MAX_EVENT_BYTES)
    if event.shape is Shape.COMMAND:
        raise InvalidEvent(_COMMAND)
    return event.raw


def _check_shape(event: Event) -> None:
    if event.shape is Shape.COMMAND:
        raise Refused("unauthorized", _COMMAND, f"aep-relay send SESSION {event.type}")
