from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import trio

from aep_relay.bindings import descriptors
from aep_relay.bindings.descriptors import Teller


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


async def test_what_nobody_reads_is_dropped_and_said_to_be(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(descriptors, "MAX_UNTOLD_BYTES", 300_000)
    reading, writing = pipe
    teller = Teller(writing)
    lines = [b"%099d\n" % number for number in range(4000)]
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(teller.run)
            for line in lines:
                teller.tell(line)
            await teller.finish(0.01)
            found = b""
            while len(found) < 300_000:
                found += await descriptors.read(reading)
            await teller.finish(20)
            teller.tell(b"again\n")
            await teller.finish(20)
            nursery.cancel_scope.cancel()
    assert found == b"".join(lines[:3000])
    assert await descriptors.read(reading) == b"aep-relay: 1000 lines could not be written here\nagain\n"


async def test_a_descriptor_that_is_gone_is_told_nothing() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    teller = Teller(writing)
    teller.tell(b"one\n")
    with trio.fail_after(20):
        await teller.run()
        teller.tell(b"two\n")
        await teller.finish(20)
    os.close(writing)
