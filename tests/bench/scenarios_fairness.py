"""Fairness: how long single Events of one emitter take while others keep the relay busy."""

from __future__ import annotations

import contextlib
import multiprocessing
import statistics
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection

from . import daemon, paced, wire
from .events import Session, batches, marker, ndjson
from .harness import Bench
from .load import Load
from .process import BenchError, Server
from .report import Row
from .scenarios_fanout import open_emitter
from .scenarios_latency import milliseconds

TARGET_MS = 60.0
_INTERVAL_SECONDS = 0.01
_LEAD_SECONDS = 0.2
# Descriptors the benchmark needs besides the crowd's.
_SPARE_DESCRIPTORS = 500


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
            time.sleep(_LEAD_SECONDS)
            started = time.perf_counter()
            load.run([wire.post(server, ndjson(batch))], marker(batch[-1]), sum(map(len, batch)))
            batch_seconds.append(time.perf_counter() - started)
            found += singles.finish()
    details = {**milliseconds(found), "batch_seconds": [round(value, 3) for value in batch_seconds]}
    rate = consumers * events / statistics.median(batch_seconds)
    p99 = paced.percentile(found, 99) * 1e3
    return [
        Row(
            "fairness",
            f"single Events beside 10,000 to {consumers:,} consumers, p99",
            "ms",
            p99,
            TARGET_MS,
            details={**details, "deliveries_per_second": round(rate)},
        )
    ]


def crowd(bench: Bench) -> list[Row]:
    """10,000 consumers connect, and batches are ingested beside them, while an emitter sends single Events."""
    count = min(bench.sized(10_000, 2_000), bench.descriptors - _SPARE_DESCRIPTORS)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(daemon.relay(bench.server_core))
        load = stack.enter_context(Load([open_emitter(server)], []))
        singles = _Singles(server, "s_single")
        for sock in wire.open_sockets(
            server, count, lambda number: [{"filter": {"session": f"crowd-{number}"}}]
        ):
            stack.enter_context(sock)
        connecting = singles.finish()
        singles = _Singles(server, "s_single_later")
        load.run(
            wire.post(server, ndjson(batch))
            for batch in batches(Session("s_crowd"), bench.sized(200, 40), 500)
        )
        ingesting = singles.finish()
    return [
        Row(
            "crowd",
            f"single Events while {figure}, p99",
            "ms",
            paced.percentile(found, 99) * 1e3,
            TARGET_MS,
            details=milliseconds(found),
        )
        for figure, found in (
            (f"{count:,} consumers connect", connecting),
            ("batches of 500 come in beside them", ingesting),
        )
    ]


class _Singles:
    """Another emitter and its consumer, in a process of their own: the big load must not delay them."""

    def __init__(self, server: Server, session: str) -> None:
        context = multiprocessing.get_context("fork")
        self._pipe, remote = context.Pipe()
        self._process = context.Process(target=_send_singles, args=(server, session, remote), daemon=True)
        self._process.start()
        remote.close()

    def finish(self) -> list[float]:
        """Stop sending; returns the seconds from emission to delivery, Event by Event.

        Raises ``BenchError`` if the process could not go on; it has said why on standard error.
        """
        try:
            self._pipe.send(None)
            found: list[float] = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise BenchError("the emitter of single Events failed") from error
        finally:
            self._process.join()
        return found


def _send_singles(server: Server, name: str, pipe: Connection) -> None:
    [emitter] = wire.open_sockets(server, 1, lambda _: [], "emitter")
    [consumer] = wire.open_sockets(server, 1, lambda _: [{"filter": {"session": name}}])
    session = Session(name)

    def messages() -> Iterator[bytes]:
        while not pipe.poll():
            yield wire.frame(session.event())

    interval = _INTERVAL_SECONDS
    pipe.send(paced.latencies(emitter, messages(), [consumer], paced.FrameCounter, interval, spin=False))
