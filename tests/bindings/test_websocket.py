from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import trio
from websockets.frames import Frame, Opcode

from aep_relay.bindings.requests import _HANDLERS
from aep_relay.hub import feeders
from aep_relay.hub.limits import Limits
from aep_relay.protocol.members import MEMBERS
from tests.bindings.served import event, serving, settle
from tests.bindings.talk import PING, alive, errors, subscribe

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.fakes.log import Log


class TestMessages:
    def test_what_can_be_asked_for_is_known_to_the_reader(self) -> None:
        assert set(_HANDLERS) <= set(MEMBERS)
        assert feeders.NAME in MEMBERS

    async def test_unknown_frames_are_ignored(self) -> None:
        async with serving() as relay:
            socket = await relay.greeted()
            for frame in (
                {"type": "from-the-future", "id": 1},
                {"type": "pong", "t": 1},
                {"type": "closing", "reason": "x"},
                {"type": "error", "code": "x"},
                {"type": "subscribed", "id": "x"},
                {"type": "replay-exhausted"},
                {"type": ""},
                b'{"type":"from-the-future","x":1e999,"y":"\\ud800"}',
                b'{"x":%b,"type":"from-the-future"}' % (b"[" * 100_000 + b"]" * 100_000),
            ):
                assert await socket.ask(frame) == []
            assert await alive(socket)

    @pytest.mark.parametrize(
        "text", [b"", b"[]", b"null", b'"x"', b"7", b"{", b'{"type":"ping"}x', b"{'a':1}", b"\xef\xbb\xbf{}"]
    )
    async def test_what_is_no_json_object(self, text: bytes) -> None:
        async with serving() as relay:
            socket = await relay.greeted()
            assert errors(await socket.ask(text)) == [("bad-json", None)]
            assert await alive(socket)

    @pytest.mark.parametrize(
        ("text", "cause"),
        [
            (b"{}", None),
            (b'{"type":null}', None),
            (b'{"type":["ping"]}', None),
            (b'{"type":"a.b"}', None),
            (event(type_="nobody.knows"), "s-0-0"),
            (event(None), "s-0-None"),
            (event(seq=-1), "s-0--1"),
            (event(0, capture="all"), "s-0-0"),
            (event(0, "", id="here"), "here"),
            (event(0, id=7), None),
            (event(0, agent=None), "s-0-0"),
            (event(0)[:-1] + b',"seq":0}', "s-0-0"),
            (event(0)[:-1] + b',"null":null}', "s-0-0"),
            (event(0)[:-1] + b',"data":' + b"[" * 400 + b"]" * 400 + b"}", "s-0-0"),
        ],
    )
    async def test_an_invalid_event_is_named(self, text: bytes, cause: str | None) -> None:
        async with serving() as relay:
            stream = await relay.stream()
            socket = await relay.greeted()
            assert errors(await socket.ask(text)) == [("invalid-event", cause)]
            assert await alive(socket)
            assert stream.events() == []

    async def test_an_event_of_just_the_limit_and_one_above_it(self) -> None:
        async with serving(Limits(max_event_bytes=1024)) as relay:
            stream = await relay.stream()
            socket = await relay.greeted()
            fits = event(subject="x" * (1024 - len(event(subject=""))))
            assert await socket.ask(fits) == []
            assert stream.events() == [fits]
            assert errors(await socket.ask(fits.replace(b'"x', b'"xx'))) == [("invalid-event", "s-0-0")]
            assert await alive(socket)

    async def test_a_frame_has_its_own_limit(self) -> None:
        async with serving(Limits(max_frame_bytes=1024)) as relay:
            socket = await relay.greeted()
            (answer,) = await socket.ask({"type": "subscribe", "id": "a", "filter": {}, "x": "x" * 1024})
            assert (answer["type"], answer["id"], answer["code"]) == ("error", "a", "limit-exceeded")
            assert "max_frame_bytes" in answer["detail"]
            assert await alive(socket)

    async def test_a_message_beyond_every_limit_ends_the_connection(self) -> None:
        async with serving(Limits(max_event_bytes=1024, max_frame_bytes=1024)) as relay:
            socket = await relay.greeted()
            assert [message["reason"] for message in await socket.ask(b" " * 2049)] == ["message-too-big"]
            assert socket.closed == 1009
            fragmented = await relay.greeted()
            fragmented.say_frame(Frame(Opcode.TEXT, b" " * 2000, fin=False))
            fragmented.say_frame(Frame(Opcode.CONT, b" " * 49))
            await settle()
            assert fragmented.heard() == [{"type": "closing", "reason": "message-too-big", "delivered": []}]
            assert fragmented.closed == 1009

    async def test_a_message_in_fragments(self) -> None:
        async with serving() as relay:
            stream = await relay.stream()
            socket = await relay.greeted()
            text = event(subject="\N{SNOWMAN}" * 3)
            socket.say_frame(Frame(Opcode.TEXT, text[:70], fin=False))
            socket.say_frame(Frame(Opcode.CONT, b"", fin=False))
            socket.say_frame(Frame(Opcode.PING, b"between"))
            socket.say_frame(Frame(Opcode.CONT, text[70:-1], fin=False))
            await settle()
            assert stream.events() == []
            socket.say_frame(Frame(Opcode.CONT, text[-1:]))
            await settle()
            assert stream.events() == [text]
            assert await alive(socket)

    @pytest.mark.parametrize("greeted", [True, False])
    async def test_binary_is_refused(self, greeted: bool) -> None:
        async with serving() as relay:
            socket = await (relay.greeted() if greeted else relay.socket())
            socket.heard()
            socket.say_frame(Frame(Opcode.BINARY, event()))
            await settle()
            first, *rest = socket.heard()
            assert errors([first]) == [("binary-unsupported", None)]
            assert [message["type"] for message in rest] == (["closing"] if greeted else [])
            assert socket.closed == 1003
            assert relay.relay.stats.received_events == 0

    @pytest.mark.parametrize("raw", [Frame(Opcode.BINARY, b"?"), Frame(Opcode.TEXT, b"\xff")])
    async def test_nothing_behind_what_ends_the_connection_is_taken_from_one_that_is_gone(
        self, raw: Frame
    ) -> None:
        async with serving() as relay:
            socket = await relay.greeted()
            said = [Frame(Opcode.TEXT, text) for text in (event(1), json.dumps(PING).encode(), event(2))]
            socket.wire.feed(b"".join(frame.serialize(mask=True) for frame in (*said[:2], raw, said[2])))
            # What it sent before can be read all the same.
            socket.wire.reset()
            await settle()
            assert relay.relay.stats.received_events == 1

    @pytest.mark.parametrize(
        "text", [b"\xff", event()[:-1] + b',"subject":"\xed\xa0\x80"}', b'{"type":"ping","t":"\xc3"}']
    )
    async def test_what_is_not_utf_8_ends_the_connection(self, text: bytes) -> None:
        async with serving() as relay:
            socket = await relay.greeted()
            assert [message["type"] for message in await socket.ask(text)] == ["closing"]
            assert socket.closed == 1007

    @pytest.mark.parametrize(
        "raw",
        [
            Frame(Opcode.TEXT, b"{}").serialize(mask=False),
            b"\xc1\x80\0\0\0\0",
            b"\x83\x80\0\0\0\0",
            b"\x80\x81\0\0\0\0x",
            b"\x88\x81\0\0\0\0\x03",
        ],
    )
    async def test_what_breaks_the_framing_ends_the_connection(self, raw: bytes) -> None:
        async with serving() as relay:
            socket = await relay.greeted()
            socket.wire.feed(raw)
            await settle()
            assert [message["reason"] for message in socket.heard()] == ["protocol-error"]
            assert socket.closed == 1002

    @pytest.mark.parametrize(
        ("frame", "code"),
        [
            ({"type": "unsubscribe"}, "invalid-frame"),
            ({"type": "unsubscribe", "id": 7}, "invalid-frame"),
            ({"type": "unsubscribe", "id": ""}, "invalid-frame"),
            ({"type": "roster"}, "invalid-frame"),
            ({"type": "roster", "id": None}, "invalid-frame"),
            (b'{"type":"roster","id":"a","id":"b"}', "invalid-frame"),
            (b'{"type":"ping","t":{"a":1,"a":2}}', "invalid-frame"),
            (b'{"type":"ping","t":' + b"[" * 300 + b"]" * 300 + b"}", "invalid-frame"),
        ],
    )
    async def test_a_frame_with_wrong_members_harms_nothing(self, frame: Any, code: str) -> None:
        async with serving() as relay:
            socket = await relay.greeted()
            await socket.ask({"type": "subscribe", "id": "kept"})
            assert errors(await socket.ask(frame)) == [(code, None)]
            await relay.post(event())
            assert socket.raw() == [event()]
            assert await alive(socket)

    @pytest.mark.parametrize("t", [None, 1, "x", 1.5, True, [1, {"a": None}], 2**70])
    async def test_pong_repeats_what_ping_says(self, t: object) -> None:
        async with serving() as relay:
            socket = await relay.greeted()
            assert await socket.ask({"type": "ping", "t": t}) == [{"type": "pong", "t": t}]
            assert await socket.ask({"type": "ping"}) == [{"type": "pong", "t": None}]

    async def test_a_websocket_ping_is_answered_as_well(self) -> None:
        async with serving() as relay:
            socket = await relay.greeted()
            socket.wire.take_sent()
            socket.say_frame(Frame(Opcode.PING, b"are you there"))
            await settle()
            assert socket.wire.take_sent() == Frame(Opcode.PONG, b"are you there").serialize(mask=False)

    async def test_the_end_of_a_message_does_not_depend_on_the_cuts(self) -> None:
        async with serving() as relay:
            stream = await relay.stream()
            socket = await relay.greeted()
            events = [event(seq, subject="\N{SNOWMAN}" * seq) for seq in range(1, 4)]
            data = b"".join(Frame(Opcode.TEXT, text).serialize(mask=True) for text in events)
            for at in range(len(data)):
                socket.wire.feed(data[at : at + 1])
            await settle()
            assert stream.events() == events


