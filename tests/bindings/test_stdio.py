"""The relay at the end of a pipe, whatever comes through it: others have their turn."""

from __future__ import annotations

import json
import os

import pytest
import trio

from aep_relay.bindings import descriptors
from aep_relay.bindings.stdio import StdioProcess, Wanted
from aep_relay.config import Config
from aep_relay.protocol.adapter import Adapter
from aep_relay.protocol.dialect import DialectMapper
from aep_relay.protocol.filters import EMPTY
from aep_relay.protocol.stdio import Dialect
from tests.bindings.served import Served
from tests.fakes.turns import prepared as prepared
from tests.fakes.turns import set_aside as set_aside
from tests.fakes.turns import turns as turns
from tests.protocol.samples import MINIMAL, text


async def piped(given: bytes, dialect: Dialect | None = None) -> bytes:
    """Return what is written in ``dialect`` for ``given``, which is read to its end."""
    (reading, far), (near, writing), nothing = os.pipe(), os.pipe(), os.open(os.devnull, os.O_WRONLY)
    with trio.fail_after(30):
        mapper = DialectMapper(agent="a", epoch_seed=1, adapter=Adapter())
        process = StdioProcess(
            Wanted(EMPTY, dialect=dialect), mapper, stdin=reading, stdout=writing, stderr=nothing
        )
        written = bytearray()

        async def feed() -> None:
            await descriptors.write(far, given)
            os.close(far)

        async def drain() -> None:
            while data := await descriptors.read(near):
                written.extend(data)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(feed)
            async with trio.open_nursery() as draining:
                draining.start_soon(drain)
                assert await process.run(Served(nursery, Config()).service) == 0
                os.close(writing)
            nursery.cancel_scope.cancel()
    for descriptor in (reading, near, nothing):
        os.close(descriptor)
    return bytes(written)


def line(number: int, **changes: object) -> bytes:
    return text(MINIMAL, id=f"e-{number}", seq=number, **changes) + b"\n"


@pytest.mark.parametrize("given", [b"x\n", b"{}\n", line(1, aep="1.0"), line(1)])
async def test_others_have_their_turn_whatever_comes(given: bytes, turns: list[None]) -> None:
    await piped(given * 50)
    assert len(turns) >= 50


async def test_others_have_their_turn_when_nothing_comes_at_length(turns: list[None]) -> None:
    size = descriptors.READ_BYTES
    assert await piped(b"\n" * size + line(1)) == line(1)
    assert len(turns) >= size // descriptors.PIECE_BYTES


async def test_all_that_comes_goes_out_in_turns(turns: list[None]) -> None:
    given = b"".join(line(number) for number in range(20))
    assert await piped(given) == given
    assert len(turns) >= 20


async def test_large_ones_are_taken_in_in_steps_and_in_order(prepared: list[str]) -> None:
    given = line(1) + line(2, data={"text": "x" * 500}) + line(3)
    assert await piped(given) == given
    assert prepared == ["e-2"]


async def test_what_takes_long_is_read_and_written_aside_and_in_order(set_aside: list[bytes]) -> None:
    long = line(2, data={"text": "x" * 500})
    written = await piped(line(1) + long + b'{"text":"' + b"x" * 500 + b'"}\n' + line(3), Dialect.STDIO)
    assert [json.loads(each)["id"] for each in written.splitlines()] == ["e-1", "e-2", "e-3"]
    assert set_aside[0] == long[:-1]
    assert any(long in data for data in set_aside[1:])
