"""The protocol's own SDK against the installed daemon: emitter, consumers, both sides of control."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError

import pytest
from aep_sdk import aio
from aep_sdk.consume import subscribe
from aep_sdk.control import ControlClient, ControlTarget, NackError, open_duplex
from aep_sdk.emit import Emitter, http_sink
from aep_sdk.errors import TransportError
from aep_sdk.projection import project_state

from tests.system.running import PATIENCE_SECONDS, Running

if TYPE_CHECKING:
    from tests.system.conftest import Run

TOKEN = "sdk-token"
ACCEPTS = ["control.cancel", "control.pause"]


def emitter(relay: Running, failures: list[Exception], **options: Any) -> Emitter:
    return Emitter(
        "worker", "host-a", http_sink(relay.url, token=relay.token, on_error=failures.append), **options
    )


class Consumer:
    """An ``aep_sdk.subscribe`` subscription and what came over it."""

    def __init__(self, relay: Running, **options: Any) -> None:
        self.events: queue.Queue[dict[str, Any]] = queue.Queue()
        self.comments: queue.Queue[str] = queue.Queue()
        self.errors: list[Exception] = []
        self.subscription = subscribe(
            relay.url,
            self.events.put,
            token=relay.token,
            on_comment=self.comments.put,
            on_error=self.errors.append,
            backoff_initial_ms=50,
            backoff_max_ms=200,
            **options,
        )
        assert self.comments.get(timeout=PATIENCE_SECONDS) == "stream open"

    def take(self, count: int) -> list[dict[str, Any]]:
        return [self.events.get(timeout=PATIENCE_SECONDS) for _ in range(count)]


@contextlib.contextmanager
def consumer(relay: Running, **options: Any) -> Iterator[Consumer]:
    """Subscribe; leave before the relay ends, or the SDK would connect again and again."""
    found = Consumer(relay, **options)
    try:
        yield found
    finally:
        found.subscription.close()
        # It notices with the next line that comes: of the session that some of these ask for alone.
        relay.post(
            b'{"aep":"0.1","id":"wake","type":"run.started","time":"2026-07-03T10:14:00Z","source":"urn:x","agent":"x",'
            b'"session":"s","seq":1000}'
        )
        found.subscription.join(PATIENCE_SECONDS)


def test_what_is_emitted_is_consumed(run: Run) -> None:
    with run(token=TOKEN) as relay, consumer(relay, filter={"type": ["run.*", "agent.*"]}) as found:
        failures: list[Exception] = []
        emits = emitter(relay, failures, epoch=1_700_000_000_000)
        session = emits.session("s:1")
        first = session.emit("run.started", {"trigger": "user"}, run="r-1")
        session.emit("tool.requested", {"tool": {"name": "Bash"}})
        last = session.emit("run.finished", run="r-1", extensions={"acme": True})
        idle = emits.emit("agent.presence")
        session.redeliver(first)
        assert found.take(3) == [first, last, idle]
        assert failures == []
        assert found.subscription.positions() == [{"session": "s:1", "epoch": 1_700_000_000_000, "seq": 2}]
        state = project_state([first, last])
        assert state["violations"] == []


@pytest.mark.parametrize("resumed", ["all", "positions"])
def test_what_was_emitted_before_is_replayed(run: Run, resumed: str) -> None:
    with run(token=TOKEN) as relay:
        session = emitter(relay, []).session("s")
        events = [session.emit("progress.status", {"message": str(number)}) for number in range(5)]
        from_: Any = "all" if resumed == "all" else [{"session": "s", "epoch": 0, "seq": 1}]
        expected = events if resumed == "all" else events[2:]
        with consumer(relay, from_=from_, capture="metadata") as found:
            for before, after in zip(expected, found.take(len(expected)), strict=True):
                assert after["id"] == before["id"]
            events.append(session.emit("progress.status"))
            assert found.take(1)[0]["seq"] == 5
            assert found.errors == []


def test_refusals_are_told(run: Run) -> None:
    with run(token=TOKEN) as relay:
        failures: list[Exception] = []
        Emitter("worker", "host-a", http_sink(relay.url, on_error=failures.append)).emit("agent.idle")
        (failure,) = failures
        assert isinstance(failure, HTTPError)
        with failure:
            assert failure.code == 401
        with pytest.raises(TransportError) as refused:
            open_duplex(relay.url, token="wrong")
        assert refused.value.status == 401


def test_a_consumer_finds_back_to_a_relay_that_was_started_again(run: Run) -> None:
    with run(token=TOKEN) as relay:
        port = relay.port
        found = Consumer(relay)
        session = emitter(relay, []).session("s")
        first = session.emit("progress.status")
        assert found.take(1) == [first]
    with run(port=port, token=TOKEN) as relay:
        second = session.emit("progress.status")
        third = session.emit("progress.status")
        assert found.take(2) == [second, third]
        found.subscription.close()
        session.emit("progress.status")
        found.subscription.join(PATIENCE_SECONDS)


def test_asyncio_consumers(run: Run) -> None:
    with run(token=TOKEN) as relay:
        session = emitter(relay, []).session("s")
        events = [session.emit("progress.status", {"message": "\N{SNOWMAN}" * 1000}) for _ in range(50)]

        async def main() -> None:
            held = await aio.subscribe(relay.url, token=TOKEN, from_="all", live=False)
            assert [event async for event in held] == events
            opened = asyncio.Event()
            live = await aio.subscribe(relay.url, token=TOKEN, on_comment=lambda _: opened.set())
            async with asyncio.timeout(PATIENCE_SECONDS):
                await opened.wait()
                event = await asyncio.to_thread(session.emit, "progress.status")
                assert await anext(live) == event
            live.close()

        asyncio.run(main())


class Worker:
    """The SDK's control target over its own duplex, in a thread."""

    def __init__(self, relay: Running, session: str, accepts: list[str]) -> None:
        self.executed: list[str] = []
        self.received: list[str] = []
        self._duplex = open_duplex(relay.url, token=relay.token)
        self._duplex.send_json(
            {
                "type": "hello",
                "versions": ["0.1"],
                "role": "emitter",
                "identity": {"agent": "worker", "instance": "host-a/1", "card": None},
                "capabilities": {"control": {"accepts": accepts, "ack_window_ms": 10_000}, "emits": ["run"]},
            }
        )
        hello = self._duplex.recv_json()
        assert hello is not None
        assert hello["type"] == "hello"
        self.session = Emitter("worker", "host-a", self._duplex.send_json).session(session)
        self._target = ControlTarget(self.session, accepts)
        self.session.emit("session.started")
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while (message := self._duplex.recv_json()) is not None:
            if "." in message["type"]:
                self.received.append(message["id"])
                self._target.handle(message, lambda command: self.executed.append(command["id"]))

    def close(self) -> None:
        self._duplex.close()
        self._thread.join(PATIENCE_SECONDS)