class TestEvents:
    async def test_they_go_out_as_they_came_and_to_who_sent_them_too(self) -> None:
        async with serving() as relay:
            stream = await relay.stream()
            socket = await relay.greeted()
            await socket.ask(subscribe())
            odd = b' {"id":"\\u0041",\n' + event(3).lstrip(b"{").replace(b'"id": "s-0-3", ', b"") + b" "
            socket.say(event(0), odd, event(None, None, "agent.idle"), event(None, "s", "attention.routed"))
            await settle()
            expected = [
                event(0),
                odd.strip(),
                event(None, None, "agent.idle"),
                event(None, "s", "attention.routed"),
            ]
            assert socket.raw() == expected
            assert stream.events() == [text.replace(b"\n", b"") for text in expected]

    async def test_redeliveries_pass_through_and_are_held_once(self) -> None:
        async with serving() as relay:
            stream = await relay.stream()
            socket = await relay.greeted()
            await socket.ask(event(0), event(0), event(1), event(0))
            assert stream.events() == [event(0), event(0), event(1), event(0)]
            assert (await relay.stream("?from=all&live=0")).events() == [event(0), event(1)]

    async def test_one_that_is_invalid_does_not_stop_those_behind_it(self) -> None:
        async with serving() as relay:
            stream = await relay.stream()
            socket = await relay.greeted()
            assert len(await socket.ask(event(0), b"{}", event(1), b"[]", event(2))) == 2
            assert stream.events() == [event(0), event(1), event(2)]


