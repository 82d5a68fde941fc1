"""Latency at a fixed rate: one Event every so often, and when each consumer had received it.

The loop spins, since epoll's timeouts are whole milliseconds. Latencies are seconds from just before the
Event's send to the return of the read that completed it, on one clock.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Callable, Iterable, Sequence

from .process import BenchError

TIMEOUT_SECONDS = 30.0
# A payload of 126 to 65,535 bytes; shorter ones are frames of the connection, such as a ping.
_MEDIUM_LENGTH = 126


class MessageCounter:
    """Counts messages of one fixed size in a stream that holds nothing else."""

    def __init__(self, message_bytes: int) -> None:
        self._message_bytes = message_bytes
        self._received_bytes = 0
        self._counted = 0

    def feed(self, chunk: bytes) -> int:
        """How many messages ``chunk`` completes."""
        self._received_bytes += len(chunk)
        before, self._counted = self._counted, self._received_bytes // self._message_bytes
        return self._counted - before


class FrameCounter:
    """Counts the Events among the WebSocket frames of a server: those with a payload of 126 bytes or more."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> int:
        """How many Events ``chunk`` completes."""
        data, offset, counted = self._rest + chunk, 0, 0
        while len(data) - offset >= 4:
            length = data[offset + 1]
            if length > _MEDIUM_LENGTH:
                raise BenchError("a frame of 64 KiB or more among Events of 460 bytes")
            if length == _MEDIUM_LENGTH:
                end = offset + 4 + (data[offset + 2] << 8 | data[offset + 3])
            else:
                end = offset + 2 + length
            if end > len(data):
                break
            counted += length == _MEDIUM_LENGTH
            offset = end
        self._rest = data[offset:]
        return counted


Counter = MessageCounter | FrameCounter


def latencies(
    emitter: socket.socket,
    messages: Iterable[bytes],
    consumers: Sequence[socket.socket],
    counter: Callable[[], Counter],
    interval_seconds: float,
    *,
    spin: bool = True,
) -> list[float]:
    """Send ``messages`` one every ``interval_seconds``; returns the latency of each delivery, unordered.

    The rate is kept whatever the latency. Every consumer receives every message, in order; raises
    ``BenchError`` if one does not. With ``spin`` off the loop sleeps, a millisecond at least.
    """
    run = _Paced(consumers, counter)
    supply, clock = iter(messages), time.perf_counter
    message, due, moved = next(supply, None), clock(), clock()
    with contextlib.closing(run.epoll):
        while message is not None or run.missing:
            now = clock()
            if message is not None and now >= due:
                run.sent.append(clock())
                emitter.sendall(message)
                due += interval_seconds
                message, moved = next(supply, None), now
            moved = now if run.receive(0.0 if spin else max(0.001, due - now)) else moved
            if now > moved + TIMEOUT_SECONDS:
                raise BenchError(f"{run.missing} deliveries did not come")
    return run.found


class _Paced:
    """The receiving side of ``latencies``: when each Event was sent, how far each consumer is."""

    def __init__(self, consumers: Sequence[socket.socket], counter: Callable[[], Counter]) -> None:
        self.epoll = select.epoll()
        self.sent: list[float] = []
        self.found: list[float] = []
        self._consumers = {sock.fileno(): (sock, counter()) for sock in consumers}
        self._received = dict.fromkeys(self._consumers, 0)
        for sock in consumers:
            sock.setblocking(False)
            self.epoll.register(sock.fileno(), select.EPOLLIN)

    @property
    def missing(self) -> int:
        """Deliveries still to come for what has been sent."""
        return len(self.sent) * len(self._consumers) - len(self.found)

    def receive(self, timeout_seconds: float) -> bool:
        """Read what has come within ``timeout_seconds``; returns whether anything had."""
        ready = self.epoll.poll(timeout_seconds, len(self._consumers))
        for fd, _ in ready:
            sock, counting = self._consumers[fd]
            chunk = sock.recv(262144)
            if not chunk:
                raise BenchError("a consumer was dropped")
            now, before = time.perf_counter(), self._received[fd]
            after = self._received[fd] = before + counting.feed(chunk)
            self.found += [now - moment for moment in self.sent[before:after]]
        return bool(ready)


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that ``percent`` of ``values`` do not exceed (nearest rank)."""
    ordered = sorted(values)
    rank = max(1, -(-len(ordered) * percent // 100))
    return ordered[int(rank) - 1]
