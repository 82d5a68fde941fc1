"""RFC 6455 case by case, as wide as the Autobahn suite's list, on raw sockets.

The relay is no echo server: what a case has to show is that a message arrived whole is shown by the answer to it, an
``error`` frame with the message's ``id`` or a ``pong`` with its ``t``. Section numbers in brackets are Autobahn's.
"""

from __future__ import annotations

import json
import struct
from itertools import pairwise
from typing import Any

import pytest

from tests.hardening.client import (
    BINARY,
    CLOSE,
    CONTINUATION,
    HELLO,
    PING,
    PONG,
    TEXT,
    Farewell,
    Raw,
    Socket,
    ask,
    frame,
    said,
    upgrade,
)
from tests.hardening.inside import Inside

BOUNDARIES = (0, 1, 125, 126, 127, 128, 65_535, 65_536, 70_000)


@pytest.fixture
def socket(relay: Inside) -> Any:
    with Socket(relay.port) as socket:
        yield socket.greet()


def padded(size: int) -> bytes:
    """An AEP ping of ``size`` bytes, which is answered with its ``t``."""
    bare = len('{"type":"ping","t":""}')
    return b'{"type":"ping","t":"%b"}' % (b"*" * (size - bare))


def came_whole(socket: Socket, size: int) -> bool:
    return bool(socket.heard() == {"type": "pong", "t": "*" * (size - 22)})


# Framing and lengths (§5.2) [1.1, 1.2]


@pytest.mark.parametrize("size", [size for size in BOUNDARIES if size > 22])
def test_text_of_every_length(socket: Socket, size: int) -> None:
    socket.send(frame(padded(size)))
    assert came_whole(socket, size)


@pytest.mark.parametrize("size", [0, 1])
def test_a_text_that_is_no_json_is_answered_in_band(socket: Socket, size: int) -> None:
    socket.send(frame(b"x" * size))
    assert socket.heard()["code"] == "bad-json"
    assert socket.is_alive()


@pytest.mark.parametrize("chop", [1, 2, 3, 5, 997, 1460])
def test_a_text_of_65536_bytes_in_segments(socket: Socket, chop: int) -> None:
    data = frame(padded(65_536))
    socket.send_slowly(data[:40], min(chop, 8))
    socket.send_slowly(data[40:], max(chop, 700))
    assert came_whole(socket, 65_536)


def test_a_frame_octet_by_octet(socket: Socket) -> None:
    socket.send_slowly(frame(padded(300)), 1)
    assert came_whole(socket, 300)


@pytest.mark.parametrize("size", BOUNDARIES)
def test_binary_of_every_length_is_refused(socket: Socket, size: int) -> None:
    """AEP-0003 §3.5.2 reserves binary frames; RFC 6455 §7.4.1 has 1003 for data that cannot be accepted."""
    socket.send(frame(b"\xfe" * size, BINARY))
    farewell = socket.until_closed()
    assert (farewell.code, farewell.errors) == (1003, ["binary-unsupported"])


@pytest.mark.parametrize(
    ("bits", "size"), [(16, 23), (16, 125), (64, 23), (64, 125), (64, 126), (64, 65_535)]
)
def test_a_length_in_more_octets_than_it_takes(socket: Socket, bits: int, size: int) -> None:
    """§5.2: the minimal number of bytes MUST be used, which binds the sender. No clause tells the receiver to fail
    the connection, and whatever its encoding the length is one number: nothing can be smuggled behind it."""
    socket.send(frame(padded(size), length_bits=bits))
    assert came_whole(socket, size)


@pytest.mark.parametrize("length", [1 << 63, (1 << 63) + 10, (1 << 64) - 1])
def test_a_length_with_its_highest_bit_set(socket: Socket, length: int) -> None:
    """§5.2: the most significant bit MUST be 0. It is more than any message may have: 1009 says no less."""
    socket.send(frame(b"", length_bits=64, declared=length))
    assert socket.until_closed().code == 1009


