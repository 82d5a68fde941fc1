"""A wire in memory: what the peer sends is fed to it, what it sends is kept, its window is settable."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import trio

from aep_relay.transport.attendant import READ_BYTES
from aep_relay.transport.wire import RECEIVE_BYTES, BrokenWire, Interrupted, Wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from aep_relay.transport.attendant import Attendant


class MemoryWire(Wire):
    """Behaves like a ``Wire`` on a socket whose peer is the test.

    ``capacity_bytes`` is how much more ``send`` takes before it would block. ``feed``, ``feed_end`` and
    ``reset`` are the peer's doing. ``sent`` is all that was taken, in order.
    """

    def __init__(self, chunks: Iterable[bytes] = (), *, capacity_bytes: int | None = None) -> None:
        # No socket: everything that would touch one is overridden.
        self.closed = False
        self.peer_name = "memory:peer"
        self.sent = bytearray()
        self.sends: list[bytes] = []
        """What each ``send`` took that took anything."""
        self.aborted = False
        self.write_ended = False
        self._inbound: deque[bytes] = deque(chunks)
        self._ended = False
        self._reset_reason: str | None = None
        self._capacity_bytes = capacity_bytes
        self._receiving = False
        self._interrupted = False
        self._reader: trio.lowlevel.Task | None = None
        self._writer: trio.lowlevel.Task | None = None

    # The peer's side

    def feed(self, data: bytes) -> None:
        """The peer sends ``data``; one ``receive_some`` returns it whole, if it asks for that much."""
        self._inbound.append(data)
        self._wake_reader()

    def feed_end(self) -> None:
        """The peer ends its stream."""
        self._ended = True
        self._wake_reader()

    def reset(self, reason: str = "Connection reset by peer") -> None:
        """The peer resets the connection."""
        self._reset_reason = reason
        self._wake_reader()
        self._wake_writer()

    @property
    def capacity_bytes(self) -> int | None:
        """How many more bytes ``send`` takes; None for any number."""
        return self._capacity_bytes

    @capacity_bytes.setter
    def capacity_bytes(self, value: int | None) -> None:
        self._capacity_bytes = value
        if value != 0:
            self._wake_writer()

    def take_sent(self) -> bytes:
        """Return what was sent since the last call."""
        data = bytes(self.sent)
        self.sent.clear()
        self.sends.clear()
        return data

    @property
    def is_receiving(self) -> bool:
        """Whether a task waits in ``receive_some``."""
        return self._reader is not None

    # The wire's side

    def fileno(self) -> int:
        return -1

    def send(self, data: bytes | bytearray | memoryview) -> int:
        self._check()
        taken = len(data) if self._capacity_bytes is None else min(len(data), self._capacity_bytes)
        if taken:
            self.sent += data[:taken]
            self.sends.append(bytes(data[:taken]))
            if self._capacity_bytes is not None:
                self._capacity_bytes -= taken
        return taken

    async def wait_writable(self) -> None:
        await trio.lowlevel.checkpoint()
        while True:
            self._check()
            if self._capacity_bytes != 0:
                return
            if self._writer is not None:
                raise trio.BusyResourceError("another task waits for writing")
            self._writer = trio.lowlevel.current_task()
            try:
                await self._wait()
            finally:
                self._writer = None

    async def receive_some(self, max_bytes: int = RECEIVE_BYTES) -> bytes:
        if self._receiving:
            raise trio.BusyResourceError("another task receives")
        self._receiving, self._interrupted = True, False
        try:
            await trio.lowlevel.checkpoint()
            while True:
                if self._interrupted:
                    raise Interrupted
                data = self.receive_nowait(max_bytes)
                if data is not None:
                    return data
                self._reader = trio.lowlevel.current_task()
                try:
                    await self._wait()
                finally:
                    self._reader = None
        finally:
            self._receiving = False

    async def receive_beyond(self, attendant: Attendant, deals_with: Callable[[bytes], bool]) -> bytes:
        while (data := await self.receive_some(READ_BYTES)) and deals_with(data):
            pass
        return data

    def receive_nowait(self, max_bytes: int = RECEIVE_BYTES) -> bytes | None:
        if self._inbound and not self.closed:
            data = self._inbound.popleft()
            if len(data) > max_bytes:
                self._inbound.appendleft(data[max_bytes:])
            return data[:max_bytes]
        self._check()
        return b"" if self._ended else None

    def interrupt(self) -> None:
        self._interrupted = True
        self._wake_reader()

    def shutdown_write(self) -> None:
        self.write_ended = True

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._wake_reader()
            self._wake_writer()

    def abort(self) -> None:
        if not self.closed:
            self.aborted = True
            self.close()

    def _check(self) -> None:
        if self.closed:
            raise BrokenWire("closed on this side")
        if self._reset_reason is not None:
            raise BrokenWire(self._reset_reason)

    async def _wait(self) -> None:
        task = trio.lowlevel.current_task()

        def abort(_: object) -> trio.lowlevel.Abort:
            # Who has been cancelled is not woken again before it runs.
            self._reader = None if self._reader is task else self._reader
            self._writer = None if self._writer is task else self._writer
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def _wake_reader(self) -> None:
        task, self._reader = self._reader, None
        if task is not None:
            trio.lowlevel.reschedule(task)

    def _wake_writer(self) -> None:
        task, self._writer = self._writer, None
        if task is not None:
            trio.lowlevel.reschedule(task)
