"""Latency: from emission to delivery, idle and paced, and beside a stalled consumer."""

from __future__ import annotations

import contextlib
import socket
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from . import daemon, machine, nats, pace, paced, wire
from .events import Session, marker
from .harness import Bench
from .load import Load
from .process import Measured, Server
from .report import Row, Yardstick
from .scenarios_fanout import open_emitter

INTERVAL_SECONDS = 0.001
_STALLED_RECEIVE_BYTES = 4096
_PAUSE_SECONDS = 0.02
_UNMEASURED_EVENTS = 3
_SUBSCRIBE_ALL: list[wire.Subscribe] = [{"filter": {}}]

Window = Callable[[], list[float]]


def milliseconds(values: Sequence[float]) -> dict[str, object]:
    """What there is to say of ``values``, in seconds, for the JSON."""
    marks = {f"p{percent:g}_ms": paced.percentile(values, percent) for percent in (50, 90, 99, 99.9)}
    rounded = {name: round(seconds * 1e3, 3) for name, seconds in marks.items()}
    return {**rounded, "max_ms": round(max(values) * 1e3, 3), "deliveries": len(values)}


def last_of_1000(bench: Bench) -> list[Row]:
    """One Event to 1000 idle consumers: from the request to the last of them having it."""
    consumers, samples = 1000, bench.sized(20, 10)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(daemon.relay(bench.server_core))
        socks = wire.open_sockets(server, consumers, lambda _: _SUBSCRIBE_ALL)
        load = stack.enter_context(Load([open_emitter(server)], socks))
        found = {"relay": _Singly(load, lambda event: wire.post(server, event, "application/json"))}
        broker = stack.enter_context(nats.broker(bench.server_core))
        if broker is not None:
            subscribers = nats.open_subscribers(broker, consumers)
            other = stack.enter_context(Load([nats.open_publisher(broker)], subscribers))
            found["nats"] = _Singly(other, lambda event: nats.publications([event]))
        for _ in range(bench.repeat):
            for each in found.values():
                each.measure(samples, bench.server_core)
    relay = found["relay"]
    beside = [Yardstick("nats-server", found["nats"].p50_ms)] if "nats" in found else []
    return [
        Row(
            "last-of-1000",
            "one Event, the last of 1000 idle consumers, p50",
            "ms",
            relay.p50_ms,
            18.0,
            [*beside, pace.yardstick(relay.decode_us)],
            milliseconds(relay.seconds),
        )
    ]


class _Singly:
    """Single Events, each sent after the last one has been received by all and a pause."""

    def __init__(self, load: Load, encode: Callable[[bytes], bytes]) -> None:
        self._load = load
        self._encode = encode
        self._session = Session("s_idle")
        self.seconds: list[float] = []
        """From the request to the last consumer having it, Event by Event."""
        self.p50_ms: list[float] = []
        """The median of each round."""
        self.decode_us: list[float] = []
        """How fast the server's core was, round by round."""
        for _ in range(_UNMEASURED_EVENTS):
            self._send()

    def measure(self, count: int, core: machine.Core) -> None:
        """Send ``count`` Events: one more round."""
        seconds, decode_us = pace.around(core, lambda: [self._send() for _ in range(count)])
        self.seconds += seconds
        self.p50_ms.append(statistics.median(seconds) * 1e3)
        self.decode_us.append(decode_us)

    def _send(self) -> float:
        event = self._session.event()
        request, mark = self._encode(event), marker(event)
        time.sleep(_PAUSE_SECONDS)
        started = time.perf_counter()
        self._load.run([request], mark)
        return time.perf_counter() - started


def _open_paced(stack: ExitStack, bench: Bench, consumers: int, count: int) -> tuple[Server, Window]:
    server = stack.enter_context(daemon.relay(bench.server_core))
    [emitter] = wire.open_sockets(server, 1, lambda _: [], "emitter")
    socks = wire.open_sockets(server, consumers, lambda _: _SUBSCRIBE_ALL)
    for sock in (emitter, *socks):
        stack.enter_context(sock)
    session = Session("s_paced")

    def window() -> list[float]:
        messages = [wire.frame(event) for event in session.events(count)]
        return paced.latencies(emitter, messages, socks, paced.FrameCounter, INTERVAL_SECONDS)

    return server, window


