"""Wires that are left to the attendant, on real sockets, and the twin in memory held to the same behaviour."""

from __future__ import annotations

import fcntl
import gc
import os
import socket
import struct
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from aep_relay.transport.attendant import READ_BYTES, Attendant
from aep_relay.transport.wire import BrokenWire, Interrupted, Wire
from tests.fakes.wire import MemoryWire

Send = Callable[[bytes], object]


def is_small_talk(data: bytes) -> bool:
    return data == b"pong"


@asynccontextmanager
async def listening() -> AsyncIterator[Attendant]:
    attendant = Attendant()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(attendant.run)
        yield attendant
        assert not attendant._selector.get_map(), "who is not waited for is not listened to"
        nursery.cancel_scope.cancel()


@pytest.fixture(params=["socket", "memory"])
async def pair(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Wire, Send, Callable[[], object]]]:
    if request.param == "memory":
        memory = MemoryWire()
        yield memory, memory.feed, memory.feed_end
        return
    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs):
        yield Wire(ours), theirs.sendall, lambda: theirs.shutdown(socket.SHUT_WR)


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
    return accepted, client


class Steps(trio.abc.Instrument):
    """Counts how often a task was woken."""

    def __init__(self) -> None:
        self.task: trio.lowlevel.Task | None = None
        self.count = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += task is self.task


async def test_only_what_is_not_dealt_with_comes_and_all_of_it(
    pair: tuple[Wire, Send, Callable[[], object]],
) -> None:
    wire, send, end = pair
    got = []

    async def receive(attendant: Attendant) -> None:
        while data := await wire.receive_beyond(attendant, is_small_talk):
            got.append(data)
        got.append(data)

    async with listening() as attendant, trio.open_nursery() as nursery:
        nursery.start_soon(receive, attendant)
        for data in (b"pong", b"one", b"pong", b"pong", b"two"):
            send(data)
            await wait_all_tasks_blocked()
        assert got == [b"one", b"two"]
        send(b"x" * READ_BYTES + b"pong!")
        await wait_all_tasks_blocked()
        assert b"".join(got[2:]) == b"x" * READ_BYTES + b"pong!"
        end()
    assert got[-1] == b""


async def test_the_task_sleeps_through_what_is_dealt_with() -> None:
    ours, theirs = socket.socketpair()
    steps = Steps()

    async def receive(attendant: Attendant) -> None:
        steps.task = trio.lowlevel.current_task()
        assert await wire.receive_beyond(attendant, is_small_talk) == b"news"

    with closing(ours), closing(theirs):
        wire = Wire(ours)
        async with listening() as attendant, trio.open_nursery() as nursery:
            trio.lowlevel.add_instrument(steps)
            nursery.start_soon(receive, attendant)
            await wait_all_tasks_blocked()
            slept = steps.count
            for _ in range(3):
                theirs.sendall(b"pong")
                await wait_all_tasks_blocked()
            with pytest.raises(BlockingIOError):
                ours.recv(1)
            assert steps.count == slept
            theirs.sendall(b"news")
        trio.lowlevel.remove_instrument(steps)


async def test_interrupt_ends_the_wait_only(pair: tuple[Wire, Send, Callable[[], object]]) -> None:
    wire, send, _ = pair

    async def receive(attendant: Attendant) -> None:
        with pytest.raises(Interrupted):
            await wire.receive_beyond(attendant, is_small_talk)

    async with listening() as attendant:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive, attendant)
            await wait_all_tasks_blocked()
            wire.interrupt()
            wire.interrupt()
        send(b"sound")
        assert await wire.receive_some() == b"sound"
        send(b"and again")
        assert await wire.receive_beyond(attendant, is_small_talk) == b"and again"


@pytest.mark.parametrize("end", [Wire.close, Wire.abort])
async def test_closing_ends_the_wait(
    end: Callable[[Wire], None], pair: tuple[Wire, Send, Callable[[], object]]
) -> None:
    wire, _, _ = pair

    async def receive(attendant: Attendant) -> None:
        with pytest.raises(BrokenWire, match="closed on this side"):
            await wire.receive_beyond(attendant, is_small_talk)

    async with listening() as attendant:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive, attendant)
            await wait_all_tasks_blocked()
            # The twin has its own.
            getattr(wire, end.__name__)()
        await receive(attendant)


async def test_a_descriptor_is_used_again() -> None:
    # One that nothing else takes meanwhile: the lowest that are free are given out.
    descriptor = fcntl.fcntl(0, fcntl.F_DUPFD, 800)
    os.close(descriptor)
    async with listening() as attendant:
        for _ in range(3):
            ours, theirs = socket.socketpair()
            with closing(ours), closing(theirs):
                os.dup2(ours.fileno(), descriptor)
                wire = Wire(socket.socket(fileno=descriptor))
                with trio.move_on_after(0):
                    await wire.receive_beyond(attendant, is_small_talk)
                theirs.sendall(b"own")
                assert await wire.receive_beyond(attendant, is_small_talk) == b"own"
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_broken, wire, attendant)
                    await wait_all_tasks_blocked()
                    wire.close()


