"""The daemon in a thread of this process: real sockets without, everything that it holds in view within.

``holds`` tells how long, in CPU time of the relay's thread, any task kept the event loop in one go.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar, cast
from unittest import mock

import trio

from aep_relay import daemon, process
from aep_relay.bindings.connection import Connection
from aep_relay.bindings.service import Service
from aep_relay.config import Config, Cors, Listen, Operator
from aep_relay.hub.limits import Limits
from aep_relay.hub.peer import Peer
from aep_relay.transport.http import HttpReader
from aep_relay.transport.wire import Wire

PATIENCE_SECONDS = 60.0
HELD = (Connection, Peer, HttpReader, Wire)
"""What a connection is made of."""

T = TypeVar("T")


@dataclass
class Hold:
    """One step of a task, from one checkpoint to the next."""

    seconds: float
    task: str


class _Clock(trio.abc.Instrument):
    """Measures every step in CPU time, so that neither the attacker's thread nor the machine's load counts."""

    def __init__(self) -> None:
        self.longest = Hold(0.0, "")
        self._began = 0.0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._began = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        seconds = time.thread_time() - self._began
        if task.coro.__name__ == "collect_now_and_then":
            # The heap that it visits is the tests' own.
            return
        if seconds > self.longest.seconds:
            self.longest = Hold(seconds, task.name)


@dataclass(frozen=True)
class Holdings:
    """What the relay holds of connections."""

    tasks: Counter[str]
    descriptors: int
    connections: int
    peers: int
    readers: int
    watched: int
    """Deadlines."""


class Log:
    """In place of the relay's log: keeps what would be an error, and nothing else."""

    def __init__(self) -> None:
        self.errors: list[str] = []

    def bind(self, **_: object) -> Log:
        return self

    def info(self, *_: object, **__: object) -> None:
        """Tell nobody."""

    debug = warning = info

    def error(self, event: str, exc_info: object = None, **fields: object) -> None:
        error = exc_info if isinstance(exc_info, BaseException) else sys.exception() if exc_info else None
        text = "" if error is None else "".join(traceback.format_exception(error))
        self.errors.append(f"{event} {fields} {text}")

    def exception(self, event: str, **fields: object) -> None:
        self.error(event, exc_info=True, **fields)


@dataclass
class Inside:
    """A running relay."""

    service: Service
    port: int
    token: trio.lowlevel.TrioToken
    clock: _Clock
    log: Log
    _signals: trio.MemorySendChannel[int]
    _thread: threading.Thread

    def call(self, function: Callable[[], T]) -> T:
        """Run ``function`` in the relay's thread, between the steps of its tasks."""
        return trio.from_thread.run_sync(function, trio_token=self.token)

    def signal(self, number: int) -> None:
        self.call(lambda: self._signals.send_nowait(number))

    def stop(self) -> None:
        """Tell the relay to end, and wait until it has."""
        with contextlib.suppress(trio.RunFinishedError):
            self.signal(signal.SIGTERM)
        self._thread.join(PATIENCE_SECONDS)

    def holdings(self) -> Holdings:
        def count() -> Holdings:
            service = self.service
            deadlines = service.deadlines
            return Holdings(
                _tasks(),
                len(os.listdir("/proc/self/fd")),
                service.open_connections,
                len(service.relay.peers),
                len(service.readers),
                len(deadlines.waiting) + len(deadlines._watched) + sum(map(len, deadlines._slots.values())),
            )

        return self.call(count)

    def objects(self) -> Counter[str]:
        """Return how many objects there are of what connections are made of, garbage not counted."""

        def count() -> Counter[str]:
            gc.collect()
            return Counter(type(item).__name__ for item in gc.get_objects() if isinstance(item, HELD))

        return self.call(count)

    def back_at(self, before: Holdings) -> Holdings:
        """Wait until the relay holds what it held before; return what it holds at last."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (now := self.holdings()) != before and time.monotonic() < deadline:
            time.sleep(0.01)
        if now != before:
            # What is too many is told by what it is.
            print("descriptors:", *self.call(_descriptors), sep="\n  ")
        return now

    @contextlib.contextmanager
    def leaving_nothing(self) -> Iterator[None]:
        """Have everything that was made for connections of the block be gone, with a moment for those that just end."""
        before = self.objects()
        yield
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (after := self.objects()) != before and time.monotonic() < deadline:
            time.sleep(0.1)
        assert after == before, (after - before, before - after)

    @contextlib.contextmanager
    def holds(self) -> Iterator[Callable[[], Hold]]:
        """Measure the steps of the block; what is yielded tells the longest."""
        self.clock.longest = Hold(0.0, "")
        yield lambda: self.clock.longest


def _descriptors() -> list[str]:
    """Return what each descriptor is of."""
    found: list[str] = []
    for name in os.listdir("/proc/self/fd"):
        # The one that lists them is gone by now.
        with contextlib.suppress(OSError):
            found.append(f"{name}: {os.readlink(f'/proc/self/fd/{name}')}")
    return found


def _tasks() -> Counter[str]:
    """Return all tasks by name."""
    found: Counter[str] = Counter()
    root = trio.lowlevel.current_root_task()
    waiting = [root] if root is not None else []
    while waiting:
        task = waiting.pop()
        found[task.name] += 1
        waiting += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
    return found


@contextlib.contextmanager
def _collecting_rarely() -> Iterator[None]:
    """Look for garbage as the installed daemon does: the whole heap of the tests is not the relay's to visit."""
    before = gc.get_threshold()
    process.collect_rarely()
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


@contextlib.contextmanager
def inside(limits: Limits | None = None, **settings: Any) -> Iterator[Inside]:
    """Run the daemon for the block, on a port of its own."""
    config = Config(
        listen=Listen(port=0),
        limits=limits or Limits(),
        operator=Operator(enabled=False),
        cors=Cors(),
        **settings,
    )
    send, receive = trio.open_memory_channel[int](8)
    ready = threading.Event()
    found: list[Inside] = []
    failures: list[BaseException] = []
    services: list[Service] = []

    @contextlib.contextmanager
    def signals(*_: int) -> Iterator[AsyncIterator[int]]:
        yield receive

    class Noted(Service):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.log = cast(Any, log)
            services.append(self)

    clock, log = _Clock(), Log()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            addresses = await nursery.start(daemon.serve, config)
            token = trio.lowlevel.current_trio_token()
            found.append(Inside(services[0], addresses[0][1], token, clock, log, send, thread))
            ready.set()

    def run() -> None:
        try:
            trio.run(main, instruments=[clock])
        except BaseException as error:
            failures.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=run, daemon=True)
    with mock.patch.object(daemon, "log", log), _collecting_rarely():
        with (
            mock.patch.object(trio, "open_signal_receiver", signals),
            mock.patch.object(daemon, "Service", Noted),
        ):
            thread.start()
            assert ready.wait(PATIENCE_SECONDS)
        if failures:
            raise failures[0]
        try:
            yield found[0]
        finally:
            found[0].stop()
            if failures:
                raise failures[0]
            assert not thread.is_alive()