def _open_paced_nats(stack: ExitStack, bench: Bench, consumers: int, count: int) -> dict[str, _Windows]:
    broker = stack.enter_context(nats.broker(bench.server_core))
    if broker is None:
        return {}
    emitter = stack.enter_context(nats.open_publisher_socket(broker))
    socks = [stack.enter_context(sock) for sock in nats.open_subscribers(broker, consumers)]
    session = Session("s_paced")

    def window() -> list[float]:
        events = session.events(count)
        size = nats.delivery_bytes(events[0])
        messages = [nats.publication(event) for event in events]
        return paced.latencies(emitter, messages, socks, lambda: paced.MessageCounter(size), INTERVAL_SECONDS)

    return {"nats": _Windows(broker, window)}


class _Windows:
    """Windows of paced load on one server: the latencies found in each, and what the server went through."""

    def __init__(self, server: Server, window: Window) -> None:
        self._server = server
        self._window = window
        self._found: list[list[float]] = []
        self._runs: list[Measured] = []

    def measure(self) -> None:
        """Run one more window."""
        self._runs.append(self._server.measure(lambda: self._found.append(self._window())))

    @property
    def p99_ms(self) -> list[float]:
        """The 99th percentile in each window."""
        return [paced.percentile(window, 99) * 1e3 for window in self._found]

    @property
    def pace(self) -> Yardstick:
        """How fast the server's core was, window by window."""
        return pace.yardstick([run.decode_us for run in self._runs])

    def details(self) -> dict[str, object]:
        """All windows together, for the JSON."""
        wall = sum(run.wall_seconds for run in self._runs)
        return {
            **milliseconds([value for window in self._found for value in window]),
            "server_busy": round(sum(run.cpu_seconds for run in self._runs) / wall, 3),
            "server_waited": round(sum(run.waited_seconds for run in self._runs) / wall, 3),
        }


def latency(bench: Bench) -> list[Row]:
    """One Event every millisecond to ten consumers, over WebSocket in and out."""
    consumers, count = 10, bench.sized(1_500, 700)
    with contextlib.ExitStack() as stack:
        windows = _Windows(*_open_paced(stack, bench, consumers, count))
        found = {"relay": windows, **_open_paced_nats(stack, bench, consumers, count)}
        for _ in range(bench.repeat):
            for each in found.values():
                each.measure()
    details = windows.details() | {
        name: each.details() for name, each in found.items() if each is not windows
    }
    beside = [Yardstick("nats-server", found["nats"].p99_ms)] if "nats" in found else []
    figure = "an Event every ms, 10 consumers, p99"
    return [Row("latency", figure, "ms", windows.p99_ms, 5.0, [*beside, windows.pace], details)]


def stalled(bench: Bench) -> list[Row]:
    """1,000 Events a second to 100 consumers, with one more that never reads and without."""
    consumers, count = 100, bench.sized(1_500, 700)
    with contextlib.ExitStack() as stack:
        server, window = _open_paced(stack, bench, consumers, count)
        window()
        alone, beside = _Windows(server, window), _Windows(server, window)
        for _ in range(bench.repeat):
            alone.measure()
            with _open_stalled(server):
                beside.measure()
    figure = "100 healthy at 1,000 Events/s beside a stalled one, p99"
    yardstick = Yardstick("without it", alone.p99_ms, limit=1.2)
    details = beside.details() | {"without": alone.details()}
    return [Row("stalled", figure, "ms", beside.p99_ms, None, [yardstick], details)]


def _open_stalled(server: Server) -> socket.socket:
    return wire.open_sockets(
        server, 1, lambda _: _SUBSCRIBE_ALL, receive_buffer_bytes=_STALLED_RECEIVE_BYTES
    )[0]
