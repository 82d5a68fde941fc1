from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing

from aep_relay.bindings.pipe import Pipe
from aep_relay.hub.limits import Limits
from aep_relay.hub.relay import Relay
from aep_relay.protocol.filters import EMPTY
from tests.hub.build import event


class Reader:
    """The other end of a pipe: takes a write when it is let to."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.open = trio.Event()
        self.fails = False

    async def write(self, data: bytes) -> None:
        await self.open.wait()
        if self.fails:
            raise BrokenPipeError
        self.writes.append(data)


class Piped:
    """A relay with one consumer on a pipe."""

    def __init__(self, **limits: int) -> None:
        self.relay = Relay(dataclasses.replace(Limits(), **limits))
        self.reader = Reader()
        self.pipe = Pipe(self.relay, "stdio", self.reader.write)
        self.relay.subscribe(self.pipe.peer, "s", EMPTY, None)

    def ingest(self, *numbers: int) -> None:
        for number in numbers:
            self.relay.ingest(event(f"e-{number}", number))
        while self.relay.flush():
            pass


@pytest.fixture
async def nursery() -> AsyncIterator[trio.Nursery]:
    async with trio.open_nursery() as nursery:
        yield nursery
        nursery.cancel_scope.cancel()


async def test_one_write_is_under_way_and_the_next_takes_the_rest(nursery: trio.Nursery) -> None:
    piped = Piped()
    nursery.start_soon(piped.pipe.run)
    for number in range(4):
        piped.ingest(number)
        await trio.testing.wait_all_tasks_blocked()
    assert piped.pipe.backlog_bytes > 0
    piped.reader.open.set()
    await piped.pipe.finish()
    assert [data.count(b"\n") for data in piped.reader.writes] == [1, 3]
    assert piped.pipe.backlog_bytes == 0


async def test_waiting_for_the_backlog(nursery: trio.Nursery) -> None:
    piped = Piped()
    nursery.start_soon(piped.pipe.run)
    piped.ingest(*range(10))
    with trio.move_on_after(0.01) as waiting:
        await piped.pipe.below(100)
    assert waiting.cancelled_caught
    piped.reader.open.set()
    with trio.fail_after(5):
        await piped.pipe.below(100)
    assert piped.reader.writes


async def test_a_replay_is_written_before_the_end(nursery: trio.Nursery) -> None:
    piped = Piped()
    piped.reader.open.set()
    piped.ingest(*range(500))
    late = Pipe(piped.relay, "stdio", piped.reader.write)
    piped.reader.writes.clear()
    piped.relay.subscribe(late.peer, "s", EMPTY, None, "all")
    nursery.start_soon(late.run)
    with trio.fail_after(5):
        await late.finish()
    assert b"".join(piped.reader.writes).count(b"\n") == 500


async def test_a_pipe_that_breaks(nursery: trio.Nursery) -> None:
    piped = Piped()
    piped.reader.fails = True
    piped.reader.open.set()
    nursery.start_soon(piped.pipe.run)
    piped.ingest(1)
    with trio.fail_after(5):
        await piped.pipe.over.wait()
        await piped.pipe.finish()
    piped.ingest(2)
    assert (piped.pipe.reason, piped.pipe.peer.closing) == ("broken", "gone")
    piped.pipe.detach()
    piped.pipe.detach()
    assert piped.relay.peers == {}


async def test_a_reader_that_falls_too_far_behind_is_ended(nursery: trio.Nursery) -> None:
    piped = Piped(soft_limit_bytes=1000, hard_limit_bytes=3000)
    nursery.start_soon(piped.pipe.run)
    for number in range(40):
        piped.ingest(number)
    assert piped.pipe.reason == "slow-consumer"
    assert piped.pipe.over.is_set()


async def test_a_reader_that_pauses_is_not_taken_for_gone(nursery: trio.Nursery) -> None:
    piped = Piped()
    nursery.start_soon(piped.pipe.run)
    piped.ingest(1)
    await trio.testing.wait_all_tasks_blocked()
    piped.ingest(2)
    piped.relay.abort_stalled(0.0)
    piped.relay.abort_stalled(1000.0)
    assert piped.pipe.reason is None
    piped.reader.open.set()
    await piped.pipe.finish()
    assert len(piped.reader.writes) == 2
    piped.pipe.abort("gone")
    assert piped.pipe.reason == "gone"


async def test_a_translation(nursery: trio.Nursery) -> None:
    piped = Piped()
    piped.reader.open.set()
    piped.pipe.translate = bytes.upper
    nursery.start_soon(piped.pipe.run)
    piped.pipe.peer.push(b"hello\n")
    await piped.pipe.finish()
    assert piped.reader.writes == [b"HELLO\n"]
