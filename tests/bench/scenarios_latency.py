"""Latency: from emission to delivery, idle and paced, and beside a stalled consumer."""

from __future__ import annotations

import contextlib
import socket
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from . import daemon, nats, paced, wire
from .events import Session, marker
from .harness import Bench
from .load import Load
from .process import Measured, Server
from .report import Row, Yardstick
from .scenarios_fanout import open_emitter

INTERVAL_SECONDS = 0.001
_STALLED_RECEIVE_BYTES = 4096
_PAUSE_SECONDS = 0.02
_SUBSCRIBE_ALL: list[wire.Subscribe] = [{"filter": {}}]

Window = Callable[[], list[float]]


def milliseconds(values: Sequence[float]) -> dict[str, object]:
    """What there is to say of ``values``, in seconds, for the JSON."""
    marks = {f"p{percent:g}_ms": paced.percentile(values, percent) for percent in (50, 90, 99, 99.9)}
    rounded = {name: round(seconds * 1e3, 3) for name, seconds in marks.items()}
    return {**rounded, "max_ms": round(max(values) * 1e3, 3), "deliveries": len(values)}


def last_of_1000(bench: Bench) -> list[Row]:
    """One Event to 1000 idle consumers: from the request to the last of them having it."""
    consumers, samples = 1000, bench.sized(20, 10) * bench.repeat
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(daemon.relay(bench.server_core))
        socks = wire.open_sockets(server, consumers, lambda _: _SUBSCRIBE_ALL)
        load = stack.enter_context(Load([open_emitter(server)], socks))
        measured = _samples(load, lambda event: wire.post(server, event, "application/json"), samples)
        broker = stack.enter_context(nats.broker(bench.server_core))
        yardstick = None
        if broker is not None:
            subscribers = nats.open_subscribers(broker, consumers)
            other = stack.enter_context(Load([nats.open_publisher(broker)], subscribers))
            seconds = _samples(other, lambda event: nats.publications([event]), samples)
            yardstick = Yardstick("nats-server", statistics.median(seconds) * 1e3)
    value = statistics.median(measured) * 1e3
    return [
        Row(
            "last-of-1000",
            "one Event, the last of 1000 idle consumers, p50",
            "ms",
            value,
            18.0,
            yardstick,
            milliseconds(measured),
        )
    ]


def _samples(load: Load, encode: Callable[[bytes], bytes], count: int) -> list[float]:
    session, found = Session("s_idle"), list[float]()
    for _ in range(count + 3):
        event = session.event()
        request, mark = encode(event), marker(event)
        time.sleep(_PAUSE_SECONDS)
        started = time.perf_counter()
        load.run([request], mark)
        found.append(time.perf_counter() - started)
    return found[3:]


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
    def p99_ms(self) -> float:
        """The median over the windows of the 99th percentile in each."""
        return statistics.median(paced.percentile(window, 99) * 1e3 for window in self._found)

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
    yardstick = Yardstick("nats-server", found["nats"].p99_ms) if "nats" in found else None
    figure = "an Event every ms, 10 consumers, p99"
    return [Row("latency", figure, "ms", windows.p99_ms, 5.0, yardstick, details)]


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
    return [Row("stalled", figure, "ms", beside.p99_ms, None, yardstick, details)]


def _open_stalled(server: Server) -> socket.socket:
    return wire.open_sockets(
        server, 1, lambda _: _SUBSCRIBE_ALL, receive_buffer_bytes=_STALLED_RECEIVE_BYTES
    )[0]
