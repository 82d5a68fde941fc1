"""The load: emitters that send as fast as they are answered, consumers that read as fast as bytes come.

One thread and one epoll: in each round all that is readable is read before the next request is sent, so the
consumers never fall behind what the emitters cause. Consumers are not parsed. One is done when it has
received the bytes it must at least receive and the last of them hold the marker of the last Event.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Iterable, Sequence

from .process import BenchError

STUCK_SECONDS = 20.0
# More than one Event in its framing, with a heartbeat behind it.
_TAIL_BYTES = 1024
_BUFFER = bytearray(4 * 1024 * 1024)
_VIEW = memoryview(_BUFFER)


class Emitter:
    """A connection on which requests are sent one at a time, each answered by ``answer`` bytes.

    Anything that holds one of ``refusals`` ends the run.
    """

    __slots__ = ("_answer", "_busy", "_pending", "_received", "_refusals", "sock")

    def __init__(self, sock: socket.socket, answer: bytes, refusals: Sequence[bytes] = ()) -> None:
        sock.setblocking(False)
        self.sock = sock
        self._answer = answer
        self._refusals = refusals
        self._received = b""
        self._pending = memoryview(b"")
        self._busy = False

    def send(self, request: bytes) -> None:
        """Start to send ``request``; ``pump`` sends what the kernel did not take."""
        self._pending = memoryview(request)
        self._received = b""
        self._busy = True
        self.pump()

    def pump(self) -> bool:
        """Send what is pending; returns whether something still is."""
        with contextlib.suppress(BlockingIOError):
            while self._pending:
                self._pending = self._pending[self.sock.send(self._pending) :]
        return bool(self._pending)

    def answered(self) -> bool:
        """Read what has come; returns whether it completes the answer to what was sent."""
        chunk = self.sock.recv(65536)
        self._received += chunk
        if not chunk or any(refusal in self._received for refusal in self._refusals):
            raise BenchError(f"refused: {self._received[-500:]!r}")
        if not self._busy or self._answer not in self._received:
            return False
        self._busy = False
        return True


class _Consumer:
    __slots__ = ("goal_bytes", "received_bytes", "sock", "tail")

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.received_bytes = 0
        self.goal_bytes = 0
        self.tail = b""


class Load:
    """Emitters and consumers of one server, driven together."""

    def __init__(self, emitters: Sequence[Emitter], consumers: Sequence[socket.socket]) -> None:
        self._emitters = {emitter.sock.fileno(): emitter for emitter in emitters}
        self._consumers = {sock.fileno(): _Consumer(sock) for sock in consumers}
        self._epoll = select.epoll()
        for fd in (*self._emitters, *self._consumers):
            self._epoll.register(fd, select.EPOLLIN)
        self._events_max = len(self._emitters) + len(self._consumers)
        self._mark = b""
        self._missing: set[int] = set()

    def __enter__(self) -> Load:
        return self

    def __exit__(self, *_: object) -> None:
        self._epoll.close()
        for emitter in self._emitters.values():
            emitter.sock.close()
        for consumer in self._consumers.values():
            consumer.sock.close()

    def run(self, requests: Iterable[bytes], mark: bytes = b"", bytes_each: int = 0) -> None:
        """Send ``requests``, spread over the emitters, and return when all are answered and delivered.

        Each consumer must receive ``bytes_each`` at least, ending with an Event that holds ``mark``. Raises
        ``BenchError`` if a request is refused, a consumer is dropped, or nothing moves any more.
        """
        self._missing = set(self._consumers)
        self._mark = mark
        for consumer in self._consumers.values():
            consumer.goal_bytes = consumer.received_bytes + bytes_each
        supply = iter(requests)
        idle, pending = list(self._emitters.values()), set[Emitter]()
        moved = time.monotonic()
        while True:
            while idle and (request := next(supply, None)) is not None:
                emitter = idle.pop()
                emitter.send(request)
                pending.add(emitter)
            if len(idle) == len(self._emitters) and not self._missing:
                return
            if self._round(idle, pending):
                moved = time.monotonic()
            elif time.monotonic() > moved + STUCK_SECONDS:
                raise BenchError(f"{len(self._missing)} consumers still wait for {mark!r}")

    def _round(self, idle: list[Emitter], pending: set[Emitter]) -> bool:
        for emitter in list(pending):
            if not emitter.pump():
                pending.discard(emitter)
        emitters = self._emitters
        ready = self._epoll.poll(0.001 if pending else 1.0, self._events_max)
        for fd, _ in ready:
            if fd in emitters:
                if emitters[fd].answered():
                    idle.append(emitters[fd])
            else:
                self._take(fd)
        return bool(ready)

    def _take(self, fd: int) -> None:
        consumer = self._consumers[fd]
        count = consumer.sock.recv_into(_BUFFER)
        if count == 0:
            raise BenchError(f"a consumer was dropped after {consumer.tail[-300:]!r}")
        consumer.received_bytes += count
        if count >= _TAIL_BYTES:
            consumer.tail = bytes(_VIEW[count - _TAIL_BYTES : count])
        else:
            consumer.tail = (consumer.tail + bytes(_VIEW[:count]))[-_TAIL_BYTES:]
        if consumer.received_bytes >= consumer.goal_bytes and self._mark in consumer.tail:
            self._missing.discard(fd)
