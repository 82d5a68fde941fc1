"""A wire on real sockets, and its twin in memory held to the same behaviour."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from aep_relay.transport.wire import BrokenWire, Interrupted, Wire, linger
from tests.fakes.wire import MemoryWire


class Peer:
    """The other end of a wire, for the test."""

    def __init__(self, send: Callable[[bytes], object], end: Callable[[], object]) -> None:
        self.send = send
        self.end = end


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
    return accepted, client


@pytest.fixture(params=["tcp", "unix", "memory"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Wire, Peer]]:
    if request.param == "memory":
        memory = MemoryWire()
        yield memory, Peer(memory.feed, memory.feed_end)
        return
    ours, theirs = tcp_pair() if request.param == "tcp" else socket.socketpair()
    with closing(ours), closing(theirs):
        yield Wire(ours), Peer(theirs.sendall, lambda: theirs.shutdown(socket.SHUT_WR))


@pytest.fixture
def real() -> Iterator[tuple[Wire, socket.socket]]:
    ours, theirs = tcp_pair()
    with closing(ours), closing(theirs):
        yield Wire(ours), theirs


def receive_all(sock: socket.socket) -> bytes:
    received = bytearray()
    while chunk := sock.recv(1 << 20):
        received += chunk
    return bytes(received)


def fill(wire: Wire) -> int:
    """Send until the socket would block; return how much it took."""
    total = 0
    while sent := wire.send(bytes(65536)):
        total += sent
    return total


async def test_bytes_and_end_arrive(pair: tuple[Wire, Peer]) -> None:
    wire, peer = pair
    assert wire.receive_nowait() is None
    peer.send(b"one")
    assert await wire.receive_some() == b"one"
    peer.send(b"four")
    assert await wire.receive_some(2) == b"fo"
    assert wire.receive_nowait() == b"ur"
    peer.end()
    assert await wire.receive_some() == b""
    assert wire.receive_nowait() == b""


async def test_receive_waits(pair: tuple[Wire, Peer]) -> None:
    wire, peer = pair
    got = []

    async def receive() -> None:
        got.append(await wire.receive_some())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        await wait_all_tasks_blocked()
        assert not got
        peer.send(b"now")
    assert got == [b"now"]


async def test_receive_cancelled_loses_nothing(pair: tuple[Wire, Peer]) -> None:
    wire, peer = pair
    peer.send(b"kept")
    with trio.CancelScope() as scope:
        scope.cancel()
        await wire.receive_some()
    assert scope.cancelled_caught
    assert await wire.receive_some() == b"kept"


async def test_interrupt_ends_a_waiting_receive_only(pair: tuple[Wire, Peer]) -> None:
    wire, peer = pair
    wire.interrupt()  # nobody waits: without effect

    async def receive() -> None:
        with pytest.raises(Interrupted):
            await wire.receive_some()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        await wait_all_tasks_blocked()
        wire.interrupt()
    assert not wire.closed
    peer.send(b"sound")
    assert await wire.receive_some() == b"sound"
    assert wire.send(b"sound") == 5


@pytest.mark.parametrize("how", ["close", "abort"])
async def test_close_wakes_the_receiver(pair: tuple[Wire, Peer], how: str) -> None:
    wire, _ = pair
    end: Callable[[], None] = getattr(wire, how)

    async def receive() -> None:
        with pytest.raises(BrokenWire, match="closed on this side"):
            await wire.receive_some()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        await wait_all_tasks_blocked()
        end()
    assert wire.closed
    end()
    wire.interrupt()
    wire.shutdown_write()
    assert wire.fileno() == -1


async def test_everything_on_a_closed_wire_is_broken(pair: tuple[Wire, Peer]) -> None:
    wire, _ = pair
    wire.close()
    with pytest.raises(BrokenWire):
        wire.send(b"x")
    with pytest.raises(BrokenWire):
        wire.receive_nowait()
    with pytest.raises(BrokenWire):
        await wire.receive_some()
    with pytest.raises(BrokenWire):
        await wire.wait_writable()
    with pytest.raises(BrokenWire):
        await wire.send_all(b"x")


async def test_send_answers_zero_when_it_would_block(real: tuple[Wire, socket.socket]) -> None:
    wire, theirs = real
    assert fill(wire) > 0
    assert wire.send(b"more") == 0
    theirs.setblocking(False)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wire.wait_writable)
        await wait_all_tasks_blocked()
        assert nursery.child_tasks
        while True:
            try:
                theirs.recv(1 << 20)
            except BlockingIOError:
                break
    assert wire.send(b"more") == 4


async def test_send_all_waits_and_delivers_in_order(real: tuple[Wire, socket.socket]) -> None:
    wire, theirs = real
    data = os.urandom(1 << 24)
    received: list[bytes] = []

    def receive() -> None:
        received.append(receive_all(theirs))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, receive)
        await wire.send_all(data)
        wire.shutdown_write()
    assert received == [data]


async def test_send_all_cancelled_in_the_middle_aborts(real: tuple[Wire, socket.socket]) -> None:
    wire, theirs = real
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wire.send_all, bytes(1 << 24))
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert wire.closed
    with pytest.raises(ConnectionResetError):
        receive_all(theirs)


async def test_send_all_cancelled_before_the_first_byte_leaves_the_wire_sound() -> None:
    wire = MemoryWire(capacity_bytes=0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wire.send_all, b"frame")
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert not wire.closed
    wire.capacity_bytes = 5
    assert wire.send(b"frames") == 5


async def test_interrupt_does_not_disturb_a_writer(real: tuple[Wire, socket.socket]) -> None:
    wire, theirs = real
    fill(wire)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wire.wait_writable)
        await wait_all_tasks_blocked()
        wire.interrupt()
        await wait_all_tasks_blocked()
        assert nursery.child_tasks
        theirs.close()


async def test_reset_by_the_peer_is_broken(real: tuple[Wire, socket.socket]) -> None:
    wire, theirs = real
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    theirs.close()
    with pytest.raises(BrokenWire, match="reset"):
        await wire.receive_some()
    with pytest.raises(BrokenWire):
        wire.send(b"x")


async def test_abort_resets(real: tuple[Wire, socket.socket]) -> None:
    wire, theirs = real
    wire.abort()
    with pytest.raises(ConnectionResetError):
        theirs.recv(1)


async def test_writer_is_woken_by_close(real: tuple[Wire, socket.socket]) -> None:
    wire, _ = real
    fill(wire)

    async def write() -> None:
        with pytest.raises(BrokenWire):
            await wire.wait_writable()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        await wait_all_tasks_blocked()
        wire.close()


def test_names_of_tcp() -> None:
    ours, theirs = tcp_pair()
    with closing(ours), closing(theirs):
        wire = Wire(ours)
        host, port = theirs.getsockname()
        assert wire.peer_name == f"{host}:{port}"
        assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_name_of_a_unix_peer_is_not_of_its_choosing() -> None:
    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs):
        assert Wire(ours).peer_name == f"unix:pid={os.getpid()},uid={os.getuid()}"


def test_ipv6_names_are_bracketed() -> None:
    try:
        server = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("no IPv6 here")
    with server, socket.create_connection(server.getsockname()[:2]) as client:
        accepted, _ = server.accept()
        with accepted:
            assert Wire(accepted).peer_name == f"[::1]:{client.getsockname()[1]}"


async def test_linger_lets_the_answer_arrive(real: tuple[Wire, socket.socket]) -> None:
    wire, theirs = real
    answer = b"answer"
    result: list[bytes] = []

    def upload_then_read() -> None:
        for _ in range(64):
            theirs.sendall(bytes(65536))
        result.append(theirs.recv(100))
        theirs.close()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, upload_then_read)
        await wire.receive_some(10)
        await wire.send_all(answer)
        await linger(wire, seconds=30, max_bytes=1 << 30)
    assert result == [answer]
    assert wire.closed


async def test_linger_ends_in_time(autojump_clock: trio.testing.MockClock) -> None:
    wire = MemoryWire()
    await linger(wire, seconds=3, max_bytes=100)
    assert trio.current_time() == pytest.approx(3)
    assert wire.closed
    assert wire.write_ended


async def test_linger_is_bounded_in_bytes() -> None:
    wire = MemoryWire([bytes(60), bytes(60), bytes(60)])
    await linger(wire, seconds=3, max_bytes=100)
    assert wire.closed
    assert len(wire._inbound) == 1


async def test_linger_survives_a_reset() -> None:
    wire = MemoryWire()
    wire.reset()
    await linger(wire, seconds=3, max_bytes=100)
    assert wire.closed
