from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import trio
from websockets.frames import Frame, Opcode

from aep_relay.bindings.websocket import _HANDLERS
from aep_relay.hub import feeders
from aep_relay.hub.limits import Limits
from aep_relay.protocol.members import MEMBERS
from tests.bindings.served import Socket, event, hello, request, serving, settle, take_answer

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.bindings.conftest import Log

PING = {"type": "ping", "t": 7}
PONG = {"type": "pong", "t": 7}


async def alive(socket: Socket) -> bool:
    """Say whether the connection still works."""
    return await socket.ask(PING) == [PONG] and socket.closed is None


def errors(messages: list[Any]) -> list[tuple[str, str | None]]:
    """Return code and cause of each message, which all have to be errors."""
    for message in messages:
        assert message["type"] == "error", message
        assert isinstance(message["detail"], str)
        assert message["detail"]
    return [(message["code"], message.get("cause")) for message in messages]


class TestHandshake:
    async def test_bytes_behind_it_are_not_lost(self) -> None:
        async with serving() as relay:
            socket = Socket(relay.connect())
            handshake = socket.protocol.connect()
            handshake.path = "/socket"
            socket.protocol.send_request(handshake)
            (head,) = socket.protocol.data_to_send()
            text = json.dumps(hello()).encode()
            socket.wire.feed(head + Frame(Opcode.TEXT, text).serialize(mask=True))
            await settle()
            assert [message["type"] for message in socket.heard()] == ["hello"]

    @pytest.mark.parametrize(
        ("headers", "status"),
        [
            ({"Sec-WebSocket-Version": "12"}, 426),
            ({"Sec-WebSocket-Key": "short"}, 400),
            ({"Sec-WebSocket-Key": "", "Sec-WebSocket-Version": ""}, 426),
            ({"X": "y" * 9000}, 400),
        ],
    )
    async def test_one_that_is_malformed_is_refused(self, headers: dict[str, str], status: int) -> None:
        async with serving() as relay:
            good = {
                "Upgrade": "websocket",
                "Connection": "Upgrade",
                "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
                "Sec-WebSocket-Version": "13",
            }
            answer = await relay.ask("GET", "/socket", None, {**good, **headers})
            assert answer.refusal[0] == status
            if status == 426:
                assert answer.headers["sec-websocket-version"] == "13"
            assert relay.relay.peers == {}

    @pytest.mark.parametrize("missing", ["Sec-WebSocket-Key", "Sec-WebSocket-Version"])
    async def test_one_that_lacks_a_header_is_refused(self, missing: str) -> None:
        async with serving() as relay:
            headers = {
                "Upgrade": "websocket",
                "Connection": "keep-alive, Upgrade",
                "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
                "Sec-WebSocket-Version": "13",
            }
            del headers[missing]
            assert (await relay.ask("GET", "/socket", None, headers)).refusal == (400, "bad-handshake")

    async def test_behind_another_request_on_the_same_connection(self) -> None:
        async with serving() as relay:
            wire = relay.connect()
            wire.feed(request("GET", "/healthz"))
            await settle()
            assert take_answer(wire.take_sent())[0].status == 200
            socket = Socket(wire)
            socket.shake_hands("", {})
            await settle()
            assert (await socket.ask(hello()))[0]["type"] == "hello"

    async def test_neither_extension_nor_subprotocol_is_agreed_on(self) -> None:
        async with serving() as relay:
            offer = {"Sec-WebSocket-Extensions": "permessage-deflate", "Sec-WebSocket-Protocol": "aep"}
            socket = await relay.socket("", offer)
            head = socket.wire.take_sent().lower()
            assert head.startswith(b"http/1.1 101 ")
            assert b"sec-websocket-extensions" not in head
            assert b"sec-websocket-protocol" not in head


