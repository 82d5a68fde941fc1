"""Fan-out: CPU a delivery, by consumers, batch size, binding and ceiling.

nats-server and the floor are arms like the relay's: each round runs them all, so a ratio is one of the same
seconds.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from contextlib import ExitStack

from . import daemon, floor, machine, nats, wire
from .events import EVENT_BYTES, Session, batches, marker, ndjson
from .harness import Arm, Bench, Runs, differences
from .load import Emitter, Load
from .process import Measured, Server
from .report import Row, Yardstick

BATCH_EVENTS = 100
WEBSOCKET, SSE = "WebSocket", "SSE"
# What nats-server took on the machine the targets were set on.
NATS_REFERENCE_US = 0.75
_FRAME_BYTES = EVENT_BYTES + 4
_DELIVERIES_PER_RUN = 400_000
# More batches to more consumers: in a run of few, the first one to each cold socket would weigh too much.
_DELIVERIES_PER_RUN_OF_MANY = 1_200_000
Filter = dict[str, object]

_REFUSED = (b"HTTP/1.1 4", b"HTTP/1.1 5")


def open_emitter(server: Server) -> Emitter:
    """A kept-alive connection for POSTs, each answered by a 202."""
    return Emitter(wire.connect(server.port), b"HTTP/1.1 202", _REFUSED)


def _batch_request(server: Server, batch: list[bytes]) -> bytes:
    if len(batch) == 1:
        return wire.post(server, batch[0], "application/json")
    return wire.post(server, ndjson(batch))


def _match_all(_: int) -> Filter:
    return {}


def _match_alone(number: int) -> Filter:
    """A filter that no other consumer has and that matches every Event of the benchmark."""
    return {"type": ["tool.completed", f"x.bench.t{number}.done"]}


class FanOut:
    """Arms that fan the same batches out to the same number of consumers, each on a server of its own."""

    def __init__(
        self, stack: ExitStack, core: machine.Core, consumers: int, batch_events: int, count: int
    ) -> None:
        self._stack = stack
        self._core = core
        self._consumers = consumers
        self._batch_events = batch_events
        self._count = count

    @property
    def deliveries(self) -> int:
        """Deliveries in one run of an arm."""
        return self._consumers * self._batch_events * self._count

    def relay(
        self, binding: str, ceiling: str | None = None, filters: Callable[[int], Filter] = _match_all
    ) -> tuple[Arm, int]:
        """The relay, delivering over ``binding`` to consumers with ``filters``, at ``ceiling`` if any."""
        server = self._stack.enter_context(daemon.relay(self._core))
        capture = {"capture": ceiling} if ceiling else {}
        if binding == WEBSOCKET:
            socks = wire.open_sockets(
                server, self._consumers, lambda number: [{"filter": filters(number), **capture}]
            )
        else:
            socks = wire.open_streams(
                server, self._consumers, lambda number: {"filter": json.dumps(filters(number)), **capture}
            )
        load = self._stack.enter_context(Load([open_emitter(server)], socks))
        event_bytes = 0 if ceiling else EVENT_BYTES
        return self._arm(server, load, lambda batch: _batch_request(server, batch), event_bytes)

    def nats(self) -> tuple[Arm, int] | None:
        """nats-server, if it is installed."""
        server = self._stack.enter_context(nats.broker(self._core))
        if server is None:
            return None
        socks = nats.open_subscribers(server, self._consumers)
        load = self._stack.enter_context(Load([nats.open_publisher(server)], socks))
        return self._arm(server, load, nats.publications, EVENT_BYTES)

    def floor(self) -> tuple[Arm, int]:
        """The bare Python loop."""
        server = self._stack.enter_context(floor.sender(self._core))
        socks = floor.open_consumers(server, self._consumers)
        load = self._stack.enter_context(Load([floor.open_control(server)], socks))
        orders = [floor.order(self._batch_events, _FRAME_BYTES)] * self._count
        bytes_each = _FRAME_BYTES * self._batch_events * self._count

        def run() -> Measured:
            return server.measure(lambda: load.run(orders, b"", bytes_each))

        return run, self.deliveries

    def _arm(
        self, server: Server, load: Load, encode: Callable[[list[bytes]], bytes], event_bytes: int
    ) -> tuple[Arm, int]:
        session = Session("s_fanout")

        def run() -> Measured:
            made = batches(session, self._count, self._batch_events)
            requests = [encode(batch) for batch in made]
            bytes_each = event_bytes * self._batch_events * self._count
            mark = marker(made[-1][-1])
            return server.measure(lambda: load.run(requests, mark, bytes_each))

        return run, self.deliveries


def _count(bench: Bench, consumers: int, batch_events: int) -> int:
    full = _DELIVERIES_PER_RUN if consumers < 1000 else _DELIVERIES_PER_RUN_OF_MANY
    deliveries = bench.sized(full, full // 4)
    return max(2, deliveries // (consumers * batch_events))


def _yardstick(
    runs: dict[str, Runs], *, limit: float | None = None, reference: float | None = None
) -> Yardstick:
    if "nats" in runs:
        return runs["nats"].yardstick("nats-server", reference=reference, limit=limit)
    return runs["floor"].yardstick("floor")


def _details(runs: dict[str, Runs], name: str) -> dict[str, object]:
    return runs[name].details() | {
        other: runs[other].details() for other in ("nats", "floor") if other in runs
    }


def _with_yardsticks(fan: FanOut, arms: dict[str, tuple[Arm, int]]) -> dict[str, tuple[Arm, int]]:
    broker = fan.nats()
    return {**arms, **({"nats": broker} if broker else {}), "floor": fan.floor()}


def fanout(bench: Bench) -> list[Row]:
    """100 consumers, batches of 100."""
    with contextlib.ExitStack() as stack:
        fan = FanOut(stack, bench.server_core, 100, BATCH_EVENTS, _count(bench, 100, BATCH_EVENTS))
        arms = {binding: fan.relay(binding) for binding in (WEBSOCKET, SSE)}
        arms["a filter each"] = fan.relay(WEBSOCKET, filters=_match_alone)
        runs = bench.measure(_with_yardsticks(fan, arms))
    yardstick = _yardstick(runs, limit=1.0, reference=NATS_REFERENCE_US)
    rows = [
        Row(
            "fanout",
            f"100 consumers, batches of 100, {binding}",
            "us/delivery",
            runs[binding].all_cpu_us,
            0.7,
            [yardstick, runs[binding].pace],
            _details(runs, binding),
        )
        for binding in (WEBSOCKET, SSE)
    ]
    for name, figure in (("a filter each", "WebSocket, a filter each"), ("floor", "bare Python loop")):
        found, details = runs[name].all_cpu_us, runs[name].details()
        rows.append(
            Row("fanout", f"the same, {figure}", "us/delivery", found, None, [_yardstick(runs)], details)
        )
    return rows


def fanout_1000(bench: Bench) -> list[Row]:
    """1000 consumers against 100, batches of 100."""
    with contextlib.ExitStack() as stack:
        few = FanOut(stack, bench.server_core, 100, BATCH_EVENTS, _count(bench, 100, BATCH_EVENTS))
        many = FanOut(stack, bench.server_core, 1000, BATCH_EVENTS, _count(bench, 1000, BATCH_EVENTS))
        arms = {f"{binding} 100": few.relay(binding) for binding in (WEBSOCKET, SSE)}
        arms |= {binding: many.relay(binding) for binding in (WEBSOCKET, SSE)}
        runs = bench.measure(_with_yardsticks(many, arms))
    rows = [
        Row(
            "fanout-1000",
            f"1000 consumers, batches of 100, {binding}",
            "us/delivery",
            runs[binding].all_cpu_us,
            yardsticks=[runs[f"{binding} 100"].yardstick("100 consumers", limit=1.3)],
            details=_details(runs, binding),
        )
        for binding in (WEBSOCKET, SSE)
    ]
    if "nats" in runs:
        rows.append(
            Row(
                "fanout-1000",
                "nats-server, 1000 subscribers",
                "us/delivery",
                runs["nats"].all_cpu_us,
                yardsticks=[runs["floor"].yardstick("floor")],
                details=runs["nats"].details(),
            )
        )
    return rows


def fanout_single(bench: Bench) -> list[Row]:
    """100 consumers, one Event a request, each request after the answer to the last."""
    with contextlib.ExitStack() as stack:
        fan = FanOut(stack, bench.server_core, 100, 1, bench.sized(300, 100))
        arms = {binding: fan.relay(binding) for binding in (WEBSOCKET, SSE)}
        runs = bench.measure(_with_yardsticks(fan, arms))
    return [
        Row(
            "fanout-single",
            f"100 consumers, single Events, {binding}",
            "us/delivery",
            runs[binding].all_cpu_us,
            12.0,
            [_yardstick(runs), runs[binding].pace],
            _details(runs, binding),
        )
        for binding in (WEBSOCKET, SSE)
    ]


def downlevel(bench: Bench) -> list[Row]:
    """A ``metadata`` ceiling on ``redacted`` Events: what each further consumer costs with it and without."""
    consumers, events = 100, BATCH_EVENTS * _count(bench, 100, BATCH_EVENTS)
    with contextlib.ExitStack() as stack:
        one, many = (
            FanOut(stack, bench.server_core, number, BATCH_EVENTS, events // BATCH_EVENTS)
            for number in (1, consumers)
        )
        arms = {
            f"{name}{label}": fan.relay(WEBSOCKET, ceiling)
            for name, fan in (("one", one), ("many", many))
            for label, ceiling in (("", None), (", ceiling", "metadata"))
        }
        runs = bench.measure(arms)
    # The cost of an Event, all its deliveries together, round by round.
    cost = {name: [us * run.units / events for us in run.all_cpu_us] for name, run in runs.items()}
    further = {
        label: [us / (consumers - 1) for us in differences(cost[f"many{label}"], cost[f"one{label}"])]
        for label in ("", ", ceiling")
    }
    once = differences(cost["one, ceiling"], cost["one"])
    details = {name: run.details() for name, run in runs.items()}
    return [
        Row(
            "downlevel",
            "each further consumer with a ceiling",
            "us/delivery",
            further[", ceiling"],
            yardsticks=[Yardstick("without a ceiling", further[""], limit=1.3)],
            details=details,
        ),
        Row("downlevel", "one down-level, once an Event", "us/Event", once),
    ]