async def _broken(wire: Wire, attendant: Attendant) -> None:
    with pytest.raises(BrokenWire):
        await wire.receive_beyond(attendant, is_small_talk)


async def test_nothing_is_held_of_a_wire_that_was_heard() -> None:
    class Listener:
        def deals_with(self, data: bytes) -> bool:
            return False

    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs):
        async with listening() as attendant:
            listener = Listener()
            theirs.sendall(b"news")
            assert await Wire(ours).receive_beyond(attendant, listener.deals_with) == b"news"
            await wait_all_tasks_blocked()
            gone = weakref.ref(listener)
            del listener
            assert gone() is None


async def test_a_reset_is_told() -> None:
    ours, theirs = tcp_pair()
    with closing(ours), closing(theirs):
        wire = Wire(ours)
        async with listening() as attendant, trio.open_nursery() as nursery:
            nursery.start_soon(_broken, wire, attendant)
            await wait_all_tasks_blocked()
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            theirs.close()


async def test_cancelling_loses_nothing(pair: tuple[Wire, Send, Callable[[], object]]) -> None:
    wire, send, _ = pair
    async with listening() as attendant:
        with trio.CancelScope() as scope:
            scope.cancel()
            await wire.receive_beyond(attendant, is_small_talk)
        assert scope.cancelled_caught
        with trio.move_on_after(0.001) as scope:
            await wire.receive_beyond(attendant, is_small_talk)
        assert scope.cancelled_caught
        send(b"kept")
        assert await wire.receive_beyond(attendant, is_small_talk) == b"kept"


@pytest.mark.parametrize("disturb", [Wire.interrupt, Wire.close])
async def test_what_was_read_is_not_lost_to_what_comes_next(disturb: Callable[[Wire], None]) -> None:
    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs):
        wire = Wire(ours)

        async def receive(attendant: Attendant) -> None:
            assert await wire.receive_beyond(attendant, deals_with) == b"news"

        def deals_with(data: bytes) -> bool:
            # Before the task has its turn, which is woken with these.
            trio.lowlevel.current_trio_token().run_sync_soon(disturb, wire)
            return False

        async with listening() as attendant, trio.open_nursery() as nursery:
            nursery.start_soon(receive, attendant)
            await wait_all_tasks_blocked()
            theirs.sendall(b"news")


async def test_a_failure_concerns_one_task_alone_and_leaves_no_cycle() -> None:
    class Failure(Exception):
        pass

    def fail(data: bytes) -> bool:
        raise Failure(data)

    pairs = [socket.socketpair() for _ in range(2)]
    wires = [Wire(ours) for ours, _ in pairs]
    got = []

    async def receive_other(attendant: Attendant) -> None:
        got.append(await wires[1].receive_beyond(attendant, is_small_talk))

    async with listening() as attendant, trio.open_nursery() as nursery:
        nursery.start_soon(receive_other, attendant)
        pairs[0][1].sendall(b"bad")
        gc.collect()
        gc.disable()
        try:
            with pytest.raises(Failure, match="bad"):
                await wires[0].receive_beyond(attendant, fail)
            pairs[0][0].close()
            assert not any(isinstance(item, Failure) for item in gc.get_objects())
        finally:
            gc.enable()
        pairs[1][1].sendall(b"pong")
        await wait_all_tasks_blocked()
        pairs[1][1].sendall(b"good")
    assert got == [b"good"]
    for ours, theirs in pairs:
        ours.close()
        theirs.close()


async def test_others_get_a_turn_while_many_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aep_relay.transport.attendant._SLICE", 10)
    pairs = [socket.socketpair() for _ in range(200)]
    read, seen = [], []

    def deals_with(data: bytes) -> bool:
        read.append(data)
        return True

    async def watch() -> None:
        while len(read) < len(pairs):
            await trio.lowlevel.checkpoint()
            seen.append(len(read))

    try:
        async with listening() as attendant, trio.open_nursery() as nursery:
            for ours, _ in pairs:
                nursery.start_soon(Wire(ours).receive_beyond, attendant, deals_with)
            await wait_all_tasks_blocked()
            for _, theirs in pairs:
                theirs.sendall(b"pong")
            with trio.fail_after(30):
                await watch()
            nursery.cancel_scope.cancel()
    finally:
        for sock in (sock for both in pairs for sock in both):
            sock.close()
    assert read == [b"pong"] * len(pairs)
    assert len({count for count in seen if 0 < count < len(pairs)}) >= 5
