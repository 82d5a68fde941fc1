"""Chaining: what pushing adds to a leaf, and what pulling takes of an edge, by Event.

The relay at the other end shares a core with the load, so only the CPU of the relay in question counts. What
pushing adds is a small difference of two large costs: it is taken between short runs right after each other.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from contextlib import ExitStack
from urllib.request import Request, urlopen

from . import daemon, pace, paced, wire
from .events import Session, batches, marker, ndjson
from .harness import Arm, Bench, Runs, differences
from .load import Emitter, Load
from .process import BenchError, Measured, Server
from .report import Row
from .scenarios_fanout import open_emitter
from .scenarios_ingest import BATCH_EVENTS

LINK_SECONDS = 10.0
_BATCHES_PER_TURN = 5
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
    measured: Server, load: Load, encode: Callable[[list[bytes]], bytes], *, consumes: bool
) -> tuple[Arm, int]:
    """Send batches of one session, and see the last Event of all at the consumers if there are any."""
    session, count = Session("s_chain"), _BATCHES_PER_TURN

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

    return _arm(leaf, load, encode, consumes=pushes)


def added(figure: str, alone: Runs, pushing: Runs) -> Row:
    """What ``pushing`` costs more than ``alone``, round by round, and how far the rounds differ."""
    more = differences(pushing.all_cpu_us, alone.all_cpu_us)
    decode_us = [
        statistics.mean(both) for both in zip(pushing.all_decode_us, alone.all_decode_us, strict=True)
    ]
    quartiles = {f"p{percent}_us": round(paced.percentile(more, percent), 3) for percent in (25, 50, 75)}
    details = {**quartiles, **pushing.details(), "alone": alone.details()}
    return Row("push", figure, "us/Event", more, 5.0, [pace.yardstick(decode_us)], details)


def push(bench: Bench) -> list[Row]:
    """What pushing adds to a leaf: batches of 500 in by POST, or frames in over WebSocket; one consumer at the hub."""
    rows = []
    for kind in ("POST", "WebSocket"):
        with ExitStack() as stack:
            arms = {
                "alone": _leaf(stack, bench, kind, pushes=False),
                "pushing": _leaf(stack, bench, kind, pushes=True),
            }
            runs = bench.measure(arms, 2 * bench.repeat - 1, bench.sized(4, 2))
        rows.append(added(f"pushing adds, {kind} in", runs["alone"], runs["pushing"]))
    return rows


def pull(bench: Bench) -> list[Row]:
    """What an Event takes of an edge that pulls it from its origin and delivers it to one consumer."""
    with ExitStack() as stack:
        origin = stack.enter_context(daemon.relay(bench.load_core))
        edge = stack.enter_context(daemon.relay(bench.server_core, more=daemon.upstream(origin, "pull")))
        _await_link(edge)
        consumers = wire.open_sockets(edge, 1, lambda _: [{"filter": {}}])
        load = stack.enter_context(Load([open_emitter(origin)], consumers))
        arm = _arm(edge, load, lambda batch: wire.post(origin, ndjson(batch)), consumes=True)
        runs = bench.measure({"edge": arm}, turns=bench.sized(8, 2))["edge"]
    return [
        Row("pull", "pulled and delivered", "us/Event", runs.all_cpu_us, 25.0, [runs.pace], runs.details())
    ]
