"""Time: heartbeats, silence, hello that never comes, peers that take nothing."""

from __future__ import annotations

import socket
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING, Any

import pytest
import trio
from trio.testing import MockClock
from websockets.frames import Frame, Opcode

from aep_relay.bindings import router
from aep_relay.bindings.websocket import FEW_WORDS
from aep_relay.hub.limits import Limits
from aep_relay.transport.wire import Wire
from tests.bindings.served import (
    JSON,
    Served,
    Socket,
    event,
    hello,
    request,
    serving,
    settle,
    take_answer,
)
from tests.fakes.wire import MemoryWire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from tests.fakes.log import Log

STEP_SECONDS = 0.02
"""How exactly time is watched."""


READER, ATTENDANT = "serve", "Attendant"
"""What the names of the tasks end or begin with that serve a connection, and that listen for all."""


class Steps(trio.abc.Instrument):
    """Notes which tasks were woken."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.names.add(task.coro.__qualname__)


class FarEnd(MemoryWire):
    """The far end of a connection that is a real one."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__()
        self._sock = sock
        sock.setblocking(False)

    def feed(self, data: bytes) -> None:
        self._sock.sendall(data)

    def take_sent(self) -> bytes:
        try:
            return self._sock.recv(65536)
        except BlockingIOError:
            return b""


@asynccontextmanager
async def real_socket(relay: Served) -> AsyncIterator[Socket]:
    """Open a WebSocket to ``relay`` over real sockets; nothing is said on it yet."""
    ours, theirs = socket.socketpair()
    with closing(theirs):
        assert relay.service.admit()
        relay.nursery.start_soon(relay.service.attendant.run)
        relay.nursery.start_soon(router.serve, relay.service, Wire(ours))
        client = Socket(FarEnd(theirs))
        client.shake_hands("", {})
        await answers(client)
        yield client


async def answers(client: Socket, *messages: Mapping[str, object]) -> list[Any]:
    """Say ``messages`` and return what comes: what is sent on this machine is there at once."""
    if messages:
        client.say(*messages)
    await settle()
    return client.heard()


async def until_closed(socket: Socket, limit_seconds: float = 200) -> float:
    """Return after how many seconds ``socket`` is closed by the relay."""
    began = trio.current_time()
    while socket.closed is None:
        await trio.sleep(STEP_SECONDS)
        assert trio.current_time() - began < limit_seconds
    return trio.current_time() - began


class TestHello:
    async def test_who_says_nothing_is_sent_away(self, log: Log, autojump_clock: MockClock) -> None:
        async with serving() as relay:
            socket = await relay.socket()
            assert 10 <= await until_closed(socket) <= 12
            (error,) = socket.heard()
            assert (error["type"], error["code"]) == ("error", "hello-required")
            assert socket.closed == 1008
            await trio.sleep(2)
            (closed,) = log.records("connection closed")
            assert closed["reason"] == "hello-timeout"

    async def test_bytes_that_are_no_hello_buy_no_time(self, autojump_clock: MockClock) -> None:
        async with serving() as relay:
            socket = await relay.socket()
            frame = Frame(Opcode.TEXT, b" " * 100).serialize(mask=True)
            for at in range(12):
                socket.wire.feed(frame[at : at + 1])
                await trio.sleep(1)
            assert socket.closed == 1008

    async def test_who_said_it_stays(self, autojump_clock: MockClock) -> None:
        async with serving() as relay:
            socket = await relay.greeted()
            await trio.sleep(20)
            assert socket.closed is None


