"""The way out: everyone is told, nobody holds it up, and a second signal ends it at once."""

from __future__ import annotations

import json
import signal
import socket
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
import trio
from trio_websocket import ConnectionClosed

from aep_relay import daemon
from aep_relay.hub.limits import Limits
from aep_relay.journal import archive
from tests.system.running import JSON, PATIENCE_SECONDS, Running

if TYPE_CHECKING:
    from tests.system.conftest import Run

PATIENT = "[limits]\ndrain_timeout_seconds = 60\nclosing_timeout_seconds = 60\n"
"""A relay that whoever held it up would hold up for longer than a test waits."""


def event(seq: int, *, size_bytes: int = 200, severity: str = "notice") -> bytes:
    found = {
        "aep": "0.1",
        "id": f"e-{seq}",
        "type": "progress.status",
        "time": "2026-07-03T10:14:00Z",
        "source": "aep://host/agent/worker",
        "agent": "worker",
        "session": "s",
        "seq": seq,
        "severity": severity,
        "data": {"message": "x" * size_bytes},
    }
    return json.dumps(found).encode()


async def ends(relay: Running, number: signal.Signals = signal.SIGTERM) -> int:
    """Send a signal; return the exit code, for which ``PATIENT`` relays would let a test wait too long."""
    return await trio.to_thread.run_sync(relay.relay.end, number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_consumers_and_emitters_are_told(number: signal.Signals, run: Run) -> None:
    with run(PATIENT) as relay:
        async with (
            relay.stream() as stream,
            relay.socket("consumer") as watcher,
            relay.socket("emitter") as emitter,
            trio.open_nursery() as nursery,
        ):
            await watcher.subscribe("mine", filter={"session": "s"})
            await emitter.say(event(7))
            await watcher.events(1)
            assert len(await stream.messages(1)) == 1
            codes: list[int] = []

            async def end() -> None:
                codes.append(await ends(relay, number))

            nursery.start_soon(end)
            assert await watcher.hear() == {
                "type": "closing",
                "reason": "shutdown",
                "delivered": [{"sub": "mine", "session": "s", "epoch": 0, "seq": 7}],
            }
            assert await emitter.hear() == {"type": "closing", "reason": "shutdown", "delivered": []}
            for client in (watcher, emitter):
                with pytest.raises(ConnectionClosed):
                    await client.hear()
                assert client.connection.closed is not None
                assert (client.connection.closed.code, client.connection.closed.reason) == (1001, "shutdown")
            assert await stream.next() == "closing shutdown"
            assert await stream.next() is None
        assert codes == [0]


async def test_an_emitter_in_mid_burst_is_told(run: Run) -> None:
    with run(PATIENT) as relay:
        heard: list[dict[str, object]] = []
        codes: list[int] = []

        async def burst(started: trio.Event) -> None:
            async with relay.socket("emitter") as emitter, trio.open_nursery() as nursery:

                async def send() -> None:
                    seq = 0
                    try:
                        while True:
                            await emitter.say(event(seq))
                            seq += 1
                            if seq == 100:
                                started.set()
                    except ConnectionClosed:
                        pass

                nursery.start_soon(send)
                try:
                    while True:
                        heard.append(await emitter.hear())
                except ConnectionClosed:
                    assert emitter.connection.closed is not None
                    codes.append(emitter.connection.closed.code)

        async with trio.open_nursery() as nursery:
            started = [trio.Event() for _ in range(3)]
            for number in started:
                nursery.start_soon(burst, number)
            for number in started:
                await number.wait()
            code = await ends(relay)
        assert heard == [{"type": "closing", "reason": "shutdown", "delivered": []}] * 3
        assert codes == [1001] * 3
        assert code == 0


def raw(relay: Running, request: str, *, window_bytes: int | None = None) -> socket.socket:
    """Return a connection on which ``request`` has been sent."""
    sock = socket.socket()
    if window_bytes is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window_bytes)
    sock.settimeout(20)
    try:
        sock.connect(("127.0.0.1", relay.port))
    except BaseException:
        sock.close()
        raise
    sock.sendall(request.encode())
    return sock


