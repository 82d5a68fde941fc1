"""What the reader accepts, another implementation reads as the same requests: nothing can be smuggled past either."""

from __future__ import annotations

import h11
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from aep_relay.transport.deadlines import Deadlines
from aep_relay.transport.http import HttpReader, HttpRefusal
from tests.fakes.wire import MemoryWire
from tests.transport.conversation import LIMITS

Reading = tuple[bytes, bytes, list[tuple[bytes, bytes]], bytes]
"""Method, target, headers and body."""

MAX_BODY_BYTES = 1 << 20

REQUESTS = [
    b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET http://b/c HTTP/1.1\r\nHost: a\r\n\r\n",
    b"POST /e HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
    b"POST /e HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    b"POST /e HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5;q\r\nhello\r\n0\r\nT: z\r\n\r\n",
    b"POST /e HTTP/1.0\r\nContent-Length: 2\r\n\r\nhi",
]
PIECES = [
    b"Content-Length: 5\r\n",
    b"Content-Length: 05 \r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding:\tChunked\r\n",
    b"Connection: close\r\n",
    b"Host: b\r\n",
    b"X:\r\n",
    b"5\r\nhello\r\n",
    b"0\r\n",
    b"\r\n",
    b"\n",
    b"\r",
    b" ",
    b"\t",
    b"\0",
    b":",
    b";",
    b",",
    b"\xe9",
    b"5",
]


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    data = b"".join(draw(st.lists(st.sampled_from(REQUESTS), min_size=1, max_size=3)))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data)))
        cut = draw(st.integers(0, 3))
        data = data[:at] + draw(st.sampled_from([b"", *PIECES])) + data[at + cut :]
    return data


async def read_here(data: bytes) -> list[Reading]:
    wire = MemoryWire([data] if data else [])
    wire.feed_end()
    reader = HttpReader(wire, LIMITS, Deadlines())
    readings: list[Reading] = []
    try:
        while (request := await reader.next_request()) is not None:
            body = await reader.read_body(MAX_BODY_BYTES)
            readings.append((request.method.encode(), request.target, request.headers, body))
    except HttpRefusal:
        pass
    return readings


def read_there(data: bytes, count: int) -> list[Reading]:
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(data)
    connection.receive_data(b"")
    readings: list[Reading] = []
    for number in range(count):
        if number:
            connection.start_next_cycle()
        request = connection.next_event()
        assert isinstance(request, h11.Request)
        body = b""
        while isinstance(event := connection.next_event(), h11.Data):
            body += bytes(event.data)
        assert isinstance(event, h11.EndOfMessage)
        readings.append((request.method, request.target, list(request.headers), body))
        connection.send(h11.Response(status_code=200, headers=[("Content-Length", "0")]))
        connection.send(h11.EndOfMessage())
    return readings


def normal(readings: list[Reading]) -> list[Reading]:
    """``readings`` without what h11 normalises itself."""
    return [
        (method, target, [(n, v.lower() if n == b"transfer-encoding" else v) for n, v in headers], body)
        for method, target, headers, body in readings
    ]


@settings(max_examples=300)
@given(mutated())
def test_both_read_the_same(data: bytes) -> None:
    here = trio.run(read_here, data)
    try:
        there = read_there(data, len(here))
    except h11.RemoteProtocolError as error:
        # Empty lines before a request, behind a body too, which RFC 9112 §2.2 lets a server ignore, h11 does not.
        if str(error) == "no request line received":
            return
        raise
    assert normal(there) == normal(here)


def test_the_requests_themselves_are_read_whole() -> None:
    for request in REQUESTS:
        data = REQUESTS[0] + request
        assert len(trio.run(read_here, data)) == 2
        assert len(read_there(data, 2)) == 2
