"""What an emitter says of an outage, and that it is over it in the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest
import trio

from aep_relay.client.emitting import UNTOLD_SECONDS, Emitter
from aep_relay.client.errors import ClientError, Unreachable
from aep_relay.client.http import Client, Response

if TYPE_CHECKING:
    from trio.testing import MockClock


class Absent:
    """A relay that is not there until ``until_seconds``."""

    def __init__(self, until_seconds: float) -> None:
        self._until = trio.current_time() + until_seconds
        self.attempts = 0

    async def ask(self, *_: object, **__: object) -> Response:
        self.attempts += 1
        await trio.lowlevel.checkpoint()
        if trio.current_time() < self._until:
            raise Unreachable("nobody there")
        return Response(202, {}, b"")


async def emit(relay: Absent, batches: int = 1) -> list[str]:
    told: list[str] = []

    def waiting(error: ClientError) -> None:
        told.append(f"{error.message} {trio.current_time() - begun <= 2 * UNTOLD_SECONDS}")

    begun = trio.current_time()
    emitter = Emitter(cast("Client", relay), 60.0, waiting)
    for _ in range(batches):
        await emitter.emit([b"{}"])
    return told


async def test_an_outage_is_told_once_and_soon(autojump_clock: MockClock) -> None:
    relay = Absent(30.0)
    assert await emit(relay, batches=3) == ["nobody there True"]
    assert relay.attempts > 5


async def test_a_short_one_is_not_told(autojump_clock: MockClock) -> None:
    relay = Absent(0.2)
    assert await emit(relay) == []
    assert relay.attempts > 1


async def test_what_ends_in_failure_is_told_before(autojump_clock: MockClock) -> None:
    told: list[ClientError] = []
    with pytest.raises(Unreachable):
        await Emitter(cast("Client", Absent(100.0)), 60.0, told.append).emit([b"{}"])
    assert len(told) == 1
