"""Chaining: what pushing adds to a leaf, and what pulling takes of an edge, by Event.

The relay at the other end shares a core with the load, so only the CPU of the relay in question counts.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from urllib.request import Request, urlopen

from . import daemon, wire
from .events import Session, batches, marker, ndjson
from .harness import Arm, Bench, Runs
from .load import Emitter, Load
from .process import BenchError, Measured, Server
from .report import Row, Yardstick
from .scenarios_fanout import open_emitter
from .scenarios_ingest import BATCH_EVENTS, DECODE_REFERENCE_US, decode_us

LINK_SECONDS = 10.0
_PING = wire.json_frame({"type": "ping", "t": 1})


def _await_link(server: Server) -> None:
    """Wait until the one link of ``server`` is up."""
    for _ in range(int(LINK_SECONDS / 0.1)):
        request = Request(
            f"http://127.0.0.1:{server.port}/connections", headers={"Authorization": f"Bearer {server.token}"}
        )
        with urlopen(request, timeout=LINK_SECONDS) as answer:  # noqa: S310
            links = json.load(answer)["links"]
        if all(link["state"] == "up" for link in links):
            return
    raise BenchError(f"the link is not up: {links}")


def _arm(
    measured: Server, load: Load, encode: Callable[[list[bytes]], bytes], bench: Bench, *, consumes: bool
) -> tuple[Arm, int]:
    """Send batches of one session, and see the last Event of all at the consumers if there are any."""
    session, count = Session("s_chain"), bench.sized(40, 10)

    def run() -> Measured:
        sent = batches(session, count, BATCH_EVENTS)
        mark = marker(sent[-1][-1]) if consumes else b""
        size = sum(len(event) for batch in sent for event in batch) if consumes else 0
        requests = [encode(batch) for batch in sent]
        return measured.measure(lambda: load.run(requests, mark, size))

    return run, count * BATCH_EVENTS


def _frames(batch: list[bytes]) -> bytes:
    return b"".join(map(wire.frame, batch)) + _PING


def _sockets(server: Server) -> list[Emitter]:
    socks = wire.open_sockets(server, 1, lambda _: [], "emitter")
    return [Emitter(sock, b'"pong"', (b'"error"',)) for sock in socks]


def _leaf(stack: ExitStack, bench: Bench, kind: str, *, pushes: bool) -> tuple[Arm, int]:
    """A leaf that is posted to or emitted to over WebSocket, and what it pushes seen at its hub."""
    more, consumers = "", []
    if pushes:
        hub = stack.enter_context(daemon.relay(bench.load_core))
        more = daemon.upstream(hub, "push")
        consumers = wire.open_sockets(hub, 1, lambda _: [{"filter": {}}])
    leaf = stack.enter_context(daemon.relay(bench.server_core, more=more))
    _await_link(leaf)
    emitters = [open_emitter(leaf)] if kind == "POST" else _sockets(leaf)
    load = stack.enter_context(Load(emitters, consumers))

    def encode(batch: list[bytes]) -> bytes:
        return wire.post(leaf, ndjson(batch)) if kind == "POST" else _frames(batch)

    return _arm(leaf, load, encode, bench, consumes=pushes)


def _row(bench: Bench, scenario: str, figure: str, value: float, target: float, runs: Runs) -> Row:
    yardstick = Yardstick("bare msgspec decode", decode_us(bench), DECODE_REFERENCE_US)
    return Row(scenario, figure, "us/Event", value, target, yardstick, runs.details())


def push(bench: Bench) -> list[Row]:
    """What pushing adds to a leaf: batches of 500 in by POST, or frames in over WebSocket; one consumer at the hub."""
    rows = []
    for kind in ("POST", "WebSocket"):
        with ExitStack() as stack:
            arms = {
                "alone": _leaf(stack, bench, kind, pushes=False),
                "pushing": _leaf(stack, bench, kind, pushes=True),
            }
            runs = bench.measure(arms)
        added = runs["pushing"].cpu_us - runs["alone"].cpu_us
        rows.append(_row(bench, "push", f"pushing adds, {kind} in", added, 5.0, runs["pushing"]))
    return rows


def pull(bench: Bench) -> list[Row]:
    """What an Event takes of an edge that pulls it from its origin and delivers it to one consumer."""
    with ExitStack() as stack:
        origin = stack.enter_context(daemon.relay(bench.load_core))
        edge = stack.enter_context(daemon.relay(bench.server_core, more=daemon.upstream(origin, "pull")))
        _await_link(edge)
        consumers = wire.open_sockets(edge, 1, lambda _: [{"filter": {}}])
        load = stack.enter_context(Load([open_emitter(origin)], consumers))
        arm = _arm(edge, load, lambda batch: wire.post(origin, ndjson(batch)), bench, consumes=True)
        runs = bench.measure({"edge": arm})["edge"]
    return [_row(bench, "pull", "pulled and delivered", runs.cpu_us, 25.0, runs)]
