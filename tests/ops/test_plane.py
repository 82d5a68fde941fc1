"""The plane fails and the relay does not notice: binds that are taken, crashes, hostile and stalled clients."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import httpx
import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from aep_relay.config import Config, Operator
from aep_relay.ops import plane, server
from aep_relay.transport.wire import Wire
from tests.ops.observed import Observation, consumer, serving
from tests.ports import free_port

PATIENCE_SECONDS = 30.0

UPGRADE = (
    b"GET %b HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


def observation(**operator: object) -> Observation:
    return Observation(Config(operator=Operator(**operator)))  # type: ignore[arg-type]


@asynccontextmanager
async def running(service: Observation) -> AsyncIterator[trio.Nursery]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(plane.run, service)
        yield nursery
        nursery.cancel_scope.cancel()


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110  # what is waited for tells nobody
            await trio.sleep(0.01)


async def answers(client: httpx.AsyncClient, status: int) -> None:
    with trio.fail_after(PATIENCE_SECONDS):
        while (await client.get("/health/live")).status_code != status:  # noqa: ASYNC110
            await trio.sleep(0.01)


async def test_it_serves_on_its_own_bind_and_knows_its_origin() -> None:
    port = free_port()
    service = observation(port=port)
    async with running(service):
        await until(lambda: bool(service.own_origins))
        async with httpx.AsyncClient() as client:
            assert (await client.get(f"http://localhost:{port}/health/live")).json() == {"live": True}
    assert f"http://localhost:{port}" in service.own_origins


async def test_it_serves_on_a_unix_socket_too(tmp_path: Path) -> None:
    path = tmp_path / "ops.sock"
    async with running(observation(host=None, unix=str(path))):
        await until(path.exists)
        assert path.stat().st_mode & 0o777 == 0o600
        transport = httpx.AsyncHTTPTransport(uds=str(path))
        async with httpx.AsyncClient(transport=transport, base_url="http://ops") as client:
            assert (await client.get("/config")).json()["operator"]["unix"] == str(path)
    assert not path.exists()


async def test_switched_off_it_does_nothing() -> None:
    with trio.fail_after(PATIENCE_SECONDS):
        await plane.run(observation(enabled=False))


async def test_a_bind_that_is_taken_is_said_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plane, "FIRST_PAUSE_SECONDS", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as taken, capture_logs() as logs:
        port = taken.getsockname()[1]
        service = observation(port=port)
        async with running(service):
            await until(lambda: len(logs) >= 2)
            assert logs[0]["event"] == "operator plane cannot listen; the relay goes on without it"
            assert f":{port}" in logs[0]["error"]
            assert "operator.port" in logs[0]["remedy"]
            taken.close()
            await until(lambda: bool(service.own_origins))
            assert logs[-1]["event"] == "operator plane listening"


async def test_a_crash_is_said_and_it_starts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plane, "FIRST_PAUSE_SECONDS", 0.01)
    real, failures = server.serve, iter([RuntimeError("bad"), ValueError("worse")])

    async def flaky(*arguments: object, **options: object) -> None:
        if (failure := next(failures, None)) is not None:
            arguments[1][0].close()  # type: ignore[index]
            raise failure
        await real(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(server, "serve", flaky)
    port = free_port()
    with capture_logs() as logs:
        async with running(observation(port=port)):
            await until(lambda: sum(log["event"] == "operator plane listening" for log in logs) == 3)
            async with httpx.AsyncClient() as client:
                assert (await client.get(f"http://127.0.0.1:{port}/health/live")).status_code == 200
    failed = [log for log in logs if log["log_level"] == "error"]
    assert len(failed) == 2


async def test_pauses_grow_and_shrink_again(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    began: list[float] = []

    async def work() -> None:
        began.append(trio.current_time())
        if len(began) == 12:
            await trio.sleep(plane.STABLE_SECONDS)
        raise RuntimeError("again")

    with capture_logs(), trio.move_on_after(800):
        await plane._again_and_again("part", work)
    pauses = [after - before for before, after in pairwise(began)]
    assert pauses[:7] == [1, 2, 4, 8, 16, 32, 60]
    assert max(pauses[:11]) == plane.LONGEST_PAUSE_SECONDS
    assert pauses[11] == plane.STABLE_SECONDS + plane.FIRST_PAUSE_SECONDS


@pytest.mark.parametrize("path", [b"/", b"/socket", b"/overview"])
@pytest.mark.parametrize("trailing", [b"", b"x", b"\x81\x00", b"GET / HTTP/1.1\r\n\r\n" * 100])
async def test_an_upgrade_is_refused_and_hurts_nobody(path: bytes, trailing: bytes) -> None:
    async with serving(Observation()) as (client, port):
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        async with stream:
            await stream.send_all(UPGRADE % path + trailing)
            with trio.fail_after(PATIENCE_SECONDS):
                answer = await stream.receive_some(4096)
        # With bytes behind it, Hypercorn may end the connection before it has answered.
        assert answer.startswith((b"HTTP/1.1 403", b"HTTP/1.1 400")) or (trailing and answer == b"")
        assert (await client.get("/health/live")).status_code == 200


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00" * 1000,
        b"GET / HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 500,
        b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: !\r\n\r\n",
        b"GET /%ff%fe HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\n" + b"x" * 100_000,
        b"GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /static/\xc3\xa9 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"A" * 200_000,
    ],
)
async def test_garbage_hurts_nobody(garbage: bytes) -> None:
    async with serving(Observation()) as (client, port):
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        async with stream:
            with trio.move_on_after(2):
                try:
                    await stream.send_all(garbage)
                    await stream.send_eof()
                    await read_all(stream)
                except trio.BrokenResourceError:
                    pass
        assert (await client.get("/health/live")).status_code == 200


async def stalled_reader(port: int) -> trio.SocketStream:
    """Ask for far more than a socket holds, and read none of it."""
    sock = trio.socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await sock.connect(("127.0.0.1", port))
    stream = trio.SocketStream(sock)
    await stream.send_all(b"GET /connections HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20)
    # From the first byte on, the answer fills what there is to fill.
    assert await sock.recv(1, socket.MSG_PEEK)
    return stream


async def read_all(stream: trio.SocketStream) -> None:
    while await stream.receive_some(65536):
        pass


def crowded() -> Observation:
    service = Observation()
    for _ in range(3000):
        consumer(service.relay)
    return service


async def test_a_stalled_reader_neither_blocks_others_nor_the_end() -> None:
    began = 0.0
    async with serving(crowded()) as (client, port):
        readers = [await stalled_reader(port) for _ in range(10)]
        assert (await client.get("/health/live")).status_code == 200
        began = trio.current_time()
    assert trio.current_time() - began < server.WRITE_TIMEOUT_SECONDS / 2
    for reader in readers:
        await reader.aclose()


async def test_a_stalled_reader_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    dropped = trio.Event()
    abort = Wire.abort

    def aborted(wire: Wire) -> None:
        abort(wire)
        dropped.set()

    monkeypatch.setattr(server, "WRITE_TIMEOUT_SECONDS", 0.2)
    monkeypatch.setattr(Wire, "abort", aborted)
    async with serving(crowded()) as (_, port):
        reader = await stalled_reader(port)
        with trio.fail_after(PATIENCE_SECONDS):
            await dropped.wait()
        with pytest.raises(trio.BrokenResourceError):
            await read_all(reader)
        await reader.aclose()


async def test_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 2)
    async with serving(Observation()) as (client, port):
        held = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(2)]
        await answers(client, 429)
        for stream in held:
            await stream.aclose()
        await answers(client, 200)