STREAM = "GET /stream HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
HALF = "GET /healthz HTTP/1.1\r\nHo"


def until_subscribed(relay: Running, count: int) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while relay.get("/healthz")["subscribers"] < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def stall(relay: Running, stack: ExitStack) -> None:
    """Leave streams open whose clients read nothing, with more pending than any socket takes."""
    for _ in range(3):
        stack.enter_context(raw(relay, STREAM, window_bytes=4096))
    until_subscribed(relay, 3)
    for first in range(0, 300, 100):
        relay.post(*(event(seq, size_bytes=20_000) for seq in range(first, first + 100)))
    assert all(found["queued_bytes"] for found in relay.get("/connections")["connections"])


async def test_stalled_readers_hold_nothing_up(run: Run) -> None:
    """It is the grace that ends them: whatever else would takes longer than a test waits."""
    grace = "[limits]\ndrain_timeout_seconds = 0.3\nclosing_timeout_seconds = 60\n"
    with run(grace) as relay, ExitStack() as stack:
        stall(relay, stack)
        assert await ends(relay) == 0


def test_the_whole_takes_less_than_ten_seconds() -> None:
    """Whatever of it is held up: connections, then upstreams, then the archive's disk."""
    assert Limits().drain_timeout_seconds + daemon.FINISH_SECONDS + archive.FINISH_SECONDS < 10


@pytest.mark.parametrize(("second", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_second_signal_ends_it_at_once(second: signal.Signals, code: int, run: Run) -> None:
    with run(PATIENT) as relay, raw(relay, HALF):
        # The first answer of another connection says that the half request has been seen.
        relay.get("/healthz")
        relay.relay.process.send_signal(signal.SIGTERM)
        relay.relay.record("draining")
        assert relay.relay.end(second) == code


def answer(sock: socket.socket) -> bytes:
    """Return all that comes until the relay ends the connection."""
    found = b""
    while data := sock.recv(65536):
        found += data
    return found


def test_what_comes_during_the_drain_is_refused(run: Run) -> None:
    with run(PATIENT) as relay, ExitStack() as stack:
        half = stack.enter_context(raw(relay, HALF))
        body = event(1).decode()
        head = "".join(f"{name}: {value}\r\n" for name, value in JSON.items())
        post = f"POST /events HTTP/1.1\r\nHost: 127.0.0.1\r\n{head}Content-Length: {len(body)}\r\n\r\n{body}"
        uploading = stack.enter_context(raw(relay, post[:-5]))
        fresh, idle = (
            stack.enter_context(raw(relay, request)) for request in ("", HALF + "st: 127.0.0.1\r\n\r\n")
        )
        assert b'{"ok":true' in idle.recv(65536)
        relay.get("/healthz")
        relay.relay.process.send_signal(signal.SIGTERM)
        relay.relay.record("draining")
        # Who has asked for nothing is let go at once, although others hold the relay up.
        assert (answer(fresh), answer(idle)) == (b"", b"")
        with pytest.raises(ConnectionRefusedError):
            raw(relay, HALF)
        # A request that was under way is served, one that comes is not.
        uploading.sendall(post[-5:].encode())
        accepted = answer(uploading)
        assert accepted.startswith(b"HTTP/1.1 202 ")
        assert b"Connection: close\r\n" in accepted
        half.sendall(b"st: 127.0.0.1\r\n\r\n")
        refused = answer(half)
        assert refused.startswith(b"HTTP/1.1 503 ")
        assert b"Connection: close\r\n" in refused
        assert json.loads(refused.partition(b"\r\n\r\n")[2])["error"] == "draining"
        assert relay.relay.end() == 0


async def test_many_connections_are_ended_in_time(run: Run) -> None:
    with run(PATIENT) as relay, ExitStack() as stack:
        socks = [stack.enter_context(raw(relay, STREAM)) for _ in range(300)]
        await trio.to_thread.run_sync(until_subscribed, relay, len(socks))
        assert await ends(relay) == 0
        for sock in socks:
            assert answer(sock).endswith(b": closing shutdown\n\n\r\n0\r\n\r\n")
