"""What comes in one read comes to what it would have come to message by message."""

from __future__ import annotations

import itertools
from typing import Any
from unittest.mock import patch

import pytest
import trio
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from aep_relay.bindings import websocket
from aep_relay.hub.limits import Limits
from aep_relay.protocol.event import decode_together
from aep_relay.transport import large
from tests.bindings.served import Served, Socket, command, event, serving

Message = dict[str, object] | bytes

LARGE_BYTES = 600
LIMITS = Limits(buffer_events=7, max_claims=2, max_event_bytes=1500)

messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(event, st.integers(0, 12), st.sampled_from(["s", "s", "s", "t", "u"])),
    st.builds(lambda seq: event(seq, data={"text": "\n\\ Füße"}), st.integers(0, 12)),
    st.builds(lambda seq: event(seq, zz="more"), st.integers(0, 12)),
    st.builds(lambda seq: event(seq, session=None, type_="agent.online"), st.none()),
    st.builds(lambda seq: event(None, type_="attention.routed", id=f"r-{seq}"), st.integers(0, 3)),
    st.sampled_from(
        [
            event(3, severity="loud"),
            event(3, subject="x" * 2000),
            event(3)[:-1],
            event(3) + b"\n" + event(4),
            b"[]",
            b"{}",
            b'{"type":"later","x":1}',
            command("nowhere"),
            {"type": "ping", "t": 7},
            {"type": "roster", "id": "q"},
        ]
    ),
)


runs = st.builds(
    lambda session, first, steps, size: [
        event(first + at, session, data={"text": "x" * (size if at == 2 else 1)})
        for at in itertools.accumulate(steps, initial=0)
    ],
    st.sampled_from(["s", "s", "s", "t"]),
    st.integers(0, 40),
    st.lists(st.sampled_from([1, 1, 1, 1, 3, 0, -1]), min_size=1, max_size=9),
    st.sampled_from([1, 1, LARGE_BYTES]),
)
"""Mostly in order, and now and then an Event among them that others have a turn before."""
refused_alone = st.sampled_from(
    [
        event(3, "beyond"),
        event(4, "claims"),
        command("nowhere"),
        event(None, type_="attention.routed", id="r"),
        event(None, session=None, type_="agent.online"),
    ]
).map(lambda text: [text])
in_order: st.SearchStrategy[list[Message]] = st.lists(st.one_of(runs, runs, refused_alone), max_size=6).map(
    lambda parts: [event(0, "s"), event(0, "t"), *itertools.chain(*parts)]
)
"""What can be decoded together, all of it: two sessions are claimed, as many as may be."""


async def outcome(said: list[Message], *, at_once: bool) -> tuple[list[Any], list[bytes], dict[str, object]]:
    """The answers, what a consumer was sent, and the counters."""
    with patch.object(large, "LARGE_BYTES", LARGE_BYTES):
        return await _outcome(said, at_once=at_once)


async def _outcome(said: list[Message], *, at_once: bool) -> tuple[list[Any], list[bytes], dict[str, object]]:
    async with serving(LIMITS) as relay:
        stream = await relay.stream()
        socket = await relay.greeted()
        if at_once:
            answers = await socket.ask(*said)
        else:
            answers = [answer for message in said for answer in await socket.ask(message)]
        stats = relay.relay.stats
        counts = {
            name: getattr(stats, name) for name in ("received_events", "admitted_events", "received_bytes")
        }
        (peer,) = [peer for peer in relay.relay.peers.values() if peer.binding == "websocket"]
        counts["said"] = peer.received_events
        return answers, stream.events(), counts | {"held": relay.relay.store.events}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(messages, max_size=20) | in_order)
@example([event(0), *(event(seq) for seq in range(1, 9)), event(0, "t"), event(0, "u"), event(9), event(10)])
def test_together_or_one_by_one(said: list[Message]) -> None:
    assert trio.run(lambda: outcome(said, at_once=True)) == trio.run(lambda: outcome(said, at_once=False))


async def sent(relay: Served, socket: Socket, said: list[bytes]) -> list[Any]:
    return await socket.ask(*said, {"type": "ping", "t": 1})


async def test_events_are_decoded_together_until_one_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int | None] = []

    def noted(texts: list[bytes], *rest: Any) -> Any:
        events = decode_together(texts, *rest)
        counts.append(None if events is None else len(events))
        return events

    monkeypatch.setattr("aep_relay.bindings.websocket.decode_together", noted)
    monkeypatch.setattr(websocket, "ALONE_TEXTS", 4)
    async with serving() as relay:
        socket = await relay.greeted()
        assert await sent(relay, socket, [event(seq) for seq in range(5)]) == [{"type": "pong", "t": 1}]
        assert counts == [5]
        odd = [event(5), event(6, severity="loud"), event(7)]
        answers = await sent(relay, socket, odd)
        assert [answer.get("cause") for answer in answers] == ["s-0-6", None]
        assert counts == [5, None]
        await sent(relay, socket, [event(seq) for seq in range(8, 12)])
        assert counts == [5, None]
        await sent(relay, socket, [event(seq) for seq in range(12, 16)])
        assert counts == [5, None, 4]
        assert relay.relay.store.events == 15
