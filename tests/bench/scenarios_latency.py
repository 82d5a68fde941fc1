"""Latency: from emission to delivery, idle and paced, beside a stalled consumer and beside a huge batch."""

from __future__ import annotations

import contextlib
import multiprocessing
import socket
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection

from . import daemon, nats, paced, wire
from .events import Session, marker, ndjson
from .harness import Bench
from .load import Load
from .process import Server
from .report import Row, Yardstick
from .scenarios_fanout import open_emitter

INTERVAL_SECONDS = 0.001
_STALLED_RECEIVE_BYTES = 4096
_SINGLES_INTERVAL_SECONDS = 0.01
_SINGLES_LEAD_SECONDS = 0.2
_PAUSE_SECONDS = 0.02
_SUBSCRIBE_ALL: list[wire.Subscribe] = [{"filter": {}}]

Window = Callable[[], list[float]]


def _milliseconds(values: Sequence[float]) -> dict[str, object]:
    marks = {f"p{percent:g}_ms": paced.percentile(values, percent) for percent in (50, 90, 99, 99.9)}
    rounded = {name: round(seconds * 1e3, 3) for name, seconds in marks.items()}
    return {**rounded, "max_ms": round(max(values) * 1e3, 3), "deliveries": len(values)}


def _percentiles_ms(windows: Sequence[Sequence[float]], percent: float) -> list[float]:
    return [paced.percentile(window, percent) * 1e3 for window in windows]


def _flat(windows: Sequence[Sequence[float]]) -> list[float]:
    return [value for window in windows for value in window]


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
            _milliseconds(measured),
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


def _relay_window(
    server: Server, emitter: socket.socket, consumers: list[socket.socket], count: int
) -> Window:
    session = Session("s_paced")

    def window() -> list[float]:
        messages = [wire.frame(event) for event in session.events(count)]
        return paced.latencies(emitter, messages, consumers, paced.FrameCounter, INTERVAL_SECONDS)

    return window


def _open_paced(stack: ExitStack, bench: Bench, consumers: int, count: int) -> tuple[Server, Window]:
    server = stack.enter_context(daemon.relay(bench.server_core))
    [emitter] = wire.open_sockets(server, 1, lambda _: [], "emitter")
    socks = wire.open_sockets(server, consumers, lambda _: _SUBSCRIBE_ALL)
    for sock in (emitter, *socks):
        stack.enter_context(sock)
    return server, _relay_window(server, emitter, socks, count)


def _nats_window(stack: ExitStack, bench: Bench, consumers: int, count: int) -> Window | None:
    broker = stack.enter_context(nats.broker(bench.server_core))
    if broker is None:
        return None
    emitter = stack.enter_context(nats.open_publisher_socket(broker))
    socks = [stack.enter_context(sock) for sock in nats.open_subscribers(broker, consumers)]
    session = Session("s_paced")

    def window() -> list[float]:
        events = session.events(count)
        size = nats.delivery_bytes(events[0])
        messages = [nats.publication(event) for event in events]
        return paced.latencies(emitter, messages, socks, lambda: paced.MessageCounter(size), INTERVAL_SECONDS)

    return window


def latency(bench: Bench) -> list[Row]:
    """One Event every millisecond to ten consumers, over WebSocket in and out."""
    consumers, count = 10, bench.sized(1_500, 700)
    with contextlib.ExitStack() as stack:
        _, window = _open_paced(stack, bench, consumers, count)
        other = _nats_window(stack, bench, consumers, count)
        mine, theirs = [], []
        window()
        for _ in range(bench.repeat):
            mine.append(window())
            if other:
                theirs.append(other())
    p99 = statistics.median(_percentiles_ms(mine, 99))
    yardstick = Yardstick("nats-server", statistics.median(_percentiles_ms(theirs, 99))) if theirs else None
    return [
        Row(
            "latency",
            "an Event every ms, 10 consumers, p99",
            "ms",
            p99,
            5.0,
            yardstick,
            _milliseconds(_flat(mine)),
        )
    ]


def stalled(bench: Bench) -> list[Row]:
    """1,000 Events a second to 100 consumers, with one more that never reads and without."""
    consumers, count = 100, bench.sized(1_500, 700)
    with contextlib.ExitStack() as stack:
        server, window = _open_paced(stack, bench, consumers, count)
        window()
        alone, beside = [], []
        for _ in range(bench.repeat):
            alone.append(window())
            with _open_stalled(server):
                beside.append(window())
    p99 = statistics.median(_percentiles_ms(beside, 99))
    yardstick = Yardstick("without it", statistics.median(_percentiles_ms(alone, 99)), limit=1.2)
    details = {"with": _milliseconds(_flat(beside)), "without": _milliseconds(_flat(alone))}
    return [
        Row(
            "stalled",
            "beside a stalled consumer, 100 healthy, 1,000 Events/s, p99",
            "ms",
            p99,
            yardstick=yardstick,
            details=details,
        )
    ]


def _open_stalled(server: Server) -> socket.socket:
    return wire.open_sockets(
        server, 1, lambda _: _SUBSCRIBE_ALL, receive_buffer_bytes=_STALLED_RECEIVE_BYTES
    )[0]


def fairness(bench: Bench) -> list[Row]:
    """A 10,000-Event batch to 1,000 consumers while another emitter sends single Events to its consumer."""
    consumers, events = bench.sized(1_000, 200), 10_000
    batch_seconds, found = [], list[float]()
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(daemon.relay(bench.server_core))
        socks = wire.open_sockets(server, consumers, lambda _: [{"filter": {"session": "s_batch"}}])
        load = stack.enter_context(Load([open_emitter(server)], socks))
        session = Session("s_batch")
        for number in range(min(bench.repeat, 3)):
            batch = session.events(events)
            singles = _Singles(server, f"s_single{number}")
            time.sleep(_SINGLES_LEAD_SECONDS)
            started = time.perf_counter()
            load.run([wire.post(server, ndjson(batch))], marker(batch[-1]), sum(map(len, batch)))
            batch_seconds.append(time.perf_counter() - started)
            found += singles.finish()
    details = {**_milliseconds(found), "batch_seconds": [round(value, 3) for value in batch_seconds]}
    rate = consumers * events / statistics.median(batch_seconds)
    p99 = paced.percentile(found, 99) * 1e3
    return [
        Row(
            "fairness",
            f"single Events beside 10,000 to {consumers:,} consumers, p99",
            "ms",
            p99,
            60.0,
            details={**details, "deliveries_per_second": round(rate)},
        )
    ]


class _Singles:
    """Another emitter and its consumer, in a process of their own: the big load must not delay them."""

    def __init__(self, server: Server, session: str) -> None:
        context = multiprocessing.get_context("fork")
        self._pipe, remote = context.Pipe()
        self._process = context.Process(target=_send_singles, args=(server, session, remote), daemon=True)
        self._process.start()

    def finish(self) -> list[float]:
        """Stop sending; returns the seconds from emission to delivery, Event by Event."""
        self._pipe.send(None)
        found: list[float] = self._pipe.recv()
        self._process.join()
        return found


def _send_singles(server: Server, name: str, pipe: Connection) -> None:
    [emitter] = wire.open_sockets(server, 1, lambda _: [], "emitter")
    [consumer] = wire.open_sockets(server, 1, lambda _: [{"filter": {"session": name}}])
    session = Session(name)

    def messages() -> Iterator[bytes]:
        while not pipe.poll():
            yield wire.frame(session.event())

    interval = _SINGLES_INTERVAL_SECONDS
    pipe.send(paced.latencies(emitter, messages(), [consumer], paced.FrameCounter, interval, spin=False))