class TestEnd:
    async def test_the_peer_closes(self, log: Log) -> None:
        async with serving() as relay:
            socket = await relay.greeted()
            await socket.ask(subscribe(), event(0))
            socket.protocol.send_close(1000)
            for data in socket.protocol.data_to_send():
                socket.wire.feed(data)
            await settle()
            assert socket.closed == 1000
            # At once: its claims go, and who asks later does not see it.
            assert relay.relay.roster() == []
            assert relay.relay.fanout.index.groups == {}
            socket.wire.feed_end()
            await settle()
            assert socket.wire.closed
            assert relay.relay.peers == {}
            (record,) = log.records("connection closed")
            assert (record["reason"], record["received"], record["delivered"]) == ("peer", 1, 1)

    async def test_nothing_follows_the_answer_to_a_close(self) -> None:
        async with serving() as relay:
            await relay.post(*(event(seq) for seq in range(3000)))
            socket = await relay.greeted("consumer", capacity_bytes=10_000)
            socket.say(subscribe(from_="all"))
            await settle()
            socket.protocol.receive_data(socket.wire.take_sent())
            socket.protocol.send_close(1000)
            for data in socket.protocol.data_to_send():
                socket.wire.feed(data)
            await settle()
            await relay.post(event(9999))
            socket.wire.capacity_bytes = None
            await settle()
            sent = socket.wire.take_sent()
            assert sent.endswith(Frame(Opcode.CLOSE, b"\x03\xe8").serialize(mask=False))
            assert b"9999" not in sent

    @pytest.mark.parametrize(
        ("greets", "frames", "code"),
        [
            (False, [Frame(Opcode.TEXT, b"{", False), Frame(Opcode.CONT, b"}")], 1002),
            (False, [Frame(Opcode.TEXT, b"{}")], 1002),
            (True, [Frame(Opcode.TEXT, b"\xff", False), Frame(Opcode.CONT, b"")], 1007),
            (True, [Frame(Opcode.TEXT, b"\xff")], 1007),
            (True, [Frame(Opcode.BINARY, b"{}")], 1003),
        ],
    )
    async def test_the_peer_closes_behind_what_ends_it(
        self, greets: bool, frames: list[Frame], code: int
    ) -> None:
        """It is told why all the same, though both are read at once."""
        async with serving() as relay:
            socket = await (relay.greeted() if greets else relay.socket())
            frames = [*frames, Frame(Opcode.CLOSE, b"\x03\xe8")]
            socket.wire.feed(b"".join(frame.serialize(mask=True) for frame in frames))
            await settle()
            assert socket.closed == code
            socket.wire.feed_end()
            await settle()
            assert relay.relay.peers == {}

    @pytest.mark.parametrize("reset", [True, False])
    async def test_the_peer_is_gone(self, reset: bool) -> None:
        async with serving() as relay:
            socket = await relay.greeted()
            await socket.ask(subscribe(), event(0))
            if reset:
                socket.wire.reset()
            else:
                socket.wire.feed_end()
            await settle()
            assert socket.wire.closed
            assert relay.relay.peers == {}
            assert relay.relay.roster() == []
            assert relay.relay.fanout.index.groups == {}
            assert relay.service.deadlines.waiting == set()

    async def test_closing_says_what_was_delivered(self) -> None:
        async with serving() as relay:
            await relay.post(event(0, "old"), event(1, "old"))
            socket = await relay.greeted("consumer")
            await socket.ask(
                subscribe("a", filter={"session": "s"}),
                subscribe("b", filter={"type": "run.*"}),
                subscribe("c", filter={"session": "old"}, from_=[{"session": "old", "seq": 0}]),
            )
            await relay.post(
                event(3, "s", epoch=2), event(7, "t", "run.started"), event(4, "s", "run.finished", epoch=2)
            )
            socket.heard()
            relay.relay.close(next(iter(relay.relay.peers.values())), "shutdown", 1001)
            await settle()
            (closing,) = socket.heard()
            assert (closing["type"], closing["reason"]) == ("closing", "shutdown")
            assert sorted(closing["delivered"], key=str) == [
                {"sub": "a", "session": "s", "epoch": 2, "seq": 4},
                {"sub": "b", "session": "s", "epoch": 2, "seq": 4},
                {"sub": "b", "session": "t", "epoch": 0, "seq": 7},
                {"sub": "c", "session": "old", "epoch": 0, "seq": 1},
            ]
            assert socket.closed == 1001

    @pytest.mark.parametrize(
        ("raw", "reason"),
        [
            (Frame(Opcode.BINARY, b"").serialize(mask=True), "binary-unsupported"),
            (Frame(Opcode.TEXT, b"\xff").serialize(mask=True), "not-utf-8"),
            (Frame(Opcode.TEXT, b" " * 10_000).serialize(mask=True), "message-too-big"),
            (Frame(Opcode.TEXT, b"{}").serialize(mask=False), "protocol-error"),
            (b"", "ping-timeout"),
        ],
        ids=["binary", "not UTF-8", "too big", "not masked", "silent"],
    )
    async def test_every_deliberate_close_says_it(
        self, raw: bytes, reason: str, autojump_clock: MockClock
    ) -> None:
        async with serving(Limits(max_event_bytes=2048, max_frame_bytes=2048)) as relay:
            socket = await relay.greeted()
            await socket.ask(subscribe("a"))
            await relay.post(event(5))
            if raw:
                socket.wire.feed(raw)
            await trio.sleep(1 if raw else 95)
            closing = socket.heard()[-1]
            assert (closing["type"], closing["reason"]) == ("closing", reason)
            assert closing["delivered"] == [{"sub": "a", "session": "s", "epoch": 0, "seq": 5}]

    async def test_before_hello_nothing_but_a_close_is_said(self) -> None:
        async with serving() as relay:
            socket = await relay.socket()
            relay.relay.close(next(iter(relay.relay.peers.values())), "shutdown", 1001)
            await settle()
            assert (socket.heard(), socket.closed) == ([], 1001)


