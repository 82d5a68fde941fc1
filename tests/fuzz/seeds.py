"""What mutation begins with: good input of every kind, some that is bad in an interesting way, and its vocabulary."""

from __future__ import annotations

import json

from tests.bindings.served import command, event, hello, request
from tests.fuzz.framing import FIN, MASKED, OPCODE_CLOSE, OPCODE_PING, OPCODE_TEXT, spelled

EMIT = {"AEP-Version": "0.1", "Content-Type": "application/json"}
CHUNKED = {**EMIT, "Transfer-Encoding": "chunked"}

UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "MDEyMzQ1Njc4OWFiY2RlZg==",
}

HTTP = [
    request("GET", "/healthz"),
    request("GET", "http://relay/stream?filter=%7B%7D&from=all&live=0", headers={"Last-Event-ID": "s:0:1"}),
    request("GET", "http://localhost/stream?filter=%7B%7D&live=0", headers={"Last-Event-ID": "s:0:1"}),
    request("GET", "/stream?from=all&capture=metadata&live=0&filter=%7B%22session%22%3A%22s%22%7D"),
    request("GET", "//x/../y%2f%00?a=b&a&=c+d%zz"),
    request("POST", "/events", b'{"a":1}', EMIT),
    request("POST", "/events", None, CHUNKED) + b"5;q=1\r\nhello\r\n0\r\nTrailer: x\r\n\r\n",
    request("POST", "/events", b"", {**EMIT, "Expect": "100-continue"}),
    request("OPTIONS", "*", headers={"Origin": "https://example.org"}),
    request("GET", "/socket", headers={"Connection": "keep-alive, Upgrade", "Upgrade": "websocket"})
    + b"\x81\x80abcd",
    request("GET", "/socket", headers=UPGRADE) + b"\x81\x80abcd",
    request("GET", "/events", version="1.0") + request("HEAD", "/events"),
]

EVENTS = [
    event(7, run="r", step="t", subject="é \U0001f600", severity="notice", epoch=1735689600000),
    event(1, data={"tool": {"name": "Bash"}, "args": [1, 2.5, None, True, '\\"[{']}, capture="full"),
    event(None, None, "agent.started", id="a"),
    event(None, "s", "attention.routed"),
    command(data={"answer": {"values": {"a": 1}}}),
    event(
        2,
        type_="x.acme.thing.happened",
        traceparent="00-" + "0" * 32 + "-" + "1" * 16 + "-01",
        acme=1,
        flag=True,
    ),
    event(
        3,
        type_="attention.requested",
        capture="full",
        data={"prompt": "x", "options": [{"id": "a", "label": "b"}]},
    ),
    event(
        3,
        type_="attention.requested",
        capture="redacted",
        subject="Bash",
        data={
            "prompt": "x",
            "kind": "form",
            "options": [{"id": "a", "label": "b"}, None, {"label": 1}],
            "fields": [{"id": "f", "label": "l", "choices": [{"id": "c", "label": "d"}, 2]}, []],
        },
    ),
    event(
        5,
        type_="attention.answered",
        capture="full",
        data={"answer": {"values": {"a": 1, "b": "x", "c": [1]}}},
    ),
    event(6, type_="attention.answered", capture="full", data={"answer": [], "by": {"id": "u", "a.b": 1}}),
    event(4)[:-1] + b',"seq":4.0,"\\u0061cme":1e2}',
    b' {"aep" : "0.1" }\r\n',
]

PARAMETERS = [
    b'F{"type":["tool.*","x.acme.*"],"severity":{"gte":"notice","lte":"error"},"session":"s","epoch":1.0,"acme":[1,true,"1"]}',
    b'P[{"session":"s:1","epoch":3,"seq":187},{"session":"t","seq":1e2,"more":null}]',
    b"Pall",
    b'P"all"',
    b"Ls:with:colons:3:187",
    b'S{"type":"subscribe","id":"a","filter":{"agent":["a","b"]},"from":"all","capture":"metadata"}',
    b'S{"type":"hello","versions":["0.2","0.1"],"role":"both","identity":{"agent":"a"},"capabilities":{"control":{"accepts":["x"]}}}',
]


def _said(message: object) -> bytes:
    return spelled(FIN | MASKED | OPCODE_TEXT, json.dumps(message).encode())


_SUBSCRIBE = _said({"type": "subscribe", "id": "a", "from": "all", "filter": {"session": "s"}})