@pytest.mark.parametrize("length", [(1 << 63) - 1, 1 << 40, 17 << 20])
def test_a_length_beyond_the_limit_is_refused_before_the_payload(socket: Socket, length: int) -> None:
    """§7.4.1, 1009."""
    socket.send(frame(b"", length_bits=64, declared=length))
    farewell = socket.until_closed()
    assert (farewell.code, farewell.reason) == (1009, "message-too-big")


# Masking (§5.1, §5.3)


@pytest.mark.parametrize("opcode", [TEXT, BINARY, CONTINUATION, CLOSE, PING, PONG])
def test_an_unmasked_frame_fails_the_connection(socket: Socket, opcode: int) -> None:
    socket.send(frame(b"\x03\xe8", opcode, mask=None))
    farewell = socket.until_closed()
    assert (farewell.code, farewell.reason) == (1002, "protocol-error")


@pytest.mark.parametrize("mask", [b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x01\x80\x00\x7f"])
@pytest.mark.parametrize("size", [23, 24, 25, 26, 27, 1003])
def test_any_mask_is_undone(socket: Socket, mask: bytes, size: int) -> None:
    socket.send(frame(padded(size), mask=mask))
    assert came_whole(socket, size)


# Pings and pongs (§5.5.2, §5.5.3) [2]


@pytest.mark.parametrize("payload", [b"", b"Hello, world!", b"\0\xff\xfe\xfd\xfc\xfb\0\xff", b"\xfe" * 125])
def test_a_ping_is_answered_with_its_payload(socket: Socket, payload: bytes) -> None:
    socket.send(frame(payload, PING))
    assert socket.frame() == (PONG, payload)


@pytest.mark.parametrize("opcode", [PING, PONG, CLOSE])
@pytest.mark.parametrize("size", [126, 127, 128, 65_535, 65_536])
def test_a_control_frame_of_more_than_125_bytes_fails_the_connection(
    socket: Socket, opcode: int, size: int
) -> None:
    """§5.5."""
    socket.send(frame(b"\x03\xe8" + b"a" * (size - 2), opcode))
    assert socket.until_closed().code == 1002


def test_a_ping_of_125_bytes_octet_by_octet(socket: Socket) -> None:
    socket.send_slowly(frame(b"\xfe" * 125, PING))
    assert socket.frame() == (PONG, b"\xfe" * 125)


@pytest.mark.parametrize("payload", [b"", b"unsolicited"])
def test_a_pong_that_nobody_asked_for_is_ignored(socket: Socket, payload: bytes) -> None:
    socket.send(frame(payload, PONG) + frame(b"x", PING))
    assert socket.frame() == (PONG, b"x")


@pytest.mark.parametrize("chop", [None, 1])
def test_ten_pings_are_answered_in_order(socket: Socket, chop: int | None) -> None:
    data = b"".join(frame(b"payload-%d" % number, PING) for number in range(10))
    socket.send_slowly(data, chop or len(data))
    assert [socket.frame() for _ in range(10)] == [(PONG, b"payload-%d" % number) for number in range(10)]


# Reserved bits (§5.2) [3]


@pytest.mark.parametrize("rsv", range(1, 8))
@pytest.mark.parametrize("opcode", [TEXT, PING, PONG, CLOSE, BINARY])
def test_a_reserved_bit_fails_the_connection(socket: Socket, rsv: int, opcode: int) -> None:
    """No extension was negotiated."""
    payload = struct.pack("!H", 1000) if opcode == CLOSE else b"abc"
    socket.send(said({"type": "ping", "t": 1}) + frame(payload, opcode, rsv=rsv) + frame(b"late", PING))
    farewell = socket.until_closed()
    assert farewell.code == 1002
    assert farewell.pongs == []
    assert farewell.texts[0] == {"type": "pong", "t": 1}


# Reserved opcodes (§5.2) [4]


@pytest.mark.parametrize("opcode", [3, 4, 5, 6, 7, 11, 12, 13, 14, 15])
@pytest.mark.parametrize("payload", [b"", b"reserved", b"a" * 200])
def test_a_reserved_opcode_fails_the_connection(socket: Socket, opcode: int, payload: bytes) -> None:
    socket.send(said({"type": "ping", "t": 1}) + frame(payload, opcode) + frame(b"late", PING))
    farewell = socket.until_closed()
    assert farewell.code == 1002
    assert farewell.pongs == []
    assert farewell.texts[0] == {"type": "pong", "t": 1}


# Fragmentation (§5.4) [5]


def pieces(payload: bytes, *cuts: int, opcode: int = TEXT) -> list[bytes]:
    """``payload`` as the frames of one message, cut at ``cuts``."""
    edges = [0, *cuts, len(payload)]
    parts = [payload[start:end] for start, end in pairwise(edges)]
    last = len(parts) - 1
    return [
        frame(part, CONTINUATION if number else opcode, fin=number == last)
        for number, part in enumerate(parts)
    ]


@pytest.mark.parametrize("opcode", [PING, PONG, CLOSE])
def test_a_control_frame_is_not_fragmented(socket: Socket, opcode: int) -> None:
    socket.send(frame(b"", opcode, fin=False) + frame(b"", CONTINUATION))
    assert socket.until_closed().code == 1002


@pytest.mark.parametrize("cuts", [(1,), (5, 10), (0,), (30,), (0, 0, 15, 15, 30), tuple(range(1, 30))])
@pytest.mark.parametrize("chop", [None, 1])
def test_a_text_in_fragments(socket: Socket, cuts: tuple[int, ...], chop: int | None) -> None:
    data = b"".join(pieces(padded(30), *cuts))
    socket.send_slowly(data, chop or len(data))
    assert came_whole(socket, 30)


@pytest.mark.parametrize("chop", [None, 1])
def test_control_frames_between_fragments_are_answered_at_once(socket: Socket, chop: int | None) -> None:
    first, second, third = pieces(padded(40), 10, 20)
    data = frame(b"0", PING).join([first, second, frame(b"", PONG), third])
    socket.send_slowly(data, chop or len(data))
    assert [socket.frame()[0] for _ in range(3)] == [PONG] * 3
    assert came_whole(socket, 40)


def test_a_ping_is_answered_while_the_message_is_incomplete(socket: Socket) -> None:
    first, second = pieces(padded(40), 10)
    socket.send(first + frame(b"now", PING))
    assert socket.frame() == (PONG, b"now")
    socket.send(second)
    assert came_whole(socket, 40)


@pytest.mark.parametrize("fin", [True, False])
@pytest.mark.parametrize("before", [b"", frame(padded(30)), b"".join(pieces(padded(30), 7))])
def test_a_continuation_of_nothing_fails_the_connection(socket: Socket, before: bytes, fin: bool) -> None:
    socket.send(before + frame(b"non-continuation payload", CONTINUATION, fin=fin) + frame(padded(30)))
    farewell = socket.until_closed()
    assert farewell.code == 1002
    assert [text["type"] for text in farewell.texts] == ["pong"] * bool(before) + ["closing"]


@pytest.mark.parametrize("opcode", [TEXT, BINARY])
@pytest.mark.parametrize("fin", [True, False])
def test_a_new_message_within_a_message_fails_the_connection(socket: Socket, opcode: int, fin: bool) -> None:
    socket.send(frame(padded(30)[:9], fin=False) + frame(padded(30), opcode, fin=fin))
    farewell = socket.until_closed()
    assert farewell.code == 1002
    assert farewell.errors == []


def test_two_fragmented_messages_do_not_mix(socket: Socket) -> None:
    one, other = padded(40), b'{"type":"ping","t":"b"}'
    socket.send(b"".join(pieces(one, 3, 39) + pieces(other, 2)))
    assert came_whole(socket, 40)
    assert socket.heard()["t"] == "b"


def test_a_binary_message_is_refused_at_its_first_fragment(socket: Socket) -> None:
    socket.send(frame(b"\0", BINARY, fin=False))
    assert socket.until_closed().code == 1003


# UTF-8 (§8.1) [6, 7.5]

VALID_UTF8 = [
    "Hello-µ@ßöäüàá-UTF-8!!",
    "κόσμε",
    "\0\x7f",
    "\x80\u07ff\u0800\ud7ff\ue000\ufffd\uffff",
    "\U00010000\U0010ffff",
    "\ufffe\U0001fffe\U000fffff",
]

INVALID_UTF8 = [
    b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5\xed\xa0\x80\x65\x64\x69\x74\x65\x64",
    b"\x80",
    b"\xbf",
    b"\x80\xbf",
    bytes(range(0x80, 0xC0)),
    b"\xc0 ",
    b"\xc3",
    b"\xe0\x80",
    b"\xe2\x82",
    b"\xf0\x9f\x90",
    b"\xfe",
    b"\xff",
    b"\xfe\xfe\xff\xff",
    b"\xc0\xaf",
    b"\xe0\x80\xaf",
    b"\xf0\x80\x80\xaf",
    b"\xf8\x80\x80\x80\xaf",
    b"\xfc\x80\x80\x80\x80\xaf",
    b"\xc1\xbf",
    b"\xe0\x9f\xbf",
    b"\xf0\x8f\xbf\xbf",
    b"\xf8\x87\xbf\xbf\xbf",
    b"\xc0\x80",
    b"\xed\xa0\x80",
    b"\xed\xbf\xbf",
    b"\xed\xa0\x80\xed\xb0\x80",
    b"\xed\xaf\xbf\xed\xbf\xbf",
    b"\xf4\x90\x80\x80",
    b"\xf7\xbf\xbf\xbf",
    b"\xef\xbf",
]


def pinging(text: bytes) -> bytes:
    return b'{"type":"ping","t":"%b"}' % text


@pytest.mark.parametrize("text", VALID_UTF8, ids=ascii)
@pytest.mark.parametrize("cut", ["whole", "every octet", "every segment"])
def test_valid_utf_8_however_it_is_cut(socket: Socket, text: str, cut: str) -> None:
    spelled = json.dumps(text, ensure_ascii=False)[1:-1].encode()
    payload = pinging(spelled)
    if cut == "every octet":
        socket.send(b"".join(pieces(payload, *range(1, len(payload)))))
    else:
        socket.send_slowly(frame(payload), 1 if cut == "every segment" else len(payload) + 14)
    assert socket.heard()["t"] == text


@pytest.mark.parametrize("text", INVALID_UTF8, ids=ascii)
@pytest.mark.parametrize("cut", ["whole", "every octet"])
def test_invalid_utf_8_closes_with_1007(socket: Socket, text: bytes, cut: str) -> None:
    payload = pinging(text)
    parts = pieces(payload, *range(1, len(payload))) if cut == "every octet" else [frame(payload)]
    socket.send(b"".join(parts))
    farewell = socket.until_closed()
    assert (farewell.code, farewell.reason, farewell.errors) == (1007, "not-utf-8", [])


@pytest.mark.parametrize("end", [b"\xf4\x90\x80\x80", b"\xce"])
def test_invalid_utf_8_may_wait_for_the_message_to_end(socket: Socket, end: bytes) -> None:
    """§8.1 asks to fail the connection when a stream is found not to be UTF-8, and sets no moment. [6.4, "fail
    fast", is not strict.] A message is judged whole: until then its bytes cost as much as good ones."""
    socket.send(frame(pinging(b"x") + end, fin=False) + frame(b"alive", PING))
    assert socket.frame() == (PONG, b"alive")
    socket.send(frame(b"", CONTINUATION))
    assert socket.until_closed().code == 1007


def test_a_code_point_split_across_fragments_with_a_ping_between(socket: Socket) -> None:
    payload = pinging("\U0001f600".encode())
    at = payload.index(b"\xf0") + 2
    first, second = pieces(payload, at)
    socket.send(first + frame(b"\xff", PING) + second)
    assert socket.frame() == (PONG, b"\xff")
    assert socket.heard()["t"] == "\U0001f600"


# Closing (§5.5.1, §7) [7]

VALID_CODES = [1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000, 3999, 4000, 4999]
REGISTERED_LATER = [1012, 1013, 1014]
INVALID_CODES = [0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65_535]


def closing(code: int, reason: bytes = b"") -> bytes:
    return frame(struct.pack("!H", code) + reason, CLOSE)


@pytest.mark.parametrize("code", VALID_CODES + REGISTERED_LATER)
@pytest.mark.parametrize("reason", [b"", b"a" * 123, "\u263a".encode() * 41])
def test_a_close_is_echoed_and_is_the_last(socket: Socket, code: int, reason: bytes) -> None:
    """Codes registered since with IANA are as good as the RFC's own (§7.4.2)."""
    socket.send(closing(code, reason) + frame(b"late", PING) + frame(padded(30)))
    assert socket.until_closed() == Farewell(code, [], [], "end")


def test_a_close_without_a_code(socket: Socket) -> None:
    socket.send(frame(b"", CLOSE))
    assert socket.until_closed() == Farewell(1005, [], [], "end")


@pytest.mark.parametrize("code", INVALID_CODES)
@pytest.mark.parametrize("reason", [b"", b"reason"])
def test_a_close_with_a_code_that_may_not_be_sent(socket: Socket, code: int, reason: bytes) -> None:
    """§7.4."""
    socket.send(closing(code, reason))
    assert socket.until_closed().code == 1002


def test_a_close_of_one_byte(socket: Socket) -> None:
    socket.send(frame(b"\x03", CLOSE))
    assert socket.until_closed().code == 1002


@pytest.mark.parametrize("reason", INVALID_UTF8, ids=ascii)
def test_a_close_whose_reason_is_not_utf_8(socket: Socket, reason: bytes) -> None:
    """§5.5.1 and §8.1."""
    socket.send(closing(1000, reason[:123]))
    assert socket.until_closed().code == 1007


def test_two_closes(socket: Socket) -> None:
    socket.send(closing(1000) + closing(1001))
    assert socket.until_closed() == Farewell(1000, [], [], "end")


@pytest.mark.parametrize("size", [30, 262_144])
def test_messages_before_a_close_are_handled(socket: Socket, size: int) -> None:
    socket.send(frame(padded(size)) + frame(b"p", PING) + closing(1000) + frame(b"late", PING))
    farewell = socket.until_closed()
    assert (farewell.code, farewell.pongs) == (1000, [b"p"])
    assert [text["type"] for text in farewell.texts] == ["pong"]


def test_a_close_within_a_fragmented_message(socket: Socket) -> None:
    """A control frame may stand there (§5.4), and nothing sent after a close is processed (§5.5.1): the message can
    never be completed. Its sender is told that it did not come whole, which a code other than the echoed one does."""
    socket.send(frame(b"fragment", fin=False) + closing(1000))
    farewell = socket.until_closed()
    assert farewell.code == 1002
    assert farewell.end == "end"


def test_the_end_without_a_close(socket: Socket) -> None:
    """§7.1.5: there is no close frame to answer."""
    socket.finish()
    assert socket.until_closed().end == "end"


@pytest.mark.parametrize("part", [frame(b"x" * 100)[:50], frame(b"", PING)[:1], frame(b"a", fin=False)])
def test_the_end_within_a_frame_or_message(socket: Socket, part: bytes) -> None:
    socket.send(part)
    socket.finish()
    farewell = socket.until_closed()
    assert farewell.end == "end"
    assert farewell.errors == []


def test_closes_that_cross(socket: Socket) -> None:
    """The relay begins to close (an oversized length); the peer's own close was on its way: each side sends one."""
    socket.send(frame(b"", length_bits=64, declared=1 << 40) + closing(1000))
    assert socket.until_closed().code == 1009


def test_after_the_relays_close_nothing_is_processed(socket: Socket) -> None:
    """§7.1.7."""
    socket.send(frame(b"x", rsv=4) + said({"type": "ping", "t": 1}) * 10 + frame(b"p", PING) * 10)
    farewell = socket.until_closed()
    assert farewell.code == 1002
    assert [text["type"] for text in farewell.texts] == ["closing"]
    assert farewell.pongs == []


def test_a_peer_that_never_answers_the_close_is_left(relay: Inside) -> None:
    """§7.1.1: the server closes the TCP connection first."""
    with Socket(relay.port) as socket:
        socket.greet()
        socket.send(frame(b"x", rsv=1))
        assert socket.until_closed().code == 1002


# Limits [9, 10]


@pytest.mark.parametrize("fragment_bytes", [None, 64, 1024, 65_536])
@pytest.mark.parametrize("size", [262_144, 1_048_576])
def test_large_messages(socket: Socket, size: int, fragment_bytes: int | None) -> None:
    """Up to ``max_frame_bytes`` for what is no Event."""
    data = padded(size)
    if fragment_bytes is None:
        socket.send(frame(data))
    else:
        socket.send(b"".join(pieces(data, *range(fragment_bytes, size, fragment_bytes))))
    assert came_whole(socket, size)


def test_a_message_over_the_limit_in_fragments(socket: Socket) -> None:
    """Each is small, together they are more than twice ``max_event_bytes``."""
    piece = frame(b" " * (1 << 20), CONTINUATION, fin=False)
    socket.send(frame(b" ", fin=False))
    for _ in range(16):
        socket.send(piece)
    farewell = socket.until_closed()
    assert (farewell.code, farewell.reason) == (1009, "message-too-big")


def test_ten_thousand_small_messages(socket: Socket) -> None:
    count = 10_000
    socket.send(said({"type": "x"}) * count + frame(padded(30)))
    assert came_whole(socket, 30)


# The opening handshake (§4.2) [12 is about extensions: none are offered]

FIELD_SPELLINGS = [
    {"Upgrade": "WebSocket"},
    {"Upgrade": "WEBSOCKET", "Connection": "UPGRADE"},
    {"Connection": "keep-alive, Upgrade"},
    {"Connection": "keep-alive ,\tupgrade , x"},
    {"Connection": "keep-alive\r\nConnection: Upgrade"},
    {"Connection": "Upgrade\r\nconnection: keep-alive"},
    {"Connection": "x,\r\nX-Y: z\r\nCONNECTION: upgrade"},
    {"Sec_WebSocket_Protocol": "chat, superchat"},
    {"Sec_WebSocket_Protocol": "aep\r\nSec-WebSocket-Protocol: other"},
    {"Sec_WebSocket_Extensions": "permessage-deflate; client_max_window_bits, x-webkit-deflate-frame"},
    {"Sec_WebSocket_Extensions": "unheard-of; a=1; b"},
]


@pytest.mark.parametrize("fields", FIELD_SPELLINGS, ids=str)
def test_spellings_of_the_handshake(relay: Inside, fields: dict[str, str]) -> None:
    """Tokens are compared without regard to case (§4.2.1); no subprotocol and no extension is chosen (§4.2.2)."""
    with Raw(relay.port) as raw:
        raw.send(upgrade(**fields))
        answer = raw.answer()
        assert answer.status == 101
        assert answer.headers["sec-websocket-accept"] == "BACScCJPNqyz+UBoqMH89VmURoA="
        assert not {"sec-websocket-protocol", "sec-websocket-extensions"} & answer.headers.keys()


REFUSED_HANDSHAKES = [
    ({"Sec_WebSocket_Key": None}, 400),
    ({"Sec_WebSocket_Key": ""}, 400),
    ({"Sec_WebSocket_Key": "short"}, 400),
    ({"Sec_WebSocket_Key": "MDEyMzQ1Njc4OWFiY2RlZg"}, 400),
    ({"Sec_WebSocket_Key": "MDEyMzQ1Njc4OWFiY2RlZmc="}, 400),
    ({"Sec_WebSocket_Key": "MDEyMzQ1Njc4OWFiY2RlZg==\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg=="}, 400),
    ({"Sec_WebSocket_Key": "MDEy\xe9MzQ1Njc4OWFiY2RlZg=="}, 400),
    ({"Sec_WebSocket_Version": None}, 400),
    ({"Sec_WebSocket_Version": ""}, 426),
    ({"Sec_WebSocket_Version": "8"}, 426),
    ({"Sec_WebSocket_Version": "12"}, 426),
    ({"Sec_WebSocket_Version": "013"}, 426),
    ({"Sec_WebSocket_Version": "13, 8"}, 426),
    ({"Sec_WebSocket_Version": "14"}, 426),
    ({"Upgrade": None}, 426),
    ({"Upgrade": "h2c"}, 426),
    ({"Connection": None}, 426),
    ({"Connection": "keep-alive"}, 426),
    ({"Connection": "xupgrade"}, 426),
]


@pytest.mark.parametrize(("fields", "status"), REFUSED_HANDSHAKES, ids=str)
def test_handshakes_that_are_none(relay: Inside, fields: dict[str, str | None], status: int) -> None:
    """§4.2.1; a 426 says which version is spoken here (§4.4)."""
    answer = ask(relay.port, upgrade(**fields))
    assert answer.error[0] == status
    if status == 426:
        assert (answer.headers["upgrade"], answer.headers["sec-websocket-version"]) == ("websocket", "13")


@pytest.mark.parametrize(
    ("was", "now", "status"),
    [
        ("GET", "POST", 405),
        ("GET", "PUT", 405),
        ("HTTP/1.1", "HTTP/1.0", 426),
        ("HTTP/1.1", "HTTP/2.0", 505),
        ("Host: 127.0.0.1\r\n", "", 400),
    ],
)
def test_request_lines_that_open_nothing(relay: Inside, was: str, now: str, status: int) -> None:
    data = upgrade().replace(was.encode(), now.encode(), 1)
    assert ask(relay.port, data).status == status


@pytest.mark.parametrize("cut", [1, 7, 100])
def test_a_handshake_in_segments(relay: Inside, cut: int) -> None:
    with Raw(relay.port) as raw:
        raw.send_slowly(upgrade(), cut)
        assert raw.answer().status == 101


def test_frames_may_come_with_the_handshake(relay: Inside) -> None:
    """Bytes behind the empty line are the first frames, whole or cut."""
    hello = said(HELLO)
    with Raw(relay.port) as raw:
        raw.send(upgrade() + hello + frame(b"with it", PING) + hello[:3])
        assert raw.answer().status == 101
        assert b"hello" in raw.until(b'"hello"')
        raw.until(b"\x8a\x07with it")


def test_a_frame_that_is_no_frame_may_come_with_the_handshake(relay: Inside) -> None:
    with Raw(relay.port) as raw:
        raw.send(upgrade() + b"GET / HTTP/1.1\r\n\r\n")
        assert raw.answer().status == 101
        assert raw.rest().startswith(b"\x88")


def test_a_socket_is_not_http_again(socket: Socket) -> None:
    socket.send(frame(b"", CLOSE) + upgrade())
    assert socket.until_closed() == Farewell(1005, [], [], "end")