async def test_each_connection_has_one_line_at_its_beginning_and_one_at_its_end(log: Log) -> None:
    async with serving() as relay:
        for number in range(3):
            socket = await relay.greeted("both", f"agent-{number}")
            await socket.ask(subscribe(), *(event(seq) for seq in range(10)))
            socket.wire.feed_end()
        refused = await relay.socket()
        await refused.ask({"type": "ping"})
        refused.wire.feed_end()
        silent = await relay.socket()
        silent.wire.feed_end()
        stream = await relay.stream()
        stream.wire.feed_end()
        await settle()
    found: dict[int, list[dict[str, Any]]] = {}
    for record in log.records():
        found.setdefault(record["connection"], []).append(record)
    lines = list(found.values())
    assert [[record["event"] for record in pair] for pair in lines] == [
        ["connection opened", "connection closed"]
    ] * 6
    assert [pair[1]["reason"] for pair in lines] == ["peer", "peer", "peer", "hello-required", "peer", "peer"]
    for pair in lines:
        for record in pair:
            assert record["remote"] == "memory:peer"
    (opened, closed) = lines[1]
    assert (opened["role"], opened["agent"], opened["binding"]) == ("both", "agent-1", "websocket")
    assert (closed["received"], closed["delivered"], closed["dropped"]) == (10, 10, 0)
    assert sorted(pair[1]["binding"] for pair in lines) == ["sse", *["websocket"] * 5]