_CANCEL = spelled(FIN | MASKED | OPCODE_TEXT, command("t"))
_CHAINED = {
    **hello("both", "leaf"),
    "capabilities": {
        "control": {"accepts": ["control.cancel", "x.acme.control.*"]},
        "experimental": {"aep-relay": {"relay": "leaf-1", "link": "hub", "fed_by": {"leaf-1": ["leaf-2"]}}},
    },
}


def _sent(*events: bytes) -> bytes:
    return b"".join(spelled(FIN | MASKED | OPCODE_TEXT, raw) for raw in events)


WEBSOCKET = [
    b"\1" + _SUBSCRIBE + _sent(event(1)) + _said({"type": "roster", "id": "r"}),
    b"\0" + _said(hello("consumer")) + _SUBSCRIBE + _said({"type": "unsubscribe", "id": "a"}),
    b"\1" + _said({"type": "ping", "t": [1, None]}) + spelled(FIN | MASKED | OPCODE_PING, b"p"),
    b"\1" + spelled(MASKED | OPCODE_TEXT, event(2)[:40]) + spelled(FIN | MASKED, event(2)[40:]),
    b"\1" + _sent(command()) + spelled(FIN | MASKED | OPCODE_CLOSE, b"\x03\xe8bye"),
    b"\1" + _said({"type": "closing", "reason": "x"}) + _said({"type": "x"}) + _said([1]),
    b"\3\x81\x85\0\0\0\0hello\x89\x80\0\0\0\0\x88\x82\0\0\0\0\x03\xe8",
    b"\2\x81\x7f\0\0\0\0\0\0\0\1",
    b"\5" + _CANCEL + _sent(command("s"), event(1, "t")) + _CANCEL + _said({"type": "roster", "id": "r"}),
    b"\4"
    + _said(_CHAINED)
    + _sent(event(1, "u"))
    + _said({"type": "aep-relay", "relay": "leaf-1", "fed_by": {}}),
    b"\5"
    + _SUBSCRIBE
    + _sent(event(3), event(None, None, "agent.started"), event(None, "s", "attention.routed")),
    b"\x09"
    + _said({"type": "subscribe", "id": "a", "from": [{"session": "s", "seq": 1}], "capture": "metadata"})
    + _said({"type": "subscribe", "id": "b", "filter": {"severity": {"gte": "notice"}}})
    + _sent(
        *(event(seq, severity="notice", capture="full", data={"text": "x" * 900}) for seq in range(3, 25))
    ),
    b"\x09"
    + _SUBSCRIBE
    + _sent(*(event(seq, severity="debug", data={"t": "x" * 900}) for seq in range(3, 20))),
    b"\x0d" + _SUBSCRIBE + _sent(event(3), event(1), command("s"), event(4, epoch=1)) + _SUBSCRIBE,
]

WORDS = [
    b'Content-Length: 5\r\n', b'Transfer-Encoding: chunked\r\n', b'Host: x\r\n', b'\r\n\r\n', b'\r\n',
    b'\n', b'\r', b'0\r\n', b'HTTP/1.1', b'HTTP/1.0', b'http://', b'GET ', b'POST ', b'%00', b'%ff', b'?',
    b'&', b'=', b':', b';', b',', b' ', b'\t', b'\x00', b'{', b'}', b'[', b']', b'"', b'\\', b'\\u0000',
    b'\\ud800', b'\\udc00', b'null', b'true', b'false', b'NaN', b'-0', b'1.0', b'1e2', b'1e999',
    b'9223372036854775807', b'9223372036854775808', b'9007199254740993', b'"aep":"0.1"', b'"seq":1',
    b'"data":{}', b'"type":', b'"tool.*"', b'"*"', b'{"gte":"info"}', b'all', b'\xff', b'\xc0\xaf',
    b'\xed\xa0\x80', b'\xf0\x9f\x98\x80', b'\xef\xbb\xbf', b'\xe2\x80\xa8', b"[" * 300, b"]" * 300,
    b"a" * 200, b'{"type":"subscribe","id":"a"}', b'"from":"all"', b'"filter":{}', b'"capture":"none"',
    b'"severity":"notice"', b'"epoch":1', b'"session":"t"', b'"cause":"c-1"', b'"experimental":{}', b"\xf5\xa1",
    b"\xf5\x21", b"\xf5\xa0", b"\xf5\xa9", b"\xf5\xa8", b"\xf5\xa2",
]  # fmt: skip
"""Pieces that mean something to one reader or another."""
