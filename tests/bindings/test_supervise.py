"""What a supervised process says, however much of it: others have their turn."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator

import pytest
import trio
import trio.testing

from aep_relay.bindings import descriptors
from aep_relay.bindings.pipe import Pipe
from aep_relay.bindings.supervise import Supervisor, Task
from aep_relay.config import Config
from aep_relay.protocol.adapter import Adapter
from aep_relay.protocol.dialect import DialectMapper
from aep_relay.protocol.intake import Intake
from aep_relay.protocol.jsonl import LineReader
from aep_relay.protocol.stdio import Dialect
from aep_relay.protocol.supervision import Supervised
from tests.bindings.served import Served
from tests.fakes.turns import prepared as prepared
from tests.fakes.turns import set_aside as set_aside
from tests.fakes.turns import turns as turns
from tests.protocol.samples import MINIMAL, text
from tests.protocol.test_intake import STDIO

EPOCH = 1_735_689_600_000


class Talking:
    """A supervisor, and the ends of its process's streams."""

    def __init__(self, nursery: trio.Nursery, stderr: int) -> None:
        self.service = Served(nursery, Config()).service
        mapper = DialectMapper(agent="a", epoch_seed=EPOCH, adapter=Adapter())
        self.supervisor = Supervisor(Task(["true"], "a", "s_8f2c", dialect=Dialect.AEP), mapper, stderr)
        intake = Intake(mapper, self.service.limits.max_event_bytes)
        self.supervised = Supervised(intake, "s_8f2c", "a", EPOCH, self.supervisor._refused)
        self.pipe = Pipe(self.service.relay, "run", self._write)

    async def _write(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint()

    async def says(self, data: bytes) -> None:
        """Have it write ``data`` and end."""
        far, near = trio.testing.memory_stream_pair()
        await far.send_all(data)
        await far.aclose()
        reader = LineReader(self.service.limits.max_event_bytes)
        await self.supervisor._read(self.service, self.pipe, near, self.supervised, reader)

    async def complains(self, data: bytes) -> None:
        """Have it write ``data`` to its standard error and end."""
        far, near = trio.testing.memory_stream_pair()
        await far.send_all(data)
        await far.aclose()
        await self.supervisor._pass_through(near)


@pytest.fixture
def stderr() -> Iterator[int]:
    descriptor = os.open(os.devnull, os.O_WRONLY)
    yield descriptor
    os.close(descriptor)


@pytest.fixture
async def talking(stderr: int) -> AsyncIterator[Talking]:
    async with trio.open_nursery() as nursery:
        yield Talking(nursery, stderr)
        nursery.cancel_scope.cancel()


def line(number: int, **changes: object) -> bytes:
    return text(MINIMAL, id=f"e-{number}", seq=number, **changes) + b"\n"


@pytest.mark.parametrize("said", [b"x\n", b"{}\n", line(1, aep="1.0"), line(1)])
async def test_others_have_their_turn_whatever_it_says(
    said: bytes, talking: Talking, turns: list[None]
) -> None:
    await talking.says(said * 50)
    assert len(turns) >= 50


async def test_others_have_their_turn_when_it_says_nothing_at_length(
    talking: Talking, turns: list[None]
) -> None:
    await talking.says(b"\n" * descriptors.READ_BYTES)
    assert len(turns) == descriptors.READ_BYTES // descriptors.PIECE_BYTES
    turns.clear()
    await talking.complains(b"\n" * descriptors.READ_BYTES)
    assert len(turns) == descriptors.READ_BYTES // descriptors.PIECE_BYTES


@pytest.mark.parametrize("said", [b"x\n", b"{}\n", b'{"type":"session.error"}\n'])
async def test_others_have_their_turn_whatever_it_complains_of(
    said: bytes, talking: Talking, turns: list[None]
) -> None:
    await talking.complains(said * 50)
    assert len(turns) >= 50
    assert talking.supervisor.complaints == (50 if b"session.error" in said else 0)


async def test_what_it_said_is_on_its_way_before_others_have_their_turn(
    talking: Talking, turns: list[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[tuple[str, int]] = []
    flush, ingest = talking.service.flush, talking.service.relay.ingest

    async def noted() -> None:
        taken.append(("flushed", len(turns)))
        await flush()

    def noted_too(*of: object) -> object:
        taken.append(("ingested", len(turns)))
        return ingest(*of)  # type: ignore[arg-type]

    monkeypatch.setattr(talking.service, "flush", noted)
    monkeypatch.setattr(talking.service.relay, "ingest", noted_too)
    await talking.says(b"".join(line(number) for number in range(10)))
    for turn in range(10):
        assert [what for what, when in taken if when == turn] == ["ingested", "flushed"]
    assert talking.supervisor.accepted_events == 10


async def test_what_was_read_is_taken_in_though_the_time_is_over(talking: Talking, turns: list[None]) -> None:
    far, near = trio.testing.memory_stream_pair()
    await far.send_all(b"".join(line(number) for number in range(100)))
    reader = LineReader(talking.service.limits.max_event_bytes)
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                talking.supervisor._read, talking.service, talking.pipe, near, talking.supervised, reader
            )
            while not turns:
                await trio.lowlevel.checkpoint()
            scope.cancel()
    assert talking.supervisor.accepted_events == 100


async def test_large_ones_are_taken_in_in_steps_and_in_order(talking: Talking, prepared: list[str]) -> None:
    await talking.says(line(1) + line(2, data={"text": "x" * 500}) + line(3))
    assert prepared == ["e-2"]
    buffer = talking.service.relay.store.get("s_8f2c")
    assert buffer is not None
    assert [event.id for event in buffer._items] == ["e-1", "e-2", "e-3"]


async def test_what_takes_long_is_read_aside_and_in_order(talking: Talking, set_aside: list[bytes]) -> None:
    lines = [
        text(STDIO, id="1"),
        text(STDIO, id="2", payload={"text": "x" * 500}),
        b'{"text":"' + b"x" * 500 + b'"}',
        text(STDIO, id="3"),
    ]
    await talking.says(b"\n".join(lines) + b"\n")
    assert set_aside == lines[1:3]
    buffer = talking.service.relay.store.get("s-1")
    assert buffer is not None
    assert [event.id for event in buffer._items] == ["1", "2", "3"]
    assert talking.supervisor.refused_lines == 1
