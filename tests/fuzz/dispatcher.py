"""The property of the WebSocket dispatcher: a relay with others on it, and one peer of whom everything may come.

The first byte of an input says what the peer is like; the rest are its frames, spelled as in ``framing`` or raw.
"""

from __future__ import annotations

import json
from typing import Any, cast

import trio
from trio.testing import MockClock
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.uri import parse_uri

from aep_relay.hub.limits import Limits
from tests.bindings.served import BEARER, TOKEN, Served, Socket, event, hello, serving, settle
from tests.fakes.wire import MemoryWire
from tests.fuzz.framing import frames_of
from tests.hardening.client import said
from tests.hardening.inside import Log

LIMITS = Limits(
    max_event_bytes=2048,
    max_frame_bytes=1024,
    soft_limit_bytes=4096,
    hard_limit_bytes=16_384,
    max_subscriptions=3,
    max_claims=3,
    buffer_events=20,
)
GREETED, RAW, TRUSTED, SLOW = 1, 2, 4, 8
"""Has exchanged hellos; its frames are raw; has a token, so that it may command; reads only at the end."""
_CAPACITY_BYTES = 1500
HELD, CLAIMED = "s", "t"
"""The sessions that the relay has: one that nobody claims, and one that takes ``control.cancel``."""


def websocket(data: bytes) -> None:
    """Whatever a peer sends, it is answered in whole frames, and others go on as if nothing was."""
    trio.run(_websocket, data, clock=MockClock(autojump_threshold=0))


async def _websocket(data: bytes) -> None:
    log = Log()
    mode = data[0] if data else 0
    headers = BEARER if mode & TRUSTED else {}
    async with serving(LIMITS, token=TOKEN if mode & TRUSTED else None) as relay:
        relay.service.log = cast(Any, log)
        watcher = await relay.greeted("consumer", "watcher", headers=headers)
        await watcher.ask({"type": "subscribe", "id": "w", "filter": {"session": "mark"}})
        owner = await relay.greeted(
            "emitter", "owner", {"control": {"accepts": ["control.cancel"]}}, headers=headers
        )
        await owner.ask(event(1, CLAIMED))
        assert (await relay.post(event(1, HELD), event(2, HELD), headers=headers)).status == 202
        wire, protocol = _upgraded(relay, headers)
        await _say(wire, mode, data[1:])
        assert (await relay.post(event(1, "mark"), headers=headers)).status == 202
        assert [json.loads(text)["seq"] for text in watcher.raw()] == [1]
        _check_commands(owner)
        wire.capacity_bytes = None
        await settle()
        wire.feed_end()
        await settle()
        _check_answers(protocol, wire.take_sent())
        await trio.sleep(5)
        _check_nothing_is_left(relay)
        assert log.errors == []


def _upgraded(relay: Served, headers: dict[str, str]) -> tuple[MemoryWire, ClientProtocol]:
    wire = relay.connect()
    protocol = ClientProtocol(parse_uri("ws://localhost/socket"), max_size=None)
    handshake = protocol.connect()
    handshake.headers.update(headers)
    protocol.send_request(handshake)
    wire.feed(b"".join(protocol.data_to_send()))
    return wire, protocol


async def _say(wire: MemoryWire, mode: int, data: bytes) -> None:
    if mode & GREETED:
        wire.feed(said(hello("both", "fuzz", {"control": {"accepts": ["control.cancel"]}})))
    await settle()
    if mode & SLOW:
        wire.capacity_bytes = _CAPACITY_BYTES
    if mode & RAW:
        wire.feed(data)
    else:
        for piece in frames_of(data):
            wire.feed(piece)
    await settle()


def _check_commands(owner: Socket) -> None:
    """Who claims a session gets commands, and what the relay says, and nothing else."""
    for message in owner.heard():
        assert message["type"] in ("control.cancel", "attention.routed"), message


def _check_nothing_is_left(relay: Served) -> None:
    hub = relay.relay
    assert sorted(str(peer.agent) for peer in hub.peers.values()) == ["owner", "watcher"]
    assert len(hub.claims) == 1
    assert len(hub.fanout.index.groups) == 1


def _check_answers(protocol: ClientProtocol, data: bytes) -> None:
    protocol.receive_data(data)
    response, *found = protocol.events_received()
    assert isinstance(response, Response)
    assert response.status_code == 101
    assert protocol.parser_exc is None, protocol.parser_exc
    for item in found:
        assert isinstance(item, Frame)
        if item.opcode is Opcode.TEXT:
            assert item.fin
            assert isinstance(json.loads(bytes(item.data)), dict)
        else:
            assert item.opcode in (Opcode.PONG, Opcode.CLOSE)