class TestPing:
    @pytest.mark.parametrize("began_seconds", [0, 0.3, 0.97])
    async def test_one_comes_at_least_every_30_seconds(
        self, began_seconds: float, autojump_clock: MockClock
    ) -> None:
        async with serving() as relay:
            await trio.sleep(began_seconds)
            socket = await relay.greeted()
            heard_at, gaps = trio.current_time(), list[float]()
            while len(gaps) < 5:
                await trio.sleep(STEP_SECONDS)
                for ping in socket.heard():
                    assert ping["type"] == "ping"
                    assert isinstance(ping["t"], int)
                    gaps.append(trio.current_time() - heard_at)
                    heard_at = trio.current_time()
                    socket.say({"type": "pong", "t": ping["t"]})
            assert max(gaps) <= 30 + STEP_SECONDS
            assert min(gaps) > 25

    async def test_who_is_silent_for_90_seconds_is_gone_with_its_claims(
        self, log: Log, autojump_clock: MockClock
    ) -> None:
        async with serving() as relay:
            watcher = await relay.stream()
            socket = await relay.greeted("emitter")
            await socket.ask(event(0))
            assert len(relay.relay.roster()) == 1
            assert 90 <= await until_closed(socket) <= 92
            assert [message["type"] for message in socket.heard()] == ["ping", "ping", "ping", "closing"]
            assert socket.closed == 1008
            assert relay.relay.roster() == []
            await trio.sleep(2)
            assert log.records("connection closed")[0]["reason"] == "ping-timeout"
            # A stream's client has nothing to say.
            assert not watcher.ended

    @pytest.mark.parametrize(
        "sign",
        [
            b'{"type":"pong","t":1}',
            b'{"type":"ping","t":1}',
            event(0),
            b"nonsense",
            Frame(Opcode.PONG, b""),
            Frame(Opcode.PING, b""),
        ],
    )
    async def test_any_sign_of_life_counts(self, sign: bytes | Frame, autojump_clock: MockClock) -> None:
        async with serving() as relay:
            socket = await relay.greeted()
            for _ in range(4):
                await trio.sleep(80)
                if isinstance(sign, Frame):
                    socket.say_frame(sign)
                else:
                    socket.say(sign)
            assert socket.closed is None

    @pytest.mark.parametrize("binding", ["stream", "socket"])
    async def test_no_ping_is_queued_behind_what_a_peer_does_not_take(
        self, binding: str, autojump_clock: MockClock
    ) -> None:
        async with serving(Limits(stalled_timeout_seconds=3600)) as relay:
            if binding == "stream":
                wire = (await relay.stream(capacity_bytes=10_000)).wire
            else:
                socket = await relay.greeted("consumer", capacity_bytes=10_000)
                await socket.ask({"type": "subscribe", "id": "a"})
                wire = socket.wire
            while wire.capacity_bytes:
                await relay.post(event())
            (peer,) = relay.relay.peers.values()
            queued = peer.outbox.queued_bytes
            for _ in range(10):
                await trio.sleep(60)
                wire.feed(Frame(Opcode.PONG, b"").serialize(mask=True) if binding == "socket" else b"x")
            assert peer.outbox.queued_bytes == queued

    @pytest.mark.parametrize("role", ["consumer", "both"])
    async def test_a_pong_wakes_nobody_and_all_else_is_heard(self, role: str) -> None:
        async with serving() as relay, real_socket(relay) as socket:
            assert [message["type"] for message in await answers(socket, hello(role))] == ["hello"]
            assert await answers(socket, {"type": "pong", "t": 0}) == []
            steps = Steps()
            trio.lowlevel.add_instrument(steps)
            for t in range(1, 4):
                assert await answers(socket, {"type": "pong", "t": t}) == []
            trio.lowlevel.remove_instrument(steps)
            assert any(name.startswith(ATTENDANT) for name in steps.names)
            assert not any(name.endswith(READER) for name in steps.names)
            ping, pong = (Frame(Opcode.TEXT, b'{"type":"%b","t":1}' % name) for name in (b"ping", b"pong"))
            said, heard = ping.serialize(mask=True), pong.serialize(mask=True)
            for data in (
                said[:9],
                said[9:],
                heard,
                heard + said,
                said + heard,
                heard,
                said + heard[:9],
                heard[9:],
            ):
                socket.wire.feed(data)
                await settle()
            assert await answers(socket) == [{"type": "pong", "t": 1}] * 4
            long = {"type": "unsubscribe", "id": "a", "padding": "x" * 1000}
            short = {"type": "unsubscribe", "id": "a"}
            for messages in (
                [long],
                [short],
                [{"type": "pong", "t": 5}, long, {"type": "pong", "t": 6}],
                [short],
            ):
                assert await answers(socket, *messages) == [{"type": "unsubscribed", "id": "a"}]
            assert await answers(socket, {"type": "pong", "t": 7}) == []
            (peer,) = relay.relay.peers.values()
            relay.relay.close(peer, "shutdown", 1001)
            assert (await answers(socket))[0]["type"] == "closing"
            assert socket.closed == 1001

    async def test_who_talks_is_not_left_to_the_attendant(self) -> None:
        async with serving() as relay, real_socket(relay) as socket:
            await answers(socket, hello("consumer"))
            for _ in range(2 * FEW_WORDS):
                assert await answers(socket, {"type": "ping", "t": 0}) == [{"type": "pong", "t": 0}]
            steps = Steps()
            trio.lowlevel.add_instrument(steps)
            assert await answers(socket, {"type": "ping", "t": 1}) == [{"type": "pong", "t": 1}]
            assert not any(name.startswith(ATTENDANT) for name in steps.names)
            await answers(socket, {"type": "pong", "t": 2})
            await answers(socket, {"type": "pong", "t": 3})
            trio.lowlevel.remove_instrument(steps)
            assert any(name.startswith(ATTENDANT) for name in steps.names)

    async def test_a_pong_is_no_hello(self) -> None:
        async with serving() as relay, real_socket(relay) as socket:
            (error, *_) = await answers(socket, {"type": "pong", "t": 0})
            assert error["code"] == "hello-required"
            assert socket.closed == 1002

    async def test_intervals_are_settings(self, autojump_clock: MockClock) -> None:
        async with serving(Limits(ping_interval_seconds=5, ping_timeout_seconds=12)) as relay:
            socket = await relay.greeted()
            assert 12 <= await until_closed(socket) <= 14
            assert len(socket.heard()) >= 3