class TestHello:
    async def test_it_is_answered_with_one_version_and_what_discovery_says(self) -> None:
        async with serving(Limits(buffer_events=55)) as relay:
            socket = await relay.socket()
            (answer,) = await socket.ask({**hello(), "versions": ["2.0", "0.1", "0.0"]})
            assert answer["type"] == "hello"
            assert answer["versions"] == ["0.1"]
            assert answer["role"] == "both"
            assert answer["identity"] == {"agent": "aep-relay", "instance": relay.relay.instance}
            assert answer["capabilities"] == (await relay.ask("GET", "/events")).json["capabilities"]
            assert answer["capabilities"]["replay"] == {"buffer": 55, "all": True}

    @pytest.mark.parametrize(
        "first",
        [
            {"type": "subscribe", "id": "a"},
            {"type": "ping", "t": 1},
            {"type": "unknown"},
            {"type": "roster", "id": "r"},
            {},
            event(),
            b"[]",
            b"nonsense",
            b'{"type":"hello","type":"hello"}',
            {**hello(), "role": "observer"},
            {**hello(), "role": None},
            {**hello(), "versions": "0.1"},
            {**hello(), "versions": [0.1]},
            {**hello(), "identity": {}},
            {**hello(), "identity": {"agent": ""}},
            {**hello(), "identity": []},
            {**hello(), "capabilities": "all"},
        ],
    )
    async def test_anything_else_first_is_refused(self, first: Any) -> None:
        async with serving() as relay:
            socket = await relay.socket()
            assert errors(await socket.ask(first)) == [("hello-required", None)]
            assert socket.closed == 1002
            assert relay.relay.stats.received_events == 0

    @pytest.mark.parametrize("versions", [[], ["0.2"], ["1.0", "2.0"], ["0.10"], ["2.0"] * 5_000])
    async def test_without_a_common_version_it_is_refused(self, versions: list[str]) -> None:
        async with serving() as relay:
            socket = await relay.socket()
            answers = await socket.ask({**hello(), "versions": versions})
            assert errors(answers) == [("version-unsupported", None)]
            assert answers[0]["versions"] == ["0.1"]
            assert socket.closed == 1002

    async def test_a_consumer_needs_no_name(self) -> None:
        async with serving() as relay:
            socket = await relay.socket()
            assert (await socket.ask({"type": "hello", "versions": ["0.1"], "role": "consumer"}))[0][
                "type"
            ] == "hello"

    async def test_a_second_one_changes_nothing(self) -> None:
        async with serving() as relay:
            socket = await relay.greeted("consumer", "one")
            assert await socket.ask(hello("emitter", "two"), {"type": "roster", "id": "r"}) == [
                {"type": "roster", "id": "r", "entries": []}
            ]

    async def test_capabilities_are_kept_verbatim_and_gate_nothing(self) -> None:
        odd = {
            "control": {
                "accepts": ["control.cancel"],
                "ack_window_ms": 10**30,
                "x": [None, 1.5, {"y": "\N{SNOWMAN}"}],
            },
            "emits": {"not": "a list"},
            "capture": 7,
            "no-such-capability": {"a": []},
        }
        async with serving() as relay:
            socket = await relay.greeted("both", "worker", odd)
            await socket.ask(event(0, "s-1"))
            (roster,) = await socket.ask({"type": "roster", "id": "r"})
            assert roster["entries"] == [
                {
                    "session": "s-1",
                    "agent": "worker",
                    "instance": "worker/1",
                    "control": odd["control"],
                    "emits": odd["emits"],
                }
            ]

    async def test_unknown_capabilities_are_ignored_whatever_they_hold(self) -> None:
        text = (
            b'{"type":"hello","versions":["0.1"],"role":"both","new":1e999,"identity":{"agent":"a","new":1e999},'
            b'"capabilities":{"new":"\\ud800","deep":%b,"control":{"accepts":["control.cancel"],"new":[1e999]}}}'
        ) % (b"[" * 5000 + b"]" * 5000)
        async with serving() as relay:
            socket = await relay.socket()
            assert [answer["type"] for answer in await socket.ask(text)] == ["hello"]
            await socket.ask(event(0, "s-1"))
            (roster,) = await socket.ask({"type": "roster", "id": "r"})
            control = {"accepts": ["control.cancel"]}
            assert roster["entries"] == [{"session": "s-1", "agent": "a", "control": control}]


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


