"""Fairness: how long single Events of one emitter take while others keep the relay busy."""

from __future__ import annotations

import contextlib
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from multiprocessing.connection import Connection
from types import MappingProxyType

from . import daemon, pace, paced, wire
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
    batch_seconds, found, decode_us = [], list[float](), []
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(daemon.relay(bench.server_core))
        socks = wire.open_sockets(server, consumers, lambda _: [{"filter": {"session": "s_batch"}}])
        load = stack.enter_context(Load([open_emitter(server)], socks))
        session = Session("s_batch")

        def send(batch: list[bytes]) -> None:
            time.sleep(_LEAD_SECONDS)
            started = time.perf_counter()
            load.run([wire.post(server, ndjson(batch))], marker(batch[-1]), sum(map(len, batch)))
            batch_seconds.append(time.perf_counter() - started)

        for number in range(min(bench.repeat, 3)):
            send_batch = partial(send, session.events(events))
            singles, beside_us = _beside_singles(server, f"s_single{number}", send_batch)
            found += singles
            decode_us.append(beside_us)
    rate = consumers * events / statistics.median(batch_seconds)
    details = {
        "batch_seconds": [round(value, 3) for value in batch_seconds],
        "deliveries_per_second": round(rate),
    }
    figure = f"single Events beside 10,000 to {consumers:,} consumers, p99"
    return [_row("fairness", figure, found, decode_us, details)]


def crowd(bench: Bench) -> list[Row]:
    """10,000 consumers connect, and batches are ingested beside them, while an emitter sends single Events."""
    count = min(bench.sized(10_000, 2_000), bench.descriptors - _SPARE_DESCRIPTORS)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(daemon.relay(bench.server_core))
        load = stack.enter_context(Load([open_emitter(server)], []))

        def connect() -> None:
            for sock in wire.open_sockets(
                server, count, lambda number: [{"filter": {"session": f"crowd-{number}"}}]
            ):
                stack.enter_context(sock)

        def ingest() -> None:
            load.run(
                wire.post(server, ndjson(batch))
                for batch in batches(Session("s_crowd"), bench.sized(200, 40), 500)
            )

        connecting, while_connecting_us = _beside_singles(server, "s_single", connect)
        ingesting, while_ingesting_us = _beside_singles(server, "s_single_later", ingest)
    figure = f"single Events while {count:,} consumers connect, p99"
    other = "single Events while batches of 500 come in beside them, p99"
    return [
        _row("crowd", figure, connecting, [while_connecting_us]),
        _row("crowd", other, ingesting, [while_ingesting_us]),
    ]


def _row(
    scenario: str,
    figure: str,
    found: list[float],
    decode_us: list[float],
    details: Mapping[str, object] = MappingProxyType({}),
) -> Row:
    """The p99 of all that was ``found``, in seconds, and how fast the machine was on the whole."""
    return Row(
        scenario,
        figure,
        "ms",
        [paced.percentile(found, 99) * 1e3],
        TARGET_MS,
        [pace.yardstick([statistics.median(decode_us)])],
        {**milliseconds(found), **details, "runs_decode_us": [round(value, 4) for value in decode_us]},
    )


def _beside_singles(server: Server, session: str, load: Callable[[], None]) -> tuple[list[float], float]:
    """Run ``load`` beside single Events of ``session``; returns what they took, and how fast the machine was.

    The latter is measured before the first of them and after the last: it would be in their way.
    """

    def run() -> list[float]:
        singles = _Singles(server, session)
        load()
        return singles.finish()

    return pace.around(server.core, run)


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