class TestHttp:
    async def test_an_idle_connection_ends(self, autojump_clock: MockClock) -> None:
        async with serving() as relay:
            fresh, kept = relay.connect(), relay.connect()
            kept.feed(request("GET", "/healthz"))
            await trio.sleep(74)
            assert [fresh.closed, kept.closed] == [False, False]
            await trio.sleep(3)
            assert [fresh.closed, kept.closed] == [True, True]

    @pytest.mark.parametrize(
        ("begun", "seconds"),
        [
            (b"G", 10),
            (request("POST", "/events", b"", {**JSON, "Content-Length": "9"}), 60),
            (request("POST", "/events", None, {**JSON, "Transfer-Encoding": "chunked"}) + b"5\r\n", 60),
        ],
    )
    async def test_a_request_that_comes_too_slowly_is_refused(
        self, begun: bytes, seconds: float, autojump_clock: MockClock
    ) -> None:
        async with serving() as relay:
            wire = relay.connect()
            wire.feed(begun)
            await trio.sleep(seconds - 0.5)
            assert wire.take_sent() == b""
            await trio.sleep(3)
            answer, _ = take_answer(wire.take_sent())
            assert answer.refusal == (408, "timeout")
            assert answer.headers["connection"] == "close"


async def _filled(relay: Served, peer_id: int = 1) -> None:
    """Send Events until the peer's socket takes no more, and some beyond."""
    while not relay.relay.peers[peer_id].outbox:
        await relay.post(event(severity="notice"))


class TestStalled:
    @pytest.mark.parametrize("binding", ["stream", "socket"])
    async def test_who_takes_no_byte_for_90_seconds_is_aborted(
        self, binding: str, log: Log, autojump_clock: MockClock
    ) -> None:
        async with serving() as relay:
            relay.nursery.start_soon(_abort_stalled, relay)
            if binding == "stream":
                wire = (await relay.stream(capacity_bytes=2000)).wire
            else:
                socket = await relay.greeted("consumer", capacity_bytes=2000)
                await socket.ask({"type": "subscribe", "id": "a"})
                wire = socket.wire
            await _filled(relay)
            for _ in range(17):
                await trio.sleep(5)
                wire.feed(Frame(Opcode.PONG, b"").serialize(mask=True) if binding == "socket" else b"x")
            assert not wire.closed
            await trio.sleep(15)
            assert wire.aborted
            assert relay.relay.peers == {}
            (closed,) = log.records("connection closed")
            assert closed["reason"] == "stalled"

    async def test_who_takes_a_byte_now_and_then_is_kept(self, autojump_clock: MockClock) -> None:
        async with serving() as relay:
            relay.nursery.start_soon(_abort_stalled, relay)
            stream = await relay.stream(capacity_bytes=2000)
            await _filled(relay)
            for _ in range(20):
                await trio.sleep(60)
                stream.wire.capacity_bytes = 1
            assert not stream.wire.closed

    async def test_who_has_nothing_pending_is_kept(self, autojump_clock: MockClock) -> None:
        async with serving() as relay:
            relay.nursery.start_soon(_abort_stalled, relay)
            stream = await relay.stream(capacity_bytes=2000)
            await _filled(relay)
            stream.wire.capacity_bytes = None
            await trio.sleep(300)
            assert not stream.wire.closed


async def _abort_stalled(relay: Served) -> None:
    from aep_relay import daemon

    await daemon._abort_stalled(relay.service)


async def test_a_peer_that_takes_no_answer_is_aborted(autojump_clock: MockClock) -> None:
    async with serving() as relay:
        wire = relay.connect(capacity_bytes=10)
        wire.feed(request("GET", "/events"))
        await settle()
        await trio.sleep(59)
        assert not wire.closed
        await trio.sleep(3)
        assert wire.aborted
