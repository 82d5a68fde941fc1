"""What ``tail-files`` does about lines that a relay does not take."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from aep_relay.cli.support import shipping
from aep_relay.cli.support.shipping import Shipper
from aep_relay.client.emitting import BadLine
from aep_relay.client.errors import Refused, TimedOut
from aep_relay.client.target import Target, resolve
from aep_relay.journal.following import Reading
from aep_relay.journal.tail import Source
from aep_relay.protocol.adapter import Adapter
from aep_relay.protocol.event import decode
from aep_relay.protocol.jsonl import Placed
from tests.protocol.samples import MINIMAL, text


class Relay:
    """Takes no Event whose id is in ``bad``, and says so in its way."""

    def __init__(self, *, names_the_line: bool, status: int = 400) -> None:
        self.bad: set[str] = set()
        self.taken: list[str] = []
        self.outages = 0
        self._names_the_line = names_the_line
        self._status = status

    async def emit(self, events: Sequence[bytes]) -> None:
        if self.outages:
            self.outages -= 1
            raise TimedOut("nobody there")
        ids = [decode(event).id for event in events]
        refused = Refused("invalid-event", "no", status=self._status)
        for index, id_ in enumerate(ids):
            if id_ in self.bad:
                raise BadLine(refused, index) if self._names_the_line else refused
        self.taken += ids


@pytest.fixture
def target() -> Target:
    return resolve("http://127.0.0.1:1", None, {})[0]


async def ship(relay: Relay, target: Target, monkeypatch: pytest.MonkeyPatch) -> tuple[Shipper, Reading]:
    @asynccontextmanager
    async def asking(_: Target) -> AsyncIterator[None]:
        yield

    monkeypatch.setattr(shipping, "asking", asking)
    monkeypatch.setattr(shipping, "Emitter", lambda _, waiting: relay)
    reading = Reading(None, Adapter(), 10_000)
    shipper = Shipper(target, reading)
    lines = [Placed(number, number, text(MINIMAL, id=str(number), seq=number)) for number in range(20)]
    await shipper.accept(Source("a", (0, 0)), lines)
    return shipper, reading


@pytest.mark.parametrize("names_the_line", [True, False])
@pytest.mark.parametrize("bad", [{"0"}, {"7", "8", "19"}, {str(number) for number in range(20)}])
async def test_a_bad_line_is_left_out_and_holds_up_nothing(
    names_the_line: bool, bad: set[str], target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay = Relay(names_the_line=names_the_line)
    relay.bad = bad
    shipper, reading = await ship(relay, target, monkeypatch)
    assert [id_ for id_ in map(str, range(20)) if id_ not in bad] == list(dict.fromkeys(relay.taken))
    assert (shipper.accepted, reading.refused_lines) == (20 - len(bad), len(bad))


@pytest.mark.parametrize("status", [401, 403, 404, 426])
async def test_what_is_not_about_a_line_ends_it(
    status: int, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay = Relay(names_the_line=False, status=status)
    relay.bad = {"3"}
    with pytest.raises(Refused):
        await ship(relay, target, monkeypatch)


async def test_an_outage_is_waited_for(
    target: Target, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    relay = Relay(names_the_line=True)
    relay.outages = 2
    shipper, _ = await ship(relay, target, monkeypatch)
    assert shipper.accepted == 20
    assert capsys.readouterr().err.count("nobody there; trying again") == 2
