"""Ingest: CPU an Event, by binding, and beside thousands of subscriptions that do not receive it."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack

from . import daemon, wire
from .events import Session, batches, ndjson
from .harness import Arm, Bench, Runs, differences
from .load import Emitter, Load
from .process import Measured, Server
from .report import Row
from .scenarios_fanout import open_emitter

BATCH_EVENTS = 500
# A run is made in so many turns, of some 50 ms each.
_TURNS = 4
_SUBSCRIPTIONS_PER_CONNECTION = 250
_DISTINCT_FILTERS = 100

Filter = dict[str, object]


def _arm(
    server: Server, load: Load, encode: Callable[[list[bytes]], bytes], count: int, size: int
) -> tuple[Arm, int]:
    session = Session("s_ingest")

    def run() -> Measured:
        requests = [encode(batch) for batch in batches(session, count, size)]
        return server.measure(lambda: load.run(requests))

    return run, count * size


def _ndjson_arm(stack: ExitStack, bench: Bench, filters: Iterator[Filter] | None = None) -> tuple[Arm, int]:
    """A relay fed with batches of 500 over two connections, beside subscriptions to ``filters``."""
    server = stack.enter_context(daemon.relay(bench.server_core))
    if filters is not None:
        for sock in _open_subscriptions(server, list(filters)):
            stack.enter_context(sock)
    load = stack.enter_context(Load([open_emitter(server) for _ in range(2)], []))
    count = bench.sized(10, 3)
    return _arm(server, load, lambda batch: wire.post(server, ndjson(batch)), count, BATCH_EVENTS)


def _open_subscriptions(server: Server, filters: list[Filter]) -> list[socket.socket]:
    share = _SUBSCRIPTIONS_PER_CONNECTION
    connections = -(-len(filters) // share)

    def subscriptions(number: int) -> list[wire.Subscribe]:
        return [{"filter": one} for one in filters[number * share : (number + 1) * share]]

    return wire.open_sockets(server, connections, subscriptions)


def _row(scenario: str, figure: str, unit: str, target: float, runs: Runs) -> Row:
    return Row(scenario, figure, unit, runs.all_cpu_us, target, [runs.pace], runs.details())


def ingest_ndjson(bench: Bench) -> list[Row]:
    """Batches of 500 by POST, nobody consuming."""
    with contextlib.ExitStack() as stack:
        runs = bench.measure({"relay": _ndjson_arm(stack, bench)}, turns=_TURNS)
    return [_row("ingest-ndjson", "NDJSON, batches of 500", "us/Event", 14.0, runs["relay"])]


def ingest_websocket(bench: Bench) -> list[Row]:
    """One Event a frame, in a stream of frames; a ping after each 500 says that all are ingested."""
    ping = wire.json_frame({"type": "ping", "t": 1})

    def encode(batch: list[bytes]) -> bytes:
        return b"".join(map(wire.frame, batch)) + ping

    with contextlib.ExitStack() as stack:
        server = stack.enter_context(daemon.relay(bench.server_core))
        socks = wire.open_sockets(server, 2, lambda _: [], "emitter")
        load = stack.enter_context(Load([Emitter(sock, b'"pong"', (b'"error"',)) for sock in socks], []))
        runs = bench.measure(
            {"relay": _arm(server, load, encode, bench.sized(10, 3), BATCH_EVENTS)}, turns=_TURNS
        )
    return [_row("ingest-websocket", "WebSocket", "us/Event", 18.0, runs["relay"])]


def ingest_post(bench: Bench) -> list[Row]:
    """One Event a request, on four kept-alive connections."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(daemon.relay(bench.server_core))
        load = stack.enter_context(Load([open_emitter(server) for _ in range(4)], []))

        def encode(batch: list[bytes]) -> bytes:
            return wire.post(server, batch[0], "application/json")

        runs = bench.measure({"relay": _arm(server, load, encode, bench.sized(1_000, 250), 1)}, turns=_TURNS)
    return [_row("ingest-post", "single POST, keep-alive", "us/request", 110.0, runs["relay"])]


def other_sessions(bench: Bench) -> list[Row]:
    """10,000 subscriptions, each to a session of its own that nobody writes."""
    count = 10_000
    with contextlib.ExitStack() as stack:
        arms = {
            "none": _ndjson_arm(stack, bench),
            "subscribed": _ndjson_arm(stack, bench, ({"session": f"other-{i}"} for i in range(count))),
        }
        runs = bench.measure(arms, turns=_TURNS)
    return [
        Row(
            "other-sessions",
            f"ingest beside {count:,} subscriptions to other sessions",
            "us/Event",
            runs["subscribed"].all_cpu_us,
            yardsticks=[runs["none"].yardstick("with none", limit=1.3)],
            details=runs["subscribed"].details(),
        )
    ]


def _other_type(number: int) -> Filter:
    return {"type": f"x.bench.t{number % _DISTINCT_FILTERS}.done", "severity": {"gte": "notice"}}


def _own_type(number: int) -> Filter:
    """A filter that names the Event's type, so that it must be evaluated, and fails by severity."""
    other = f"x.bench.t{number % _DISTINCT_FILTERS}.done"
    return {"type": ["tool.completed", other], "severity": {"gte": "error"}}


def distinct_filters(bench: Bench) -> list[Row]:
    """10,000 subscriptions with 100 distinct filters by type and severity; no Event matches any."""
    count = 10_000
    with contextlib.ExitStack() as stack:
        arms = {
            "none": _ndjson_arm(stack, bench),
            "other types": _ndjson_arm(stack, bench, map(_other_type, range(count))),
            "own type, 1 each": _ndjson_arm(stack, bench, map(_own_type, range(_DISTINCT_FILTERS))),
            "own type, 100 each": _ndjson_arm(stack, bench, map(_own_type, range(count))),
        }
        runs = bench.measure(arms, turns=_TURNS)
    none, few, many = runs["none"], runs["own type, 1 each"], runs["own type, 100 each"]
    per_filter = [us / _DISTINCT_FILTERS for us in differences(many.all_cpu_us, none.all_cpu_us)]
    return [
        Row(
            "filters",
            f"ingest beside {count:,}, 100 filters on other types",
            "us/Event",
            runs["other types"].all_cpu_us,
            yardsticks=[none.yardstick("with none", limit=1.3)],
            details=runs["other types"].details(),
        ),
        Row(
            "filters",
            f"ingest beside {count:,}, 100 filters on its type",
            "us/Event",
            many.all_cpu_us,
            yardsticks=[few.yardstick("100, the same filters", limit=1.3)],
            details=many.details(),
        ),
        Row("filters", "each distinct filter that could match", "us/Event", per_filter),
    ]
