"""A healthy pair: one emitter and its consumers, which notice when anybody else is disturbed."""

from __future__ import annotations

import selectors
import threading
import time
from dataclasses import dataclass

from tests.hardening.client import Raw, Socket, Stream, event, post

TICK_SECONDS = 0.02
LATENCY_SECONDS = 10.0
"""More than a busy machine needs to let two processes run in turn: who waits longer has been forgotten. What holds the
event loop for a moment is measured apart from the machine's load, in ``test_loop``."""


@dataclass(frozen=True)
class Noticed:
    """What became of the Events of a while."""

    sent: int
    missing: int
    latency_seconds: float
    """The longest from before an Event was sent to its arrival at the last consumer."""


class Pair(threading.Thread):
    """Emits an Event of severity ``notice`` every ``TICK_SECONDS`` by POST and reads it by SSE and by WebSocket."""

    def __init__(self, port: int, session: str = "healthy") -> None:
        super().__init__(daemon=True)
        self.port = port
        self.session = session
        self.failure: BaseException | None = None
        self._sent: list[float] = []
        self._received: dict[str, list[float]] = {"sse": [], "websocket": []}
        self._over = threading.Event()
        # Here and not in the thread: whoever counts descriptors from now on counts this one.
        self._selector = selectors.DefaultSelector()
        self._emitter = Raw(port)
        query = f"?filter=%7B%22session%22:%22{session}%22%7D"
        self._stream = Stream(port, query)
        self._socket = Socket(port).greet(role="consumer")
        assert self._socket.subscribe(filter={"session": session})["type"] == "subscribed"

    def run(self) -> None:
        try:
            with self._selector as selector:
                for name, connection in (
                    ("emitter", self._emitter),
                    ("sse", self._stream),
                    ("websocket", self._socket),
                ):
                    selector.register(connection.sock, selectors.EVENT_READ, (name, connection))
                self._run(selector)
        except BaseException as error:
            self.failure = error
        finally:
            for ended in (self._emitter, self._stream, self._socket):
                ended.close()

    def _run(self, selector: selectors.BaseSelector) -> None:
        tails = {"emitter": b"", "sse": b"", "websocket": b""}
        answered, due, lively = 0, time.monotonic(), time.monotonic()
        while not (self._over.is_set() and self.missing == 0):
            now = time.monotonic()
            if now >= lively:
                # Not every relay under attack waits 90 seconds for a sign of life.
                lively = now + 0.5
                self._socket.say({"type": "pong"})
            if now >= due and answered == len(self._sent) and not self._over.is_set():
                due = max(due + TICK_SECONDS, now)
                seq = len(self._sent)
                self._sent.append(now)
                self._emitter.send(post(event(seq, self.session, id=f"<{seq}>", severity="notice")))
            for key, _ in selector.select(max(0.001, min(due - now, TICK_SECONDS))):
                name, connection = key.data
                data = tails[name] + connection.receive()
                if name == "emitter":
                    answered += data.count(b"HTTP/1.1 202 ")
                    tails[name] = data[data.rfind(b"HTTP/1.1 202 ") + 13 :][-20:]
                else:
                    tails[name] = self._take(name, data)

    def _take(self, name: str, data: bytes) -> bytes:
        received = self._received[name]
        while (at := data.find(b'"id": "<')) >= 0 and (end := data.find(b'>"', at)) >= 0:
            seq = int(data[at + 8 : end])
            assert seq == len(received), f"{name} got {seq} after {len(received) - 1}"
            received.append(time.monotonic())
            data = data[end:]
        return data[-4096:]

    @property
    def missing(self) -> int:
        """Deliveries that are still to come."""
        return sum(len(self._sent) - len(received) for received in self._received.values())

    def mark(self) -> int:
        """Return where a while begins, for ``since``."""
        return len(self._sent)

    def since(self, mark: int) -> Noticed:
        """Wait for what has been sent by now, and say what became of all since ``mark``."""
        end = len(self._sent)
        deadline = time.monotonic() + 2 * LATENCY_SECONDS
        while time.monotonic() < deadline and self.failure is None:
            if all(len(received) >= end for received in self._received.values()):
                break
            time.sleep(0.002)
        if self.failure is not None:
            raise AssertionError("the healthy pair was disturbed") from self.failure
        arrived = min(map(len, self._received.values()))
        latencies = [
            received[seq] - self._sent[seq]
            for seq in range(mark, min(end, arrived))
            for received in self._received.values()
        ]
        return Noticed(end - mark, max(0, end - arrived), max(latencies, default=0.0))

    def stop(self) -> None:
        self._over.set()
        self.join(10)
