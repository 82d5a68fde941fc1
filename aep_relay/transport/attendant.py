"""One task that listens for all connections whose peers say nothing but that they are alive.

Waking a connection's own task takes several times what it takes to read a pong, and ten thousand idle consumers send
one each in every half minute. So a connection leaves its wire to the attendant, with a function that deals with what
takes no task; its task is woken by anything else.

Invariants: a wire stands in the selector only as long as its task waits; what was read and not dealt with goes to that
task, whole and in order, errors too; a task is woken once.
"""

from __future__ import annotations

import selectors
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from aep_relay.transport.wire import Wire

READ_BYTES = 256
"""What is read at a time: what is longer is for the connection's own task, which reads on."""

_SLICE = 200
"""So many wires are read before other tasks get a turn."""


class Attended:
    """A wire that was left to the attendant by the task that waits for it."""

    __slots__ = ("_deals_with", "_descriptor", "_heard", "_selector", "_task", "_wire")

    def __init__(
        self, selector: selectors.BaseSelector, wire: Wire, deals_with: Callable[[bytes], bool]
    ) -> None:
        self._selector = selector
        self._wire = wire
        self._deals_with = deals_with
        self._descriptor = wire.fileno()
        self._heard: bytes | Exception = b""
        self._task: trio.lowlevel.Task | None = trio.lowlevel.current_task()
        selector.register(self._descriptor, selectors.EVENT_READ, self)

    def look(self) -> None:
        """Read what is there, and wake the task unless that is dealt with."""
        if self._task is None:
            return
        try:
            heard = self._wire.receive_nowait(READ_BYTES)
            if heard is None or (heard and self._deals_with(heard)):
                return
        except Exception as error:
            # Whatever it is, only that task is concerned.
            self.wake(error)
        else:
            self.wake(heard)

    def wake(self, heard: bytes | Exception) -> None:
        """Let the task go on with ``heard``, unless it has been woken."""
        task = self._task
        if task is not None:
            self._heard = heard
            self._leave()
            trio.lowlevel.reschedule(task)

    def abort(self, _: object) -> trio.lowlevel.Abort:
        """Let the task be cancelled."""
        self._leave()
        return trio.lowlevel.Abort.SUCCEEDED

    def heard(self) -> bytes:
        """Return or raise what the task was woken with."""
        heard, self._heard = self._heard, b""
        if isinstance(heard, bytes):
            return heard
        try:
            raise heard
        finally:
            # Or it and this frame would keep each other alive.
            del heard

    def _leave(self) -> None:
        self._task = None
        self._selector.unregister(self._descriptor)


class Attendant:
    """Who listens. ``run`` has to be running, or nobody who left a wire here hears anything."""

    __slots__ = ("_selector",)

    def __init__(self) -> None:
        # Open as long as anybody may still leave it: it is closed with the last reference.
        self._selector = selectors.DefaultSelector()

    def attend(self, wire: Wire, deals_with: Callable[[bytes], bool]) -> Attended:
        """Take ``wire`` over for the current task, which is to wait until it is woken.

        ``deals_with`` is given what is received, up to ``READ_BYTES`` at a time and never the end of the stream; it
        answers whether that was all there is to do about it.
        """
        return Attended(self._selector, wire, deals_with)

    async def run(self) -> NoReturn:
        """Listen until cancelled."""
        descriptor = self._selector.fileno()
        while True:
            await trio.lowlevel.wait_readable(descriptor)
            await self._look()

    async def _look(self) -> None:
        # Apart, so that what was looked at last is not held until there is something else to look at.
        for count, (key, _) in enumerate(self._selector.select(0)):
            if count % _SLICE == _SLICE - 1:
                await trio.lowlevel.checkpoint()
            attended: Attended = key.data
            attended.look()
