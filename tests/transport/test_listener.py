"""Accepting: what is accepted is served and closed, whatever happens to others."""

from __future__ import annotations

import errno
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from functools import partial

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from aep_relay.transport import listener as listener_module
from aep_relay.transport.listener import serve
from aep_relay.transport.sockets import open_tcp
from aep_relay.transport.wire import Wire


class Server:
    """A running ``serve`` and what it told its hooks."""

    def __init__(
        self, address: tuple[str, int], accepting: trio.CancelScope, connections: trio.Nursery
    ) -> None:
        self.address = address
        self.accepting = accepting
        self.connections = connections
        self.crashes: list[Exception] = []
        self.overloads: list[OSError] = []
        self.refusal: bytes | None = None

    async def connect(self) -> trio.SocketStream:
        return await trio.open_tcp_stream(*self.address)


@asynccontextmanager
async def running(
    handler: Callable[[Wire], Awaitable[None]],
    *,
    wrap: Callable[[socket.socket], socket.socket] = lambda sock: sock,
) -> AsyncIterator[Server]:
    listening = await open_tcp("127.0.0.1", 0)
    async with trio.open_nursery() as connections:
        async with trio.open_nursery() as accepting:
            server = Server(listening[0].getsockname(), accepting.cancel_scope, connections)
            await accepting.start(
                partial(
                    serve,
                    [wrap(sock) for sock in listening],
                    handler,
                    connections=connections,
                    crashed=lambda wire, error: server.crashes.append(error),
                    overloaded=server.overloads.append,
                    turn_away=lambda wire: server.refusal,
                )
            )
            yield server
            accepting.cancel_scope.cancel()
        connections.cancel_scope.cancel()
    assert all(sock.fileno() == -1 for sock in listening)


async def echo(wire: Wire) -> None:
    while data := await wire.receive_some():
        await wire.send_all(data)


async def test_each_connection_gets_a_handler_and_is_closed_after_it() -> None:
    async with running(echo) as server, await server.connect() as one, await server.connect() as two:
        for stream, text in ((two, b"two"), (one, b"one")):
            await stream.send_all(text)
            assert await stream.receive_some(10) == text
        await one.send_eof()
        assert await one.receive_some(10) == b""


async def test_many_connections_are_accepted_in_one_go() -> None:
    served = []

    async def handler(wire: Wire) -> None:
        served.append(wire)
        await wire.receive_some()

    async with running(handler) as server:
        with ExitStack() as stack:
            for _ in range(3 * listener_module.ACCEPTS_PER_TURN):
                stack.enter_context(socket.create_connection(server.address))
            await wait_all_tasks_blocked()
            assert len(served) == 3 * listener_module.ACCEPTS_PER_TURN


async def test_accepting_stops_before_connections_do() -> None:
    async with running(echo) as server, await server.connect() as stream:
        await stream.send_all(b"before")
        assert await stream.receive_some(10) == b"before"
        server.accepting.cancel()
        await wait_all_tasks_blocked()
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(server.address)
        await stream.send_all(b"after")
        assert await stream.receive_some(10) == b"after"


async def test_a_handler_that_raises_harms_nobody_else() -> None:
    async def handler(wire: Wire) -> None:
        if await wire.receive_some() == b"raise":
            raise KeyError("one")
        async with trio.open_nursery():
            raise ValueError("two")

    async with running(handler) as server:
        for text in (b"raise", b"group"):
            async with await server.connect() as stream:
                await stream.send_all(text)
                assert await stream.receive_some(10) == b""
    assert [repr(error) for error in server.crashes] == ["KeyError('one')", "ValueError('two')"]


async def test_several_exceptions_stay_a_group() -> None:
    async def fail(error: Exception) -> None:
        raise error

    async def handler(wire: Wire) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail, KeyError())
            nursery.start_soon(fail, ValueError())

    async with running(handler) as server, await server.connect() as stream:
        assert await stream.receive_some(10) == b""
    (crash,) = server.crashes
    assert isinstance(crash, ExceptionGroup)


async def test_an_exception_beside_a_cancellation_is_reported_too() -> None:
    async def handler(wire: Wire) -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise KeyError("while cancelled")

    async with running(handler) as server, await server.connect():
        await wait_all_tasks_blocked()
        server.connections.cancel_scope.cancel()
        await wait_all_tasks_blocked()
    assert [type(error) for error in server.crashes] == [KeyError]


class Failing(socket.socket):
    """A listener whose ``accept`` fails as often as it is told to."""

    failures: list[int]

    def accept(self) -> tuple[socket.socket, object]:
        if self.failures:
            number = self.failures.pop(0)
            raise OSError(number, errno.errorcode[number])
        return super().accept()


def failing(*failures: int) -> Callable[[socket.socket], socket.socket]:
    def wrap(original: socket.socket) -> socket.socket:
        sock = Failing(original.family, original.type, fileno=original.detach())
        sock.failures = list(failures)
        return sock

    return wrap


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
async def test_lack_of_descriptors_is_waited_out_and_reported_once_a_second(
    number: int, autojump_clock: trio.testing.MockClock
) -> None:
    async with running(echo, wrap=failing(*[number] * 25)) as server:
        with socket.create_connection(server.address) as client:
            await trio.sleep(2.45)
            assert not server.connections.child_tasks
            await trio.sleep(0.1)
            assert server.connections.child_tasks
            client.sendall(b"served")
            client.setblocking(False)
            await trio.lowlevel.wait_readable(client)
            assert client.recv(10) == b"served"
    assert [error.errno for error in server.overloads] == [number] * 3


@pytest.mark.parametrize("number", [errno.ECONNABORTED, errno.EPROTO, errno.EPERM, errno.ENETDOWN])
async def test_a_connection_that_fails_before_it_is_accepted_is_passed_over(number: int) -> None:
    async with running(echo, wrap=failing(number)) as server, await server.connect() as stream:
        await stream.send_all(b"served")
        assert await stream.receive_some(10) == b"served"
    assert server.overloads == []


async def test_a_listener_of_no_use_is_an_error() -> None:
    sock = socket.socket()
    async with trio.open_nursery() as connections:
        with pytest.raises(ExceptionGroup) as caught:
            await serve([sock], echo, connections=connections, crashed=lambda wire, error: None)
    assert caught.group_contains(OSError, match="Invalid argument")
    assert sock.fileno() == -1


async def test_a_connection_can_be_turned_away_with_an_answer() -> None:
    async with running(echo) as server:
        server.refusal = b"no room"
        async with await server.connect() as stream:
            await stream.send_all(b"x" * 1000)
            received = b""
            while chunk := await stream.receive_some(100):
                received += chunk
            assert received == b"no room"
        server.refusal = None
        async with await server.connect() as stream:
            await stream.send_all(b"served")
            assert await stream.receive_some(10) == b"served"


async def test_turning_away_holds_few_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "MAX_LINGERING_REFUSALS", 2)
    async with running(echo) as server:
        server.refusal = b"no room"
        with ExitStack() as stack:
            clients = [stack.enter_context(socket.create_connection(server.address)) for _ in range(10)]
            await wait_all_tasks_blocked()
            assert len(server.connections.child_tasks) == 2
            for client in clients:
                assert client.recv(100) == b"no room"
        await wait_all_tasks_blocked()
        assert not server.connections.child_tasks