@contextlib.contextmanager
def worker(relay: Running, session: str = "s", accepts: list[str] = ACCEPTS) -> Iterator[Worker]:
    found = Worker(relay, session, accepts)
    try:
        yield found
    finally:
        found.close()


@contextlib.contextmanager
def controller(relay: Running, token: str | None = TOKEN) -> Iterator[ControlClient]:
    client = ControlClient(relay.url, agent="operator", host="host-b", token=token)
    client.connect()
    try:
        yield client
    finally:
        client.close()


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_commands_are_acknowledged(run: Run) -> None:
    with run(token=TOKEN) as relay, worker(relay) as target, controller(relay) as client:
        eventually(lambda: len(client.roster()) == 1)
        accepted = client.send("control.cancel", "s", data={"reason": "enough"})
        assert accepted["type"] == "control.accepted"
        # The target acknowledges, then executes, in a thread of its own.
        eventually(lambda: target.executed == [accepted["cause"]])
        with pytest.raises(NackError) as refused:
            client.send("control.resume", "s")
        assert refused.value.reason == "unsupported"
        assert target.received == [accepted["cause"]]


def test_the_four_refusals(run: Run) -> None:
    with run(token=TOKEN) as relay, controller(relay) as client:

        def refusal(session: str) -> tuple[str, str]:
            with pytest.raises(NackError) as nack:
                client.send("control.cancel", session)
            assert not nack.value.synthesized
            return nack.value.reason, nack.value.detail or ""

        # The SDK knows four reasons, and tells the others in the detail.
        assert refusal("s")[1].startswith("no-route: ")
        with worker(relay, accepts=[]):
            eventually(lambda: len(client.roster()) == 1)
            assert refusal("s")[0] == "unsupported"
            with worker(relay):
                eventually(lambda: len(client.roster()) == 2)
                assert refusal("s")[1].startswith("ambiguous: ")
        eventually(lambda: client.roster() == [])
        assert refusal("s")[1].startswith("no-route: ")
    with run() as relay, worker(relay), controller(relay, None) as client:
        eventually(lambda: len(client.roster()) == 1)
        with pytest.raises(NackError) as nack:
            client.send("control.cancel", "s")
        assert nack.value.reason == "unauthorized"


def test_a_retry_is_answered_with_the_recorded_acknowledgement(run: Run) -> None:
    with (
        run(token=TOKEN) as relay,
        worker(relay) as target,
        consumer(relay, filter={"session": "s"}) as watcher,
    ):
        duplex = open_duplex(relay.url, token=TOKEN)
        duplex.send_json(
            {"type": "hello", "versions": ["0.1"], "role": "consumer", "identity": {}, "capabilities": {}}
        )
        assert (duplex.recv_json() or {})["type"] == "hello"
        command = {
            "aep": "0.1",
            "id": "c-1",
            "type": "control.pause",
            "time": "2026-07-03T10:14:00Z",
            "source": "aep://host-b/agent/operator",
            "agent": "operator",
            "session": "s",
        }
        acknowledgements = []
        duplex.send_json({"type": "subscribe", "id": "a", "filter": {"cause": "c-1"}})
        assert (duplex.recv_json() or {})["type"] == "subscribed"
        for _ in range(3):
            duplex.send_json(command)
            acknowledgements.append(duplex.recv_json())
        duplex.close()
        assert acknowledgements[0] == acknowledgements[1] == acknowledgements[2]
        assert target.received == ["c-1"] * 3
        eventually(lambda: target.executed == ["c-1"])
        # The watcher, who dedupes, saw the command and its acknowledgement once.
        assert [event["type"] for event in watcher.take(2)] == ["control.pause", "control.accepted"]


def test_the_roster_over_both_clients(run: Run) -> None:
    with (
        run(token=TOKEN) as relay,
        worker(relay, "s-1"),
        worker(relay, "s-2", []),
        controller(relay) as client,
    ):
        eventually(lambda: len(client.roster()) == 2)
        entries = client.roster()

        async def main() -> None:
            other = aio.ControlClient(relay.url, agent="operator", host="host-c", token=TOKEN)
            await other.connect()
            assert await other.roster() == entries
            accepted = await other.send("control.pause", "s-1")
            assert accepted["session"] == "s-1"
            await other.close()

        asyncio.run(main())
        assert {entry["session"]: entry["control"]["accepts"] for entry in entries} == {
            "s-1": ACCEPTS,
            "s-2": [],
        }
        for entry in entries:
            assert (entry["agent"], entry["instance"], entry["emits"]) == ("worker", "host-a/1", ["run"])
