"""Scale: what ten thousand idle consumers hold, and what a replay of half a million Events costs."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial

from . import daemon, floor, machine, nats, wire
from .events import EVENT_BYTES, Session, ndjson
from .harness import Bench
from .load import Load
from .process import BenchError, Measured, Server
from .report import Row, Yardstick
from .scenarios_fanout import SSE, WEBSOCKET, open_emitter

_KIB, _MIB = 1024, 1024 * 1024
_SETTLE_SECONDS = 2.0
# Descriptors the benchmark needs besides the idle connections.
_SPARE_DESCRIPTORS = 500
_REPLAY_BATCH_EVENTS = 10_000
_FRAME_BYTES = EVENT_BYTES + 4


def idle(bench: Bench) -> list[Row]:
    """As many SSE as WebSocket consumers, subscribed and silent but for heartbeats, which are answered."""
    each = min(bench.sized(5_000, 1_000), (bench.descriptors - _SPARE_DESCRIPTORS) // 2)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(daemon.relay(bench.server_core))
        before = server.rss_bytes
        streams = wire.open_streams(server, each, lambda number: {"filter": f'{{"session":"idle-{number}"}}'})
        socks = wire.open_sockets(server, each, lambda number: [{"filter": {"session": f"idle-{number}"}}])
        for sock in (*streams, *socks):
            stack.enter_context(sock)
        _answer_heartbeats(streams, socks, _SETTLE_SECONDS)
        held_kib = (server.rss_bytes - before) / (2 * each) / _KIB
        # Longer than the 30 s between heartbeats, so that each consumer has one.
        run = server.measure(lambda: _answer_heartbeats(streams, socks, 3.0 if bench.quick else 32.0))
    yardstick = _idle_nats(bench, 2 * each)
    busy = 100 * run.cpu_seconds / run.wall_seconds
    figure = f"{each:,} SSE and {each:,} WebSocket consumers"
    return [
        Row("idle", f"{figure}, RSS each", "KiB", held_kib, 20.0, yardstick, {"rss_before_bytes": before}),
        Row("idle", f"{figure}, CPU together", "%", busy, 1.0, details={"window_seconds": run.wall_seconds}),
    ]


def _answer_heartbeats(streams: list[socket.socket], socks: list[socket.socket], seconds: float) -> None:
    by_fd = {sock.fileno(): sock for sock in (*streams, *socks)}
    websockets = {sock.fileno() for sock in socks}
    deadline = time.monotonic() + seconds
    with contextlib.closing(select.epoll()) as epoll:
        for fd, sock in by_fd.items():
            sock.setblocking(False)
            epoll.register(fd, select.EPOLLIN)
        while (left := deadline - time.monotonic()) > 0:
            for fd, _ in epoll.poll(left):
                received = by_fd[fd].recv(65536)
                if not received:
                    raise BenchError("an idle consumer was dropped")
                if fd in websockets:
                    by_fd[fd].sendall(_heartbeat_answer(received))


def _heartbeat_answer(received: bytes) -> bytes:
    """The answer to the one short frame an idle connection receives: a ping of either layer, or nothing."""
    opcode, length = received[0] & 0x0F, received[1]
    payload = received[2 : 2 + length]
    if opcode == 0x9:
        return wire.pong(payload)
    message = json.loads(payload)
    return wire.json_frame({**message, "type": "pong"}) if message.get("type") == "ping" else b""


def _idle_nats(bench: Bench, count: int) -> Yardstick | None:
    with nats.broker(bench.server_core) as server:
        if server is None:
            return None
        before = server.rss_bytes
        socks = nats.open_subscribers(server, count)
        held_kib = (server.rss_bytes - before) / count / _KIB
        for sock in socks:
            sock.close()
    return Yardstick("nats-server", held_kib)


def replay(bench: Bench) -> list[Row]:
    """All that is held, 500 sessions of 1,000 Events, to one consumer that asks for it."""
    sessions, events = bench.sized(500, 50), 1_000
    count = sessions * events
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(daemon.relay(bench.server_core))
        _fill(server, sessions, events)
        unit = _floor_us(stack, bench, count)
        rows = []
        for binding, run in ((WEBSOCKET, _replay_websocket), (SSE, _replay_stream)):
            measured, growths = [], []
            for _ in range(min(bench.repeat, 3)):
                result, growth = _watch_memory(server, partial(run, server, count))
                measured.append(result.cpu_us_per(count))
                growths.append(growth / _MIB)
            figure, value = (
                f"{sessions} sessions of {events:,} Events, {binding}",
                statistics.median(measured),
            )
            details = {"runs_cpu_us": measured, "runs_growth_mib": growths}
            rows += [
                Row("replay", figure, "us/Event", value, 3.0, Yardstick("floor", unit), details),
                Row("replay", f"{figure}, RSS growth", "MiB", max(growths), 16.0),
            ]
    return rows


def _fill(server: Server, sessions: int, events: int) -> None:
    def requests() -> Iterator[bytes]:
        waiting: list[bytes] = []
        for number in range(sessions):
            waiting += Session(f"s_replay{number:04d}").events(events)
            if len(waiting) >= _REPLAY_BATCH_EVENTS or number == sessions - 1:
                yield wire.post(server, ndjson(waiting))
                waiting = []

    with Load([open_emitter(server)], []) as load:
        load.run(requests())


def _watch_memory(server: Server, load: Callable[[], None]) -> tuple[Measured, int]:
    """Measure ``load``, and by how many bytes the server's memory peaked above what it held before."""
    machine.reset_peak_rss(server.pid)
    before = server.rss_bytes
    measured = server.measure(load)
    return measured, machine.peak_rss_bytes(server.pid) - before


def _replay_websocket(server: Server, count: int) -> None:
    socks = wire.open_sockets(server, 1, lambda _: [])
    socks[0].sendall(wire.json_frame({"type": "subscribe", "id": "all", "filter": {}, "from": "all"}))
    with Load([], socks) as load:
        load.run([], b"", count * _FRAME_BYTES)


def _replay_stream(server: Server, count: int) -> None:
    sock = wire.connect(server.port)
    sock.sendall(wire.stream_request(server, {"from": "all", "live": "0"}))
    with Load([], [sock]) as load:
        load.run([], b": replay-complete", count * EVENT_BYTES)


def _floor_us(stack: ExitStack, bench: Bench, count: int) -> float:
    server = stack.enter_context(floor.sender(bench.server_core))
    socks = floor.open_consumers(server, 1)
    load = stack.enter_context(Load([floor.open_control(server)], socks))
    orders, size = [floor.order(500, _FRAME_BYTES)] * (count // 500), count * _FRAME_BYTES
    return min(server.measure(lambda: load.run(orders, b"", size)).cpu_us_per(count) for _ in range(3))
