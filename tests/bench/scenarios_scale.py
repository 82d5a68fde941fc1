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

from . import daemon, floor, machine, nats, pace, wire
from .events import EVENT_BYTES, Session, ndjson
from .harness import Arm, Bench
from .load import Load
from .process import BenchError, Measured, Server
from .report import Row, Yardstick
from .scenarios_fanout import SSE, WEBSOCKET, open_emitter

_KIB, _MIB = 1024, 1024 * 1024
_SETTLE_SECONDS = 2.0
# So rarely, and each time for less than a millisecond, that the core stays as idle as it was.
_PACE_INTERVAL_SECONDS = 0.25
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
        consumers = _Idle(streams, socks, bench.server_core)
        consumers.answer_heartbeats(_SETTLE_SECONDS)
        held_kib = (server.rss_bytes - before) / (2 * each) / _KIB
        # Longer than the 30 s between heartbeats, so that each consumer has one.
        consumers.paces.clear()
        run = server.measure(lambda: consumers.answer_heartbeats(3.0 if bench.quick else 32.0))
    busy = 100 * run.cpu_seconds / run.wall_seconds
    # The window's CPU is spread over all of it, and so is what its speed is judged by.
    yardsticks = [pace.yardstick([statistics.mean(consumers.paces)])]
    details = {
        "window_seconds": run.wall_seconds,
        "samples_decode_us": [round(value, 3) for value in consumers.paces],
    }
    figure = f"{each:,} SSE and {each:,} WebSocket consumers"
    return [
        Row(
            "idle",
            f"{figure}, RSS each",
            "KiB",
            [held_kib],
            20.0,
            _idle_nats(bench, 2 * each),
            {"rss_before_bytes": before},
        ),
        Row("idle", f"{figure}, CPU together", "%", [busy], 1.0, yardsticks, details),
    ]


class _Idle:
    """Consumers that do nothing but answer heartbeats, and now and then a look at how fast ``core`` is."""

    def __init__(self, streams: list[socket.socket], socks: list[socket.socket], core: machine.Core) -> None:
        self.paces: list[float] = []
        self._by_fd = {sock.fileno(): sock for sock in (*streams, *socks)}
        self._websockets = {sock.fileno() for sock in socks}
        self._pieces = pace.pieces(core)
        for sock in self._by_fd.values():
            sock.setblocking(False)

    def answer_heartbeats(self, seconds: float) -> None:
        """Answer what comes within ``seconds``; raises ``BenchError`` if a consumer is dropped."""
        due = time.monotonic()
        deadline = due + seconds
        with contextlib.closing(select.epoll()) as epoll:
            for fd in self._by_fd:
                epoll.register(fd, select.EPOLLIN)
            while (now := time.monotonic()) < deadline:
                if now >= due:
                    self.paces.append(next(self._pieces))
                    due += _PACE_INTERVAL_SECONDS
                for fd, _ in epoll.poll(max(0.0, min(due, deadline) - now)):
                    self._answer(fd)

    def _answer(self, fd: int) -> None:
        received = self._by_fd[fd].recv(65536)
        if not received:
            raise BenchError("an idle consumer was dropped")
        if fd in self._websockets:
            self._by_fd[fd].sendall(_heartbeat_answer(received))


def _heartbeat_answer(received: bytes) -> bytes:
    """The answer to the one short frame an idle connection receives: a ping of either layer, or nothing."""
    opcode, length = received[0] & 0x0F, received[1]
    payload = received[2 : 2 + length]
    if opcode == 0x9:
        return wire.pong(payload)
    message = json.loads(payload)
    return wire.json_frame({**message, "type": "pong"}) if message.get("type") == "ping" else b""


def _idle_nats(bench: Bench, count: int) -> list[Yardstick]:
    with nats.broker(bench.server_core) as server:
        if server is None:
            return []
        before = server.rss_bytes
        socks = nats.open_subscribers(server, count)
        held_kib = (server.rss_bytes - before) / count / _KIB
        for sock in socks:
            sock.close()
    return [Yardstick("nats-server", [held_kib])]


def replay(bench: Bench) -> list[Row]:
    """All that is held, 500 sessions of 1,000 Events, to one consumer that asks for it."""
    sessions, events = bench.sized(500, 50), 1_000
    count = sessions * events
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(daemon.relay(bench.server_core))
        _fill(server, sessions, events)
        growths: dict[str, list[float]] = {WEBSOCKET: [], SSE: []}
        arms = {
            binding: (_watching_memory(server, count, ask, growths[binding]), count)
            for binding, ask in ((WEBSOCKET, _replay_websocket), (SSE, _replay_stream))
        }
        runs = bench.measure(
            {**arms, "floor": (_floor_arm(stack, bench, count), count)}, min(bench.repeat, 3)
        )
    rows = []
    for binding, grown in growths.items():
        figure, found = f"{sessions} sessions of {events:,} Events, {binding}", runs[binding]
        yardsticks = [runs["floor"].yardstick("floor"), found.pace]
        rows += [
            Row("replay", figure, "us/Event", found.all_cpu_us, 3.0, yardsticks, found.details()),
            Row("replay", f"{figure}, RSS growth", "MiB", [max(grown)], 16.0, details={"runs_mib": grown}),
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


def _watching_memory(
    server: Server, count: int, ask: Callable[[Server, int], None], growths_mib: list[float]
) -> Arm:
    """The replay of ``count`` Events; each run adds by how much the server's memory peaked above what it held."""

    def run() -> Measured:
        machine.reset_peak_rss(server.pid)
        before = server.rss_bytes
        measured = server.measure(lambda: ask(server, count))
        growths_mib.append((machine.peak_rss_bytes(server.pid) - before) / _MIB)
        return measured

    return run


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


def _floor_arm(stack: ExitStack, bench: Bench, count: int) -> Arm:
    server = stack.enter_context(floor.sender(bench.server_core))
    socks = floor.open_consumers(server, 1)
    load = stack.enter_context(Load([floor.open_control(server)], socks))
    orders, size = [floor.order(500, _FRAME_BYTES)] * (count // 500), count * _FRAME_BYTES
    return lambda: server.measure(lambda: load.run(orders, b"", size))
