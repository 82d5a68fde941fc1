"""Frames: told from Events, read strictly, written as one line."""

from __future__ import annotations

import json
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import OPEN
from websockets.uri import parse_uri

from aep_relay.protocol import frames, members, skim
from aep_relay.protocol.errors import (
    BadJson,
    EventTooLarge,
    InvalidEvent,
    InvalidFilter,
    InvalidFrame,
    ProtocolError,
)
from aep_relay.protocol.event import Event, decode
from aep_relay.protocol.filters import EMPTY
from aep_relay.protocol.frames import FrameTooLarge, InvalidRequest
from aep_relay.protocol.jsontext import loads
from aep_relay.protocol.position import ResumePoint
from aep_relay.protocol.registry import CAPTURE_RANK

MAX_BYTES = 4096
EVENT = (
    b'{"aep":"0.1","id":"e1","type":"tool.completed","time":"2026-01-01T00:00:00Z",'
    b'"source":"aep://host/agent","agent":"a","session":"s","seq":7}'
)


def parse(text: bytes) -> Event | dict[str, object]:
    return frames.parse(text, MAX_BYTES)


def refused(text: bytes, max_frame_bytes: int | None = None) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        frames.parse(text, MAX_BYTES, max_frame_bytes)
    return caught.value


def test_an_event_is_an_event() -> None:
    event = parse(b" " + EVENT + b"\n")
    assert isinstance(event, Event)
    assert event.raw == EVENT


@pytest.mark.parametrize(
    ("text", "frame"),
    [
        (b'{"type":"ping","t":1}', {"type": "ping", "t": 1}),
        (b' {"type" : "ping"} \r\n', {"type": "ping"}),
        (b'{"t":[1.5,null,{"a":"\\u00e9"}],"type":"unheard-of"}', {"type": "unheard-of"}),
        (b'{"type":"p\\u0069ng"}', {"type": "ping"}),
        (b'{"type":""}', {"type": ""}),
        (b'{"type":"ping","t":1e2}', {"type": "ping", "t": 100}),
        (b'{"type":"ping","t":%d}' % 10**300, {"type": "ping", "t": 10**300}),
        (b'{"type":"ping","t":[1.5,{"a":"\\u00e9"}]}', {"type": "ping", "t": [1.5, {"a": "é"}]}),
        (b'{"type":"ping","x":"tool.completed"}', {"type": "ping"}),
    ],
)
def test_a_type_without_a_dot_is_a_frame(text: bytes, frame: dict[str, object]) -> None:
    assert parse(text) == frame


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b" ",
        b"null",
        b"5",
        b'"ping"',
        b"[]",
        b'[{"type":"ping"}]',
        b'["\\ud800"]',
        b"{",
        b'{"type":"ping"',
        b'{"type":"ping"}}',
        b'{"type":"ping"} {"type":"ping"}',
        b"{'type':'ping'}",
        b'{"type":"ping",}',
        b'{"type":"ping","t":NaN}',
        b'{"type":"ping","t":Infinity}',
        b'{"type":"ping","t":01}',
        b'{"type":"ping","t":"\n"}',
        b'\xef\xbb\xbf{"type":"ping"}',
        b'{"type":"\xff"}',
        b'{"type":"ping","t":"\xed\xa0\x80"}',
        EVENT[:-1],
        EVENT + b"x",
        EVENT.replace(b"7", b"NaN"),
        EVENT.replace(b'"s"', b'"\xff"'),
        b'{"a":"\\ud800",}',
        b"hello there",
        b"[" * 1000,
    ],
)
def test_what_is_no_json_object(text: bytes) -> None:
    assert type(refused(text)) is BadJson


@pytest.mark.parametrize(
    ("text", "event_id"),
    [
        (b"{}", None),
        (b'{"type":null,"id":"e1"}', "e1"),
        (b'{"type":5}', None),
        (b'{"type":["ping"]}', None),
        (b'{"kind":"ping"}', None),
        (b'{"type":"tool.completed"}', None),
        (b'{"type":"tool.completed","id":"e1"}', "e1"),
        (b'{"type":"."}', None),
        (b'{"type":"ping","type":"tool.completed","id":"e1"}', "e1"),
        (EVENT.replace(b'"seq"', b'"id":"e2","seq"'), None),
        (EVENT.replace(b"7", b"-7"), "e1"),
        (EVENT.replace(b"7", b"1e400"), "e1"),
        (EVENT.replace(b'"s"', b'"\\ud800"'), None),
        (EVENT[:-1] + b',"data":' + b'{"a":' * 300 + b"1" + b"}" * 301, "e1"),
    ],
)
def test_what_is_no_frame_is_judged_as_an_event(text: bytes, event_id: str | None) -> None:
    error = refused(text)
    assert isinstance(error, InvalidEvent)
    assert not isinstance(error, EventTooLarge)
    assert error.event_id == event_id


