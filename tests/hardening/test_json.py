"""Hostile JSON over every binding it can come in by: one Event, a batch, a WebSocket message, frames, parameters.

What is wrong with each text is said once, in ``tests/protocol``; here is that it is refused alike wherever it comes in,
that a batch is refused whole, that a socket survives, and that nothing of it is seen by anybody.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from aep_relay.hub.limits import Limits
from tests.hardening.client import Raw, Socket, Stream, ask, event, frame, post, request
from tests.hardening.inside import Inside

PLAIN = event(session="json")
NAMES = ("id", "type", "time", "source", "agent", "session", "subject", "run", "step", "cause", "traceparent")


def having(member: str, raw: bytes = PLAIN) -> bytes:
    """``raw`` with another member, as it is spelled."""
    return raw[:-1] + b"," + member.encode("utf-8", "surrogatepass") + b"}"


def instead(name: str, value: bytes) -> bytes:
    """The Event with another value of ``name``, as it is spelled."""
    members = {key: json.dumps(old).encode() for key, old in json.loads(PLAIN).items() if key != name}
    members[name] = value
    return b"{" + b",".join(b'"%b":%b' % (key.encode(), old) for key, old in members.items()) + b"}"


INVALID: dict[str, bytes] = {
    "id twice": having('"id":"e0"'),
    "id twice, escaped": having('"\\u0069d":"other"'),
    "type twice": having('"type":"tool.completed"'),
    "data twice": having('"data":{},"data":{}'),
    "extension twice": having('"x":1,"x":1'),
    "lone high surrogate": having('"subject":"\\ud83d"'),
    "lone low surrogate": having('"subject":"\\ude00"'),
    "surrogates reversed": having('"subject":"\\ude00\\ud83d"'),
    "lone surrogate in data": having('"data":{"a":"\\ud800"}'),
    "lone surrogate in a name": having('"data":{"\\ud800":1}'),
    "encoded surrogate": having('"subject":"\ud800"'),
    "NaN": having('"data":{"a":NaN}'),
    "Infinity": having('"data":{"a":-Infinity}'),
    "hexadecimal": having('"data":{"a":0x10}'),
    "leading zero": having('"data":{"a":01}'),
    "bare point": having('"data":{"a":1.}'),
    "null": having('"subject":null'),
    "data null": having('"data":null'),
    "data array": having('"data":[]'),
    "extension object": having('"x":{}'),
    "extension fraction": having('"x":1.5'),
    "extension too large": having('"x":1e999999999'),
    "extension name": having('"X":1'),
    "single quotes": PLAIN.replace(b'"', b"'"),
    "trailing comma": PLAIN[:-1] + b",}",
    "trailing text": PLAIN + b"x",
    "two objects": PLAIN + b" " + PLAIN,
    "byte-order mark": b"\xef\xbb\xbf" + PLAIN,
    "vertical tab": b"\x0b" + PLAIN,
    "control character": having('"subject":"a\x01b"'),
    "raw line break": having('"subject":"a\rb"'),
    "truncated": PLAIN[:-1],
    "100,000 arrays": having('"data":{"a":' + "[" * 100_000 + "]" * 100_000 + "}"),
    "100,000 objects": having('"data":{"a":' + '{"a":' * 100_000 + "1" + "}" * 100_000 + "}"),
    "100,000 open brackets": b"[" * 100_000,
    "257 levels": having('"data":' + '{"a":' * 256 + "1" + "}" * 256),
    "a million extensions": having(",".join(f'"x{number}":1' for number in range(300_000))),
    "half a million members": having('"data":{' + ",".join(['"a":1'] * 500_000) + "}"),
    "half a million arrays": having('"data":{"a":[' + ",".join(["[]"] * 500_000) + "]}"),
    "not an object": b'["aep","0.1"]',
    "a string": b'"aep"',
    "a number": b"1",
    "true": b"true",
}
INVALID |= {
    f"seq {value}": instead("seq", value.encode())
    for value in ("true", "1.5", "-1", "1e19", '"1"', "null", "[]")
}
INVALID |= {
    f"epoch {value}": instead("epoch", value.encode())
    for value in ("false", "0.1", "9223372036854775808", "9223372036854775808.0", "1e400", "{}")
}
INVALID |= {f"{name} not UTF-8": instead(name, b'"a\xffb"') for name in NAMES}
INVALID |= {f"{name} overlong UTF-8": instead(name, b'"a\xc0\xafb"') for name in NAMES}
INVALID |= {f"{name} truncated UTF-8": instead(name, b'"a\xe2\x82"') for name in NAMES}
INVALID |= {"not UTF-8 in data": having('"data":{"a":"?"}').replace(b"?", b"\xff")}

VALID: dict[str, tuple[bytes, int]] = {
    "1.0": (b"1.0", 1),
    "1e2": (b"1e2", 100),
    "-0": (b"-0", 0),
    "2^53+1": (b"9007199254740993", 2**53 + 1),
    "2^53+1 with a fraction": (b"9007199254740993.0", 2**53 + 1),
    "2^63-1": (b"9223372036854775807", 2**63 - 1),
}


@pytest.fixture
def watched(relay: Inside) -> Iterator[Inside]:
    """The relay, and consumers of everything, who must see nothing of what is refused."""
    with (
        Stream(relay.port, "?filter=" + quote('{"session":["json","s1"]}')) as stream,
        Socket(relay.port) as socket,
    ):
        socket.greet().subscribe(filter={"session": ["json", "s1"]})
        assert stream.block() == b": stream open\n\n"
        yield relay
        mark = event(7, "json", id="mark")
        assert ask(relay.port, post(mark)).status == 202
        assert stream.block().endswith(b"\ndata: " + mark + b"\n\n")
        assert socket.heard() == json.loads(mark)


@pytest.mark.parametrize("text", INVALID.values(), ids=INVALID)
def test_what_is_no_event_is_refused_alike_by_post(watched: Inside, text: bytes) -> None:
    before, after = event(0, "s1"), event(1, "s1")
    answer = ask(
        watched.port, request("POST", "/events", text, AEP_Version="0.1", Content_Type="application/json")
    )
    assert (answer.status, answer.json["error"]) in ((400, "invalid-event"), (413, "invalid-event"))
    assert "index" not in answer.json
    batch = b"\n".join([before, b"", text.replace(b"\n", b" "), after])
    whole = ask(watched.port, post(batch))
    assert (whole.status, whole.json["error"], whole.json["index"]) == (answer.status, "invalid-event", 2)
    for refusal in (answer, whole):
        assert len(refusal.json["detail"]) <= 320
        assert refusal.json["detail"].isprintable()


@pytest.mark.parametrize("text", INVALID.values(), ids=INVALID)
def test_what_is_no_event_is_refused_in_band(watched: Inside, text: bytes) -> None:
    with Socket(watched.port) as socket:
        socket.greet()
        socket.send(frame(text))
        try:
            text.decode()
        except UnicodeDecodeError:
            farewell = socket.until_closed()
            assert (farewell.code, farewell.errors) == (1007, [])
            return
        answer = socket.heard()
        assert answer["type"] == "error"
        assert answer["code"] in ("invalid-event", "bad-json")
        assert answer.get("cause", "e0") == "e0"
        assert answer["detail"].isprintable()
        assert socket.is_alive()


@pytest.mark.parametrize("text", INVALID.values(), ids=INVALID)
def test_what_is_no_event_is_no_hello(relay: Inside, text: bytes) -> None:
    with Socket(relay.port) as socket:
        socket.send(frame(text))
        farewell = socket.until_closed()
        if len(text) > Limits().max_frame_bytes:
            assert (farewell.code, farewell.errors) == (1009, [])
        elif farewell.code == 1007:
            assert farewell.errors == []
        else:
            assert (farewell.code, farewell.errors) == (1002, ["hello-required"])


@pytest.mark.parametrize(("spelled", "value"), VALID.values(), ids=VALID)
def test_positions_are_exact_over_every_binding(relay: Inside, spelled: bytes, value: int) -> None:
    session = f"exact {spelled.decode()}"
    raw = instead("seq", spelled).replace(b'"json"', json.dumps(session).encode())
    query = "?filter=" + quote(json.dumps({"session": session}))
    with Stream(relay.port, query) as stream, Socket(relay.port) as socket:
        socket.greet().subscribe(filter={"session": session})
        assert stream.block() == b": stream open\n\n"
        assert ask(relay.port, post(raw)).status == 202
        assert stream.block() == b"event: tool.completed\nid: %b:0:%d\ndata: %b\n\n" % (
            session.encode(),
            value,
            raw,
        )
        assert socket.frame() == (1, raw)
        for seq, count in ((value, 0), (value - 1, 1)):
            if seq >= 0:
                point = json.dumps([{"session": session, "seq": seq}])
                with Stream(relay.port, f"{query}&live=0&from={quote(point)}") as replay:
                    assert sum(b"data: " in block for block in replay.blocks()) == count
                last = f"{session}:0:{seq}"
                with Stream(relay.port, query + "&live=0", Last_Event_ID=last) as replay:
                    assert sum(b"data: " in block for block in replay.blocks()) == count
                again = socket.subscribe(
                    f"s{seq}", filter={"session": session}, **{"from": json.loads(point)}
                )
                assert again["type"] == "subscribed"
                if count:
                    assert socket.frame() == (1, raw)


BAD_POINTS = [
    '[{"session":"s","seq":true}]',
    '[{"session":"s","seq":1.5}]',
    '[{"session":"s","seq":-1}]',
    '[{"session":"s","seq":9223372036854775808}]',
    '[{"session":"s","seq":"1"}]',
    '[{"session":"s","epoch":null,"seq":1}]',
    '[{"session":"s"}]',
    '[{"seq":1}]',
    '[{"session":"","seq":1}]',
    '[{"session":1,"seq":1}]',
    '[{"session":"s","seq":1,"seq":2}]',
    '[{"session":"s","seq":1e999}]',
    '[["s",0,1]]',
    "[null]",
    "{}",
    '"ALL"',
    "1",
    "null",
    "true",
    '"\\ud800"',
]


@pytest.mark.parametrize("spelled", BAD_POINTS)
def test_malformed_from(relay: Inside, spelled: str) -> None:
    answer = ask(relay.port, request("GET", f"/stream?from={quote(spelled)}"))
    assert answer.error == (400, "invalid-parameter")
    with Socket(relay.port) as socket:
        socket.greet()
        socket.send(frame(b'{"type":"subscribe","id":"a","from":%b}' % spelled.encode()))
        refusal = socket.heard()
        assert (refusal["type"], refusal["code"], refusal.get("id", "a")) == ("error", "invalid-filter", "a")
        assert socket.is_alive()


BAD_FILTERS = [
    '{"agent":"a","agent":"b"}',
    '{"severity":{"gte":"info","gte":"error"}}',
    '{"seq":1}',
    '{"data":{}}',
    '{"epoch":1.5}',
    '{"agent":[]}',
    '{"agent":[[]]}',
    '{"agent":null}',
    '{"agent":{"gte":"a"}}',
    '{"severity":{}}',
    '{"severity":{"gt":"info"}}',
    '{"type":"*"}',
    '{"type":"a*"}',
    '{"Agent":"a"}',
    '{"$where":"1"}',
    '{"agent":"\\ud800"}',
    '{"agent":NaN}',
    "[]",
    "null",
    '"x"',
    "{",
    '{"agent":' + "[" * 300 + "]" * 300 + "}",
]


@pytest.mark.parametrize("spelled", BAD_FILTERS, ids=lambda spelled: spelled[:24])
def test_malformed_filters_fail_closed(relay: Inside, spelled: str) -> None:
    answer = ask(relay.port, request("GET", f"/stream?filter={quote(spelled)}"))
    assert answer.error == (400, "invalid-parameter")
    with Socket(relay.port) as socket:
        socket.greet()
        socket.send(frame(b'{"type":"subscribe","id":"a","filter":%b}' % spelled.encode()))
        refusal = socket.heard()
        assert refusal["type"] == "error"
        assert refusal["code"] in ("invalid-filter", "invalid-frame", "bad-json")
        assert socket.is_alive()
        assert socket.subscribe("a")["type"] == "subscribed"


@pytest.mark.parametrize(
    "last", ["", "s", "s:1", "s:0:-1", "s:0:1.0", "s:0:9223372036854775808", ":0:1", "s:0:\xff"]
)
def test_malformed_last_event_ids(relay: Inside, last: str) -> None:
    answer = ask(relay.port, request("GET", "/stream?live=0", Last_Event_ID=last))
    # An empty one is what a browser has before the first Event.
    assert answer.status == (400 if last else 200)


MANGLED_FRAMES = [
    b'{"type":"ping","t":1,"t":2}',
    b'{"type":"ping","type":"pong"}',
    b'{"type":"unsubscribe"}',
    b'{"type":"unsubscribe","id":1}',
    b'{"type":"unsubscribe","id":""}',
    b'{"type":"unsubscribe","id":"%b"}' % (b"a" * 257),
    b'{"type":"roster"}',
    b'{"type":"roster","id":null}',
    b'{"type":"subscribe"}',
    b'{"type":"subscribe","id":[]}',
    b'{"type":"subscribe","id":"a","capture":"all"}',
    b'{"type":"subscribe","id":"a","capture":2}',
    b'{"type":"ping","t":%b}' % (b"[" * 300 + b"]" * 300),
    b'{"type":"ping","t":1e999999}',
    b'{"type":"ping","t":%b}' % (b"9" * 5000),
    b'{"type":"x","type":"x"}',
]


@pytest.mark.parametrize("text", MANGLED_FRAMES, ids=lambda text: repr(text[:40]))
def test_mangled_frames_are_answered_and_survived(relay: Inside, text: bytes) -> None:
    with Socket(relay.port) as socket:
        socket.greet()
        socket.send(frame(text))
        refusal = socket.heard()
        assert (refusal["type"], refusal["code"]) in (("error", "invalid-frame"), ("error", "invalid-filter"))
        assert socket.is_alive()


@pytest.mark.parametrize(
    "text",
    [
        b'{"type":"hello"}',
        b'{"type":"closing","reason":5}',
        b'{"type":"x"}',
        b'{"type":""}',
        b'{"type":"pong"}',
        b'{"type":"x","y":1e999999}',
        b'{"type":"x","y":%b}' % (b"9" * 5000),
        b'{"y":"\\ud800","type":"x"}',
        b'{"type":"x","y":%b}' % (b"[" * 300_000 + b"]" * 300_000),
    ],
    ids=lambda text: repr(text[:40]),
)
def test_frames_that_ask_for_nothing_are_ignored(relay: Inside, text: bytes) -> None:
    with Socket(relay.port) as socket:
        socket.greet()
        socket.send(frame(text))
        assert socket.is_alive()


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b'{"type":"subscribe","id":"a","filter":%b}', "invalid-filter"),
        (b'{"filter":%b,"type":"ping"}', "invalid-event"),
    ],
)
def test_a_text_too_deep_to_tell_what_it_is_is_refused_as_the_event_it_may_be(
    relay: Inside, text: bytes, code: str
) -> None:
    with Socket(relay.port) as socket:
        socket.greet()
        socket.send(frame(text % (b'{"a":' * 100_000 + b"1" + b"}" * 100_000)))
        refusal = socket.heard()
        assert (refusal["type"], refusal["code"]) == ("error", code)
        assert "nested" in refusal["detail"]
        assert socket.is_alive()


def test_a_batch_of_blank_lines_is_empty(relay: Inside) -> None:
    assert ask(relay.port, post(b"\n" * 2_000_000)).json == {"accepted": 0}


def test_a_batch_of_a_million_lines_is_refused(relay: Inside) -> None:
    answer = ask(relay.port, post(b"{}\n" * 1_000_000))
    assert (answer.status, answer.json["index"]) == (400, 0)


def test_too_many_events_in_one_post(relay: Inside) -> None:
    lines = b"\n".join(event(number, "many") for number in range(10_001))
    assert ask(relay.port, post(lines)).error == (413, "limit-exceeded")
    assert relay.call(lambda: relay.service.relay.store.get("many")) is None


def test_deep_query_strings(relay: Inside) -> None:
    with Raw(relay.port) as raw:
        raw.send(request("GET", "/stream?" + "&".join(["a=b"] * 5000)))
        assert raw.answer().error == (400, "bad-request")
