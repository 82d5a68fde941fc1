"""Large Events: in order with all others of their connection, while others have their turn."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from aep_relay.hub.limits import Limits
from tests.bindings.served import Served, event, serving
from tests.fakes.turns import prepared as prepared

if TYPE_CHECKING:
    pass


def mixed() -> list[bytes]:
    data = {"kind": "permission", "prompt": "x" * 1000}
    return [
        event(seq, capture="full", type_="attention.requested", data=data if seq % 2 else None)
        for seq in range(6)
    ]


async def emitted(relay: Served, way: str) -> None:
    if way == "batch":
        assert (await relay.post(*mixed())).status == 202
    elif way == "single":
        for raw in mixed():
            assert (await relay.post(raw)).status == 202
    else:
        socket = await relay.greeted("emitter")
        assert await socket.ask(*mixed(), {"type": "ping", "t": 1}) == [{"type": "pong", "t": 1}]


@pytest.mark.parametrize("way", ["single", "batch", "socket"])
async def test_they_come_out_in_order_at_every_ceiling(way: str, prepared: list[str]) -> None:
    async with serving() as relay:
        bare, cut = await relay.stream(), await relay.stream("?capture=metadata")
        await emitted(relay, way)
        assert bare.events() == mixed()
        texts = [json.loads(text) for text in cut.events()]
        assert [(text["seq"], text["capture"]) for text in texts] == [(seq, "metadata") for seq in range(6)]
        assert prepared == ["s-0-1", "s-0-3", "s-0-5"]


async def test_one_that_is_refused_is_answered_in_order(prepared: list[str]) -> None:
    async with serving(Limits(max_claims=1)) as relay:
        socket = await relay.greeted("emitter")
        answers = await socket.ask(
            event(0), event(1, "other", data={"x": "x" * 1000}), {"type": "ping", "t": 1}
        )
        assert [answer["type"] for answer in answers] == ["error", "pong"]
        assert answers[0]["cause"] == "other-0-1"
        assert prepared == ["other-0-1"]
        assert relay.relay.stats.received_events == 1