def test_deep_nesting_is_no_recursion_error() -> None:
    for depth in (1000, 100_000):
        text = b'{"type":"ping","t":' + b"[" * depth + b"]" * depth + b"}"
        with pytest.raises((InvalidEvent, InvalidFrame)):
            frames.parse(text, 1 << 20)


@pytest.mark.parametrize(
    "text",
    [
        b'{"type":"ping","type":"ping"}',
        b'{"type":"tool.completed","type":"ping"}',
        b'{"type":"ping","t":1,"\\u0074":2}',
        b'{"type":"roster","id":"1","id":"1"}',
        b'{"type":"roster","id":"1","x":1,"x":1}',
        b'{"type":"ping","t":{"agent":"a","agent":"b"}}',
        b'{"type":"ping","t":"\\ud800"}',
        b'{"type":"ping","t":1e999999999}',
        b'{"type":"ping","t":' + b"[" * 257 + b"]" * 257 + b"}",
    ],
)
def test_frames_that_are_not_strict(text: bytes) -> None:
    assert type(refused(text)) is InvalidFrame


NOBODY_READS_IT = {
    "an integer too large": b"1e999",
    "a double too large": b"-1e400",
    "too many fractions": b"[" + b",".join([b"0.5"] * 10_001) + b"]",
    "too many digits": b"9" * 1000,
    "a lone surrogate": b'"\\ud800"',
    "a name with a lone surrogate": b'{"\\udc00":1}',
    "doubled members": b'{"type":"ping","type":"ping"}',
    "deep nesting": b"[" * 20_000 + b"]" * 20_000,
    "deeper nesting": b"[" * 200_000 + b"]" * 200_000,
    "deep objects": b'{"a":' * 1200 + b"1" + b"}" * 1200,
    "an Event": EVENT,
    "many frames": b"[" + b",".join([b'{"type":"ping"}'] * 6000) + b"]",
}


@pytest.mark.parametrize("value", NOBODY_READS_IT.values(), ids=list(NOBODY_READS_IT))
def test_what_is_unknown_is_ignored_whatever_it_holds(value: bytes) -> None:
    def read(text: bytes) -> object:
        return frames.parse(text, 1 << 20)

    assert read(b'{"type":"zzz","x":%b}' % value) == {"type": "zzz"}
    assert read(b' { "x" : %b , "id": 1, "type" : "zz\\u007a" } ' % value) == {"type": "zzz"}
    assert read(b'{"type":"ping","x":%b,"t":[{"b":1e2}]}' % value) == {"type": "ping", "t": [{"b": 100}]}
    assert read(b'{"x":%b,"type":"roster","id":"r"}' % value) == {"type": "roster", "id": "r"}
    extra = value if len(value) < members.MAX_OPEN_BYTES // 2 else b"0"
    asked = read(
        b'{"type":"subscribe","id":"r","y":%b,"experimental":{"y":%b,"others":"all"}}' % (value, extra)
    )
    assert isinstance(asked, dict)
    assert frames.parse_subscribe(asked).others
    for broken in (
        b'{"type":"zzz","x":%b,}',
        b'{"type":"zzz","x":%b',
        b'{"type":"zzz","x":%b]}',
        b'{"type":"zzz"%b}',
    ):
        with pytest.raises(BadJson):
            read(broken % value)
    for doubled in (b'{"type":"zzz","x":%b,"type":"zzz"}', b'{"t\\u0079pe":"zzz","x":%b,"type":"zzz"}'):
        with pytest.raises(InvalidFrame):
            read(doubled % value)


def test_what_is_looked_through_beside_the_unreadable_is_bounded() -> None:
    def hello(count: int) -> bytes:
        many = b",".join(b'"c%d":1' % number for number in range(count))
        return b'{"type":"hello","versions":["0.1"],"capabilities":{"new":1e999,%b}}' % many

    read = frames.parse(hello(members.MAX_OPEN_MEMBERS - 1), 1 << 20)
    assert isinstance(read, dict)
    assert len(dict(read["capabilities"])) == members.MAX_OPEN_MEMBERS - 1  # type: ignore[call-overload]
    with pytest.raises(InvalidFrame, match="more than 256 members"):
        frames.parse(hello(members.MAX_OPEN_MEMBERS), 1 << 20)
    with pytest.raises(InvalidFrame, match="more than 2000 members"):
        frames.parse(b"{" + b'"type":"zzz",' * 2000 + b'"type":"zzz"}', 1 << 20)