def subscribe(id_: object = "a", **members: object) -> dict[str, object]:
    return {"type": "subscribe", "id": id_, **{name.rstrip("_"): value for name, value in members.items()}}


class TestSubscribe:
    async def test_it_is_announced_before_what_it_brings(self) -> None:
        async with serving() as relay:
            await relay.post(event(0), event(1))
            socket = await relay.greeted("consumer")
            socket.say(subscribe("a", from_="all"))
            await settle()
            assert socket.raw() == [b'{"type":"subscribed","id":"a"}', event(0), event(1)]
            await relay.post(event(2))
            assert socket.raw() == [event(2)]

    @pytest.mark.parametrize(
        ("members", "code"),
        [
            ({"filter": None}, "invalid-filter"),
            ({"filter": []}, "invalid-filter"),
            ({"filter": "x"}, "invalid-filter"),
            ({"filter": {"data": 1}}, "invalid-filter"),
            ({"filter": {"time": "x"}}, "invalid-filter"),
            ({"filter": {"seq": 1}}, "invalid-filter"),
            ({"filter": {"Session": "x"}}, "invalid-filter"),
            ({"filter": {"session": []}}, "invalid-filter"),
            ({"filter": {"session": None}}, "invalid-filter"),
            ({"filter": {"severity": {}}}, "invalid-filter"),
            ({"filter": {"severity": {"gte": "loud"}}}, "invalid-filter"),
            ({"filter": {"type": "*"}}, "invalid-filter"),
            ({"filter": {"session": ["x"] * 1001}}, "limit-exceeded"),
            ({"from": None}, "invalid-filter"),
            ({"from": "ALL"}, "invalid-filter"),
            ({"from": {}}, "invalid-filter"),
            ({"from": [{}]}, "invalid-filter"),
            ({"from": [{"session": "s", "seq": -1}]}, "invalid-filter"),
            ({"from": [{"session": "s", "seq": True}]}, "invalid-filter"),
            ({"from": [{"session": "s", "seq": "1"}]}, "invalid-filter"),
            ({"from": [{"session": str(number), "seq": 1} for number in range(501)]}, "limit-exceeded"),
            ({"capture": None}, "invalid-filter"),
            ({"capture": "everything"}, "invalid-filter"),
            ({"capture": 1}, "invalid-filter"),
        ],
    )
    async def test_a_refusal_is_in_band_and_from_the_closed_set(
        self, members: dict[str, object], code: str
    ) -> None:
        async with serving() as relay:
            socket = await relay.greeted("consumer")
            await socket.ask(subscribe("kept"))
            (answer,) = await socket.ask({**subscribe("new"), **members})
            assert (answer["type"], answer["id"], answer["code"]) == ("error", "new", code)
            assert answer["detail"]
            # Nothing of it is there, and the others are undisturbed.
            await relay.post(event())
            assert socket.raw() == [event()]
            assert len(relay.relay.fanout.index.groups) == 1
            assert await alive(socket)

    @pytest.mark.parametrize(
        "text",
        [
            b'{"type":"subscribe","id":"new","filter":{"session":"a","session":"b"}}',
            b'{"type":"subscribe","id":"new","filter":{},"filter":{"session":"b"}}',
            b'{"type":"subscribe","id":"new","from":[{"session":"a","seq":1,"seq":2}]}',
            b'{"type":"subscribe","id":"new","filter":' + b"[" * 300 + b"]" * 300 + b"}",
            b'{"type":"subscribe","id":"new","from":[{"session":"a","seq":1' + b"0" * 500 + b"}]}",
        ],
    )
    async def test_so_is_that_of_a_frame_whose_text_is_refused(self, text: bytes) -> None:
        async with serving() as relay:
            socket = await relay.greeted("consumer")
            (answer,) = await socket.ask(text)
            assert (answer["type"], answer.get("id"), answer["code"]) == ("error", "new", "invalid-filter")
            assert await alive(socket)

    @pytest.mark.parametrize("id_", [None, "", 7, ["a"], "x" * 257])
    async def test_an_id_that_is_none_is_not_repeated(self, id_: object) -> None:
        async with serving() as relay:
            socket = await relay.greeted("consumer")
            (answer,) = await socket.ask(subscribe(id_))
            assert (answer["type"], answer.get("id"), answer["code"]) == ("error", None, "invalid-filter")
            assert await alive(socket)

    async def test_an_emitter_may_not(self) -> None:
        async with serving() as relay:
            socket = await relay.greeted("emitter")
            (answer,) = await socket.ask(subscribe())
            assert (answer["type"], answer["id"], answer["code"]) == ("error", "a", "unauthorized")
            await relay.post(event())
            assert await alive(socket)

    async def test_no_more_than_the_limit(self) -> None:
        async with serving(Limits(max_subscriptions=2, max_from_positions=1)) as relay:
            socket = await relay.greeted("consumer")
            answers = await socket.ask(subscribe("a"), subscribe("b"), subscribe("c"), subscribe("a"))
            assert [answer["type"] for answer in answers] == [
                "subscribed",
                "subscribed",
                "error",
                "subscribed",
            ]
            assert (answers[2]["id"], answers[2]["code"]) == ("c", "limit-exceeded")
            assert "max_subscriptions" in answers[2]["detail"]
            points = [{"session": "s", "seq": 0}, {"session": "t", "seq": 0}]
            (answer,) = await socket.ask(subscribe("b", from_=points))
            assert (answer["id"], answer["code"]) == ("b", "limit-exceeded")
            assert "max_from_positions" in answer["detail"]

    async def test_a_refused_one_leaves_the_old_one_of_its_id(self) -> None:
        async with serving() as relay:
            socket = await relay.greeted("consumer")
            await socket.ask(subscribe("a", filter={"session": "s"}))
            await socket.ask(subscribe("a", filter={"session": []}))
            await relay.post(event(0, "t"), event(0, "s"))
            assert socket.raw() == [event(0, "s")]

    async def test_a_reused_id_replaces_and_leaves_nothing(self) -> None:
        async with serving() as relay:
            await relay.post(event(0, "s"), event(0, "t"))
            socket = await relay.greeted("consumer")
            await socket.ask(subscribe("a", filter={"session": "s"}, from_="all"))
            socket.say(subscribe("a", filter={"session": "t"}, from_="all"))
            await settle()
            assert socket.raw() == [b'{"type":"subscribed","id":"a"}', event(0, "t")]
            await relay.post(event(1, "s"), event(1, "t"))
            assert socket.raw() == [event(1, "t")]
            assert len(relay.relay.fanout.index.groups) == 1
            await socket.ask({"type": "unsubscribe", "id": "a"})
            assert relay.relay.fanout.index.groups == {}

    async def test_several_at_once_bring_each_event_once_and_at_the_richest_ceiling(self) -> None:
        async with serving() as relay:
            socket = await relay.greeted("consumer")
            await socket.ask(
                subscribe("a", filter={"session": "s"}, capture="none"),
                subscribe("b", filter={"type": "tool.*"}, capture="full"),
                subscribe("c", filter={"type": "run.*"}),
            )
            full = event(0, "s", capture="full", data={"x": 1})
            await relay.post(
                full, event(1, "s", "error.raised", data={"message": "x"}), event(0, "t", "run.started")
            )
            first, second, third = socket.raw()
            assert first == full
            assert json.loads(second)["capture"] == "none"
            assert third == event(0, "t", "run.started")

    async def test_unsubscribe_is_acknowledged_whether_there_was_one_or_not(self) -> None:
        async with serving() as relay:
            socket = await relay.greeted("consumer")
            await socket.ask(subscribe("a"))
            for id_ in ("a", "a", "never"):
                assert await socket.ask({"type": "unsubscribe", "id": id_}) == [
                    {"type": "unsubscribed", "id": id_}
                ]
            await relay.post(event())
            assert socket.raw() == []

    async def test_exhaustion_is_said_per_subscription_and_session(self) -> None:
        async with serving(Limits(buffer_events=2)) as relay:
            await relay.post(*(event(seq, epoch=5) for seq in range(4)))
            socket = await relay.greeted("consumer")
            points = [{"session": "s", "epoch": 5, "seq": 0}]
            answers = await socket.ask(subscribe("x", from_=points))
            assert answers[1] == {
                "type": "replay-exhausted",
                "sub": "x",
                "session": "s",
                "earliest": {"epoch": 5, "seq": 2},
            }
            assert [answer["seq"] for answer in answers[2:]] == [2, 3]

    async def test_what_is_sent_meanwhile_follows_the_replay_without_gap(self) -> None:
        async with serving() as relay:
            await relay.post(*(event(seq) for seq in range(2000)))
            socket = await relay.greeted("consumer", capacity_bytes=1_000)
            socket.say(subscribe("a", from_="all"))
            await settle()
            for seq in range(2000, 2100):
                await relay.post(event(seq))
            socket.wire.capacity_bytes = None
            await settle()
            assert [answer.get("seq") for answer in socket.heard()] == [None, *range(2100)]