def test_an_unknown_type_may_hold_a_lone_surrogate() -> None:
    assert parse(b'{"type":"z\\ud800"}') == {"type": "z?"}


def test_an_unknown_frame_is_ignored_though_it_is_too_intricate_to_read() -> None:
    intricate = b"[" + b",".join([b"[[]]"] * skim.MAX_STEPS) + b"]"
    deep = b"[" * 2000 + b"]" * 2000
    text = b'{"type":"zzz","x":%b,"y":%b}' % (intricate, deep)
    assert frames.parse(text, 1 << 20) == {"type": "zzz"}
    with pytest.raises(InvalidFrame):
        frames.parse(text.replace(b"zzz", b"ping"), 1 << 20)
    with pytest.raises(InvalidEvent):
        frames.parse(text.replace(b"zzz", b"z.z"), 1 << 20)


@pytest.mark.parametrize(
    ("text", "id_"),
    [
        (b'{"type":"subscribe","id":"1","filter":{"agent":"a","agent":"b"}}', "1"),
        (b'{"type":"subscribe","id":"1","filter":{},"filter":{}}', "1"),
        (b'{"type":"subscribe","id":7,"filter":{"a":1,"a":2}}', None),
        (b'{"type":"subscribe","id":"1","filter":' + b"[" * 257 + b"]" * 257 + b"}", "1"),
        (b'{"type":"subscribe","id":"1","x":"\\ud800","from":[1e999]}', "1"),
    ],
)
def test_a_subscribe_that_is_not_strict_is_refused_by_its_id(text: bytes, id_: str | None) -> None:
    error = refused(text)
    assert type(error) is frames.InvalidRequest
    assert (error.code, error.request_id) == ("invalid-filter", id_)


def test_an_event_too_large_is_named() -> None:
    padded = EVENT[:-1] + b',"data":{"x":"' + b"x" * MAX_BYTES + b'"}}'
    error = refused(padded)
    assert type(error) is EventTooLarge
    assert error.http_status == 413
    assert error.event_id == "e1"
    assert type(refused(padded[:-1])) is BadJson
    assert type(refused(padded.replace(b'"e1"', b"5"))) is EventTooLarge


def test_a_frame_too_large_is_named() -> None:
    text = b'{"type":"subscribe","id":"r1","x":"' + b"x" * 200 + b'"}'
    assert isinstance(parse(text), dict)
    error = refused(text, 200)
    assert isinstance(error, FrameTooLarge)
    assert (error.code, error.request_id) == ("limit-exceeded", "r1")
    assert "max_frame_bytes" in error.detail
    error = refused(text.replace(b'"r1"', b'""').replace(b"x" * 200, b"x" * MAX_BYTES))
    assert isinstance(error, FrameTooLarge)
    assert error.request_id is None
    assert isinstance(frames.parse(EVENT, MAX_BYTES, 10), Event)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
TYPES = st.sampled_from(["ping", "subscribe", "hello", "roster", "x", "", "tool.completed", "x.y"])


MEMBERS = st.dictionaries(st.sampled_from(["id", "filter", "from", "capture", "t", "versions", "role"]), JSON)


@given(MEMBERS, TYPES | JSON)
def test_any_object_is_a_frame_or_refused(members: dict[str, object], type_: object) -> None:
    text = json.dumps({**members, "type": type_}).encode()
    try:
        message = frames.parse(text, 1 << 20)
    except InvalidEvent:
        assert not isinstance(type_, str) or "." in type_
        return
    except InvalidFrame:
        assert "\\ud" in text.decode() or max(map(len, text.split(b" "))) > 300
        return
    assert isinstance(message, dict)
    assert isinstance(type_, str)
    for reader in (frames.parse_subscribe, frames.parse_request_id):
        with suppress(ProtocolError):
            reader(message)