class TestRoster:
    async def test_one_entry_for_each_claim_declarations_verbatim(self) -> None:
        async with serving() as relay:
            control = {"accepts": ["control.cancel"], "ack_window_ms": 5}
            one = await relay.greeted("emitter", "one", {"control": control, "emits": ["tool"]})
            two = await relay.greeted("both", "two")
            await one.ask(event(0, "s"), event(0, "t"), event(1, "s"), event(2, "s", "session.ended"))
            await two.ask(event(0, "s"))
            watcher = await relay.greeted("consumer")
            (roster,) = await watcher.ask({"type": "roster", "id": "r-1"})
            assert (roster["type"], roster["id"]) == ("roster", "r-1")
            declared = {"agent": "one", "instance": "one/1", "control": control, "emits": ["tool"]}
            expected = [
                {"session": "s", **declared},
                {"session": "s", "agent": "two", "instance": "two/1"},
                {"session": "t", **declared},
            ]
            assert sorted(roster["entries"], key=str) == sorted(expected, key=str)
            one.wire.feed_end()
            await settle()
            (roster,) = await watcher.ask({"type": "roster", "id": "r-2"})
            assert roster["entries"] == [expected[1]]

    async def test_nobody_claims_by_anything_but_an_event_of_its_own(self) -> None:
        async with serving() as relay:
            consumer = await relay.greeted("consumer")
            emitter = await relay.greeted("both")
            await consumer.ask(event(0, "s"))
            await relay.post(event(1, "s"))
            routed = event(None, "s", "attention.routed")
            assert await emitter.ask(routed, event(None, None, "agent.idle"), event(0, "s", agent=None)) != []
            assert await emitter.ask({"type": "roster", "id": "r"}) == [
                {"type": "roster", "id": "r", "entries": []}
            ]

    async def test_an_emitter_may_not_ask(self) -> None:
        async with serving() as relay:
            socket = await relay.greeted("emitter")
            (answer,) = await socket.ask({"type": "roster", "id": "r"})
            assert (answer["type"], answer["id"], answer["code"]) == ("error", "r", "unauthorized")
            assert await alive(socket)

    async def test_no_more_claims_than_the_limit(self) -> None:
        async with serving(Limits(max_claims=2)) as relay:
            socket = await relay.greeted()
            answers = await socket.ask(event(0, "a"), event(0, "b"), event(0, "c"), event(1, "a"))
            assert errors(answers) == [("limit-exceeded", "c-0-0")]
            assert relay.relay.stats.received_events == 3


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
            assert relay.relay.claims.roster() == []
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
            assert relay.relay.claims.roster() == []
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