@given(st.binary(max_size=40) | st.text(max_size=40).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_text_is_a_message_or_refused(text: bytes) -> None:
    for data in (text, b'{"type":"ping",' + text + b"}", b'{"type":"' + text + b'"}'):
        with suppress(ProtocolError):
            parse(data)


PIECES = [
    b'"type"',
    b'"id"',
    b'"ping"',
    b'"a.b"',
    b'"\\ud800"',
    b"null",
    b"1",
    b":",
    b",",
    b"{",
    b"}",
    b"[",
]


@given(st.lists(st.sampled_from(PIECES)))
def test_the_verdict_on_an_event_is_that_of_decode(pieces: list[bytes]) -> None:
    text = b"".join(pieces)
    try:
        message = parse(text)
    except ProtocolError:
        message = None
    try:
        expected = decode(text, MAX_BYTES)
    except ProtocolError:
        expected = None
    assert isinstance(message, Event) == (expected is not None)


# Requests


def subscribe(**members: object) -> frames.SubscribeRequest:
    return frames.parse_subscribe({"type": "subscribe", "id": "r1", **members})


def test_subscribe_needs_an_id_only() -> None:
    request = subscribe()
    assert (request.id, request.filter, request.ceiling, request.from_) == ("r1", EMPTY, None, None)


def test_subscribe_with_everything() -> None:
    request = subscribe(
        filter={"agent": "a"}, capture="redacted", **{"from": [{"session": "s", "epoch": 3, "seq": 187}]}
    )
    assert request.filter.agents == frozenset({"a"})
    assert request.ceiling == CAPTURE_RANK["redacted"]
    assert request.from_ == [ResumePoint("s", (3, 187))]
    assert subscribe(**{"from": "all"}).from_ == "all"
    assert subscribe(**{"from": []}).from_ == []


@pytest.mark.parametrize("capture", CAPTURE_RANK)
def test_every_ceiling_is_known(capture: str) -> None:
    assert subscribe(capture=capture).ceiling == CAPTURE_RANK[capture]


@pytest.mark.parametrize(
    "members",
    [
        {"filter": None},
        {"filter": []},
        {"filter": "agent"},
        {"filter": {"seq": 1}},
        {"filter": {"agent": None}},
        {"capture": None},
        {"capture": "everything"},
        {"capture": "Full"},
        {"capture": 1},
        {"capture": ["full"]},
        {"from": None},
        {"from": "everything"},
        {"from": {}},
        {"from": [None]},
        {"from": [{"session": "s"}]},
        {"from": [{"session": "s", "seq": True}]},
        {"from": [{"session": "s", "seq": -1}]},
        {"from": [{"session": "s", "seq": 2**63}]},
        {"from": ["all"]},
    ],
)
def test_a_malformed_subscribe_is_refused_by_its_id(members: dict[str, object]) -> None:
    with pytest.raises(InvalidFilter) as caught:
        subscribe(**members)
    assert isinstance(caught.value, InvalidRequest)
    assert caught.value.code == "invalid-filter"
    assert caught.value.request_id == "r1"


def test_a_filter_too_large_is_a_limit() -> None:
    with pytest.raises(InvalidRequest) as caught:
        subscribe(filter={"agent": ["a"] * 2000})
    assert (caught.value.code, caught.value.request_id) == ("limit-exceeded", "r1")


@pytest.mark.parametrize("id_", [None, 5, "", ["r1"], {}, True, "x" * 257])
def test_requests_without_a_usable_id(id_: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        frames.parse_subscribe({"type": "subscribe", "id": id_})
    assert caught.value.request_id is None
    with pytest.raises(InvalidFrame, match="roster: id"):
        frames.parse_request_id({"type": "roster", "id": id_})


def test_requests_with_an_id() -> None:
    for id_ in ("r1", "x" * 256, "\0\n", "é"):
        assert frames.parse_request_id({"type": "unsubscribe", "id": id_}) == id_


# Writing


def test_what_is_written() -> None:
    assert frames.subscribed("r1") == b'{"type":"subscribed","id":"r1"}'
    assert frames.unsubscribed("r\n1") == b'{"type":"unsubscribed","id":"r\\n1"}'
    assert json.loads(frames.replay_exhausted("r1", "s", (2**63 - 1, 4))) == {
        "type": "replay-exhausted",
        "sub": "r1",
        "session": "s",
        "earliest": {"epoch": 2**63 - 1, "seq": 4},
    }
    delivered: list[dict[str, object]] = [{"sub": "r1", "session": "s", "epoch": 3, "seq": 4}]
    assert json.loads(frames.closing("shutdown", delivered)) == {
        "type": "closing",
        "reason": "shutdown",
        "delivered": delivered,
    }
    assert frames.closing("shutdown", []) == b'{"type":"closing","reason":"shutdown","delivered":[]}'
    assert frames.ping(12) == b'{"type":"ping","t":12}'
    entries = b'[{"session":"s","control":{"accepts":[1, 1e300]}}]'
    assert frames.roster("r1", msgspec.Raw(entries)) == b'{"type":"roster","id":"r1","entries":%b}' % entries


@given(JSON)
def test_a_pong_returns_what_the_ping_held(t: object) -> None:
    text = json.dumps({"type": "ping", "t": t}).encode()
    try:
        frame = frames.parse(text, 1 << 20)
    except InvalidFrame:
        return
    assert isinstance(frame, dict)
    pong = frames.pong(frame["t"])
    assert b"\n" not in pong
    assert loads(pong) == {"type": "pong", "t": frame["t"]}


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 65_535, 65_536, 200_000])
def test_text_frames_are_read_by_another_implementation(size: int) -> None:
    payload = ("é" * size).encode()[:size] if size % 2 == 0 else b"x" * size
    client = ClientProtocol(parse_uri("ws://localhost/"), max_size=None, state=OPEN)
    client.receive_data(frames.text_frame(payload) + frames.text_frame(b"next"))
    assert client.events_received() == [
        Frame(Opcode.TEXT, payload, fin=True),
        Frame(Opcode.TEXT, b"next", fin=True),
    ]


@pytest.mark.parametrize(
    ("experimental", "others"),
    [({"others": "all"}, True), ({"others": True}, False), ({}, False), ([], False), ("all", False)],
)
def test_a_chained_relay_asks_for_the_sessions_it_does_not_name(experimental: object, others: bool) -> None:
    frame: dict[str, object] = {"type": "subscribe", "id": "a", "from": [], "experimental": experimental}
    assert frames.parse_subscribe(frame).others is others


LONG = 200_000


@pytest.mark.parametrize(
    ("beginning", "event_id"),
    [
        ('{"aep":"0.1","id":"e1","type":"tool.completed"', "e1"),
        (' { "type" : "tool.completed" ,\n"seq":1.5e3,"x":true,"id":"e\\u0031" ', "e1"),
        ('{"id":5', None),
        ('{"data":{"id":"inner"},"id":"e1"', None),
        ('{"id":"\\ud800"', None),
        ("[1", None),
        ("{", None),
        ("nothing of the kind", None),
    ],
)
def test_what_is_longer_than_anything_may_be_is_not_read(beginning: str, event_id: str | None) -> None:
    text = f'{beginning},"data":{{"a":"{"x" * LONG}"}}}}'.encode()
    with pytest.raises(EventTooLarge) as caught:
        frames.parse(text, 1000, 1000)
    assert caught.value.event_id == event_id


@pytest.mark.parametrize(
    ("beginning", "request_id"), [('{"type":"ping","id":"r1"', "r1"), ('{"id":"","type":""', None)]
)
def test_a_frame_longer_than_anything_may_be_is_refused_by_its_id(
    beginning: str, request_id: str | None
) -> None:
    with pytest.raises(FrameTooLarge) as caught:
        frames.parse(f'{beginning},"x":"{"x" * LONG}"}}'.encode(), 1000, 1000)
    assert caught.value.request_id == request_id


def test_whitespace_does_not_make_it_long() -> None:
    assert frames.parse(b" " * LONG + b'{"type":"x"}', 1000, LONG + 100) == {"type": "x"}
    with pytest.raises(InvalidEvent):
        frames.parse(b" " * LONG + b"{}", 1000, 1000)


@pytest.mark.parametrize(
    "text", ['{"type":"pong","t":%s}', '{"type": "pong", "t": %s}', '{"t":%s,"type":"pong"}']
)
def test_pongs_as_they_usually_come(text: str) -> None:
    for t in ("0", "7", "1750000000000", "9" * 18):
        data = (text % t).encode()
        assert frames.is_pong(data)
        assert parse(data) == {"type": "pong", "t": int(t)}
    for t in ("-1", "01", "1.0", "1e3", "", "null", '"1"', "9" * 19, "1,2"):
        assert not frames.is_pong((text % t).encode())
    data = (text % 1).encode()
    for other in (
        data[:-1],
        data + b"\n",
        b" " + data,
        data.replace(b"o", b"i"),
        data.replace(b"pong", b"PONG"),
    ):
        assert not frames.is_pong(other)
