"""The requests of one connection: framing, pipelining, limits and deadlines."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from aep_relay.transport import http
from aep_relay.transport.deadlines import Deadlines
from aep_relay.transport.http import BodyTooLarge, HttpReader, HttpRefusal
from aep_relay.transport.response import refusal, response
from aep_relay.transport.wire import BrokenWire, Wire
from tests.fakes.wire import MemoryWire
from tests.transport.conversation import (
    LIMITS,
    MAX_BODY_BYTES,
    Limits,
    Outcome,
    bytewise,
    cuts,
    outcomes,
    sweeping,
)

HOST = b"Host: localhost\r\n"
GET = b"GET /stream HTTP/1.1\r\n" + HOST + b"\r\n"
POST = b"POST /events HTTP/1.1\r\n" + HOST


def post(body: bytes) -> bytes:
    return POST + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


def chunked(*parts: bytes) -> bytes:
    framed = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (*parts, b""))
    return POST + b"Transfer-Encoding: chunked\r\n\r\n" + framed


def reader_of(*chunks: bytes, limits: Limits = LIMITS) -> tuple[HttpReader, MemoryWire]:
    wire = MemoryWire(chunks)
    return HttpReader(wire, limits, Deadlines()), wire


POSTED: Outcome = ("request", "POST /events", b"hello")
GOT: Outcome = ("request", "GET /stream", b"")
END: Outcome = ("end",)

SEQUENCES: dict[str, tuple[bytes, list[Outcome]]] = {
    "nothing": (b"", [END]),
    "get": (GET, [GOT, END]),
    "post": (post(b"hello"), [POSTED, END]),
    "empty post": (post(b""), [("request", "POST /events", b""), END]),
    "chunked": (chunked(b"hel", b"lo"), [POSTED, END]),
    "pipelined": (post(b"hello") + GET + chunked(b"hello") + GET + GET, [POSTED, GOT, POSTED, GOT, GOT, END]),
    "line breaks between": (b"\r\n\r\n" + post(b"hello") + b"\r\n" + GET + b"\r\n", [POSTED, GOT, END]),
    "get with a body": (
        GET[:-2] + b"Content-Length: 5\r\n\r\nhello" + GET,
        [("request", "GET /stream", b"hello"), GOT, END],
    ),
    "a body that looks like a request": (post(GET) + GET, [("request", "POST /events", GET), GOT, END]),
    "closed": (GET[:-2] + b"Connection: close\r\n\r\n" + GET, [GOT, END]),
    "http/1.0": (b"GET /stream HTTP/1.0\r\n\r\n" + GET, [GOT, END]),
    "http/1.0 kept alive": (
        b"GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" + GET,
        [GOT, GOT, END],
    ),
    "http/1.0 without a length": (
        b"POST /events HTTP/1.0\r\n\r\nhello",
        [("request", "POST /events", b""), END],
    ),
    "half a head": (GET[:-1], [("refused", 400)]),
    "half a line": (b"GET", [("refused", 400)]),
    "half a body": (post(b"hello")[:-1], [("refused", 400)]),
    "half a chunk": (chunked(b"hello")[:-9], [("refused", 400)]),
    "no last chunk": (chunked(b"hello")[:-5], [("refused", 400)]),
    "no end of the trailer": (chunked(b"hello")[:-2], [("refused", 400)]),
    "a body too large": (post(bytes(MAX_BODY_BYTES + 1)) + GET, [("refused", 413), GOT, END]),
    "the largest body": (
        post(bytes(MAX_BODY_BYTES)),
        [("request", "POST /events", bytes(MAX_BODY_BYTES)), END],
    ),
    "chunks too large": (chunked(bytes(MAX_BODY_BYTES), b"x") + GET, [("refused", 413), END]),
    "a bad chunk": (chunked(b"hello").replace(b"5", b"+5"), [("refused", 400)]),
    "a good one before a bad one": (GET + b"GET /stream HTTP/1.1\r\n\r\n", [GOT, ("refused", 400)]),
    "nothing after a bad one": (b"GET / HTTP/3.0\r\n" + HOST + b"\r\n" + GET, [("refused", 505)]),
    "bare LFs": (b"GET / HTTP/1.1\nHost: localhost\n\n", [("refused", 400)]),
    "one bare LF": (b"GET / HTTP/1.1\nHost: localhost\r\n\r\n", [("refused", 400)]),
    "a bare LF at the end": (b"GET / HTTP/1.1\r\nHost: localhost\r\n\n", [("refused", 400)]),
    "a bare LF first": (b"\n" + GET, [("refused", 400)]),
    "a bare CR first": (b"\r" + GET, [("refused", 400)]),
    "a space first": (b" " + GET, [("refused", 400)]),
    "a NUL": (GET[:5] + b"\0" + GET[5:], [("refused", 400)]),
    "a TLS hello": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", [("refused", 400)]),
    "http/0.9": (b"GET /\r\n\r\n", [("refused", 400)]),
    "http/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", [("refused", 505)]),
    "length and coding": (
        POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + GET,
        [("refused", 400)],
    ),
    "two lengths": (POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!", [("refused", 400)]),
    "a huge head": (GET[:-2] + b"X: " + b"a" * 4000 + b"\r\n\r\n", [("refused", 431)]),
    "a huge head without an end": (GET[:-2] + b"X: " + b"a" * 4000, [("refused", 431)]),
    "a huge head of many fields": (GET[:-2] + b"X: a\r\n" * 1000 + b"\r\n", [("refused", 431)]),
    "a huge line": (b"GET /" + b"a" * 4000, [("refused", 431)]),
    "a huge head with a bare LF": (GET[:-2] + b"X: \n" + b"a" * 4000, [("refused", 400)]),
    "a huge head with a bare LF behind the limit": (
        GET[:-2] + b"X: " + b"a" * 4000 + b"\n",
        [("refused", 431)],
    ),
    "a coding that is unknown": (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n", [("refused", 501)]),
}


def largest_head() -> bytes:
    head = GET[:-2] + b"X: "
    return head + b"a" * (LIMITS.max_head_bytes - len(head) - 4) + b"\r\n\r\n"


SEQUENCES["the largest head"] = (largest_head() + GET, [GOT, GOT, END])
SEQUENCES["a byte more than the largest head"] = (b"GET /a" + largest_head()[5:], [("refused", 431)])
SEQUENCES["line breaks before the largest head"] = (b"\r\n\r\n" + largest_head(), [GOT, END])


@pytest.mark.parametrize("name", SEQUENCES)
async def test_sequences_whole_bytewise_and_with_trailing_data(name: str) -> None:
    data, expected = SEQUENCES[name]
    assert await outcomes([data] if data else []) == expected
    assert await outcomes(bytewise(data)) == expected
    if not name.startswith(("half", "no end", "no last")) and expected[-1] != END:
        assert await outcomes([data + b"trailing"]) == expected


@given(
    st.sampled_from(sorted(SEQUENCES)),
    st.sampled_from(sorted(SEQUENCES)),
    st.lists(st.integers(0, 5000), max_size=6),
)
def test_the_outcome_does_not_depend_on_the_cuts(first: str, second: str, at: list[int]) -> None:
    data = SEQUENCES[first][0] + SEQUENCES[second][0]
    whole = trio.run(outcomes, [data] if data else [])
    assert trio.run(outcomes, cuts(data, at) if data else []) == whole


PIECES = st.sampled_from(
    [
        GET,
        post(b"hello"),
        chunked(b"hello"),
        POST,
        HOST,
        b"GET / HTTP/1.1\r\n",
        b"Content-Length: 3\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Connection: close\r\n",
        b"0\r\n\r\n",
        b"\r\n",
        b"\n",
        b"\r",
        b"hello",
        b": ",
        b" ",
        b"\0",
        b"X" * 700,
    ]
)


@given(st.lists(PIECES, max_size=10).map(b"".join), st.lists(st.integers(0, 3000), max_size=6))
def test_no_bytes_have_an_unexpected_outcome(data: bytes, at: list[int]) -> None:
    whole = trio.run(outcomes, [data] if data else [])
    assert whole
    assert whole[-1][0] in ("end", "refused")
    assert trio.run(outcomes, cuts(data, at) if data else []) == whole


async def test_keep_alive_says_whether_another_request_can_follow() -> None:
    reader, _ = reader_of(GET, GET[:-2] + b"Connection: close\r\n\r\n")
    said = []
    while await reader.next_request():
        said.append(reader.keep_alive)
    assert said == [True, False]


async def test_a_short_body_that_nobody_read_is_skipped() -> None:
    reader, _ = reader_of(post(b"unwanted") + post(b"unwanted")[:-3], b"ted" + GET)
    for _ in range(2):
        request = await reader.next_request()
        assert request is not None
        assert request.method == "POST"
        assert reader.keep_alive
    request = await reader.next_request()
    assert request is not None
    assert request.method == "GET"


async def test_a_short_body_that_never_comes_ends_the_connection(autojump_clock: MockClock) -> None:
    async with sweeping() as deadlines:
        wire = MemoryWire([post(b"unwanted")[:-1]])
        reader = HttpReader(wire, LIMITS, deadlines)
        assert await reader.next_request()
        assert await reader.next_request() is None
        assert wire.take_sent() == b""


@pytest.mark.parametrize(
    "head",
    [
        POST + b"Content-Length: %d\r\n\r\n" % (http.MAX_SKIPPED_BYTES + 1),
        POST + b"Transfer-Encoding: chunked\r\n\r\n",
        POST + b"Content-Length: 5\r\nExpect: 100-continue\r\n\r\n",
    ],
)
async def test_a_body_that_can_not_be_skipped_cheaply_ends_the_connection(head: bytes) -> None:
    reader, wire = reader_of(head)
    assert await reader.next_request()
    assert not reader.keep_alive
    assert await reader.next_request() is None
    wire.feed_end()
    await reader.close()
    assert wire.write_ended


async def test_a_body_is_read_once() -> None:
    reader, _ = reader_of(post(b"hello") + GET)
    assert await reader.next_request()
    assert await reader.read_body(10) == b"hello"
    assert await reader.read_body(10) == b""


async def test_too_large_is_known_from_the_head_and_leaves_a_short_body_to_be_skipped() -> None:
    reader, _ = reader_of(post(b"hello") + GET)
    assert await reader.next_request()
    with pytest.raises(BodyTooLarge) as caught:
        await reader.read_body(4)
    assert caught.value.http_status == 413
    assert "4 bytes" in caught.value.detail
    assert reader.keep_alive
    request = await reader.next_request()
    assert request is not None
    assert request.method == "GET"


async def test_too_large_is_answered_before_anything_is_received() -> None:
    reader, wire = reader_of(POST + b"Content-Length: 5000000\r\nExpect: 100-continue\r\n\r\n")
    assert await reader.next_request()
    with pytest.raises(BodyTooLarge):
        await reader.read_body(MAX_BODY_BYTES)
    assert not reader.keep_alive
    assert wire.take_sent() == b""


@pytest.mark.parametrize("framing", [b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n"])
async def test_continue_is_said_when_the_body_is_about_to_be_read(framing: bytes) -> None:
    reader, wire = reader_of(POST + framing + b"Expect: 100-continue\r\n\r\n")
    assert await reader.next_request()
    assert wire.take_sent() == b""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reader.read_body, MAX_BODY_BYTES)
        await wait_all_tasks_blocked()
        assert wire.take_sent() == b"HTTP/1.1 100 Continue\r\n\r\n"
        wire.feed(b"hello" if b"Length" in framing else b"5\r\nhello\r\n0\r\n\r\n")
    assert wire.take_sent() == b""
    assert reader.keep_alive


@pytest.mark.parametrize("data", [post(b"hello"), chunked(b"hello")])
async def test_continue_is_not_said_to_who_did_not_wait(data: bytes) -> None:
    data = data.replace(HOST, HOST + b"Expect: 100-continue\r\n")
    cut = len(data) - 4
    reader, wire = reader_of(data[:cut], data[cut:])
    assert await reader.next_request()
    assert await reader.read_body(MAX_BODY_BYTES) == b"hello"
    assert wire.take_sent() == b""


async def test_rest_is_what_came_behind_the_head() -> None:
    head = b"GET /socket HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    for chunks in ([head + b"\x81\x80rest"], [head[:9], head[9:] + b"\x81\x80rest"], [*bytewise(head), b""]):
        reader, _ = reader_of(*chunks)
        request = await reader.next_request()
        assert request is not None
        assert request.upgrade_websocket
        assert request.raw_head == head
        assert reader.take_rest() == (b"\x81\x80rest" if len(chunks) < 3 else b"")
        assert reader.take_rest() == b""


async def test_every_request_is_a_checkpoint() -> None:
    reader, _ = reader_of(GET * 3)
    for _ in range(3):
        with trio.testing.assert_checkpoints():
            assert await reader.next_request()


async def test_an_idle_reader_holds_no_buffer() -> None:
    reader, _ = reader_of(post(b"hello") + GET)
    for _ in range(2):
        assert await reader.next_request()
        await reader.read_body(10)
    assert reader._buffer == b""


# Deadlines


async def test_an_idle_connection_ends_in_silence(autojump_clock: MockClock) -> None:
    async with sweeping() as deadlines:
        wire = MemoryWire([GET, b"\r\n"])
        reader = HttpReader(wire, LIMITS, deadlines)
        assert await reader.next_request()
        assert await reader.next_request() is None
        assert trio.current_time() == pytest.approx(LIMITS.idle_timeout_seconds, abs=1.1)
        assert not deadlines.waiting
    assert wire.take_sent() == b""


async def trickle(wire: MemoryWire, data: bytes, seconds: float = 1) -> None:
    for index in range(len(data)):
        wire.feed(data[index : index + 1])
        await trio.sleep(seconds)


async def late(reader: HttpReader, *, body: bool) -> int:
    if body:
        assert await reader.next_request()
    with pytest.raises(HttpRefusal) as caught:
        await (reader.read_body(MAX_BODY_BYTES) if body else reader.next_request())
    assert not reader.keep_alive
    return caught.value.http_status


async def test_a_head_has_a_total_deadline_against_a_byte_a_second(autojump_clock: MockClock) -> None:
    async with sweeping() as deadlines, trio.open_nursery() as nursery:
        wire = MemoryWire()
        nursery.start_soon(trickle, wire, GET[:-2] + b"X: a\r\n" * 100)
        assert await late(HttpReader(wire, LIMITS, deadlines), body=False) == 408
        assert trio.current_time() == pytest.approx(LIMITS.head_timeout_seconds, abs=1.1)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "framing", [b"Content-Length: 999\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n3e7\r\n"]
)
async def test_a_body_has_a_total_deadline_against_a_byte_a_second(
    framing: bytes, autojump_clock: MockClock
) -> None:
    async with sweeping() as deadlines, trio.open_nursery() as nursery:
        wire = MemoryWire([POST + framing])
        nursery.start_soon(trickle, wire, bytes(999))
        assert await late(HttpReader(wire, LIMITS, deadlines), body=True) == 408
        assert trio.current_time() == pytest.approx(LIMITS.body_timeout_seconds, abs=1.1)
        nursery.cancel_scope.cancel()


async def test_a_peer_that_never_pauses_is_late_all_the_same(autojump_clock: MockClock) -> None:
    class Gushing(MemoryWire):
        async def receive_some(self, max_bytes: int = 0) -> bytes:
            await trio.sleep(0.5)
            return b"x"

        def interrupt(self) -> None:
            raise AssertionError("it never waits")

    wire = Gushing([])
    reader = HttpReader(wire, Limits(max_head_bytes=1 << 20), Deadlines())
    assert await late(reader, body=False) == 408
    assert trio.current_time() == pytest.approx(LIMITS.head_timeout_seconds + 0.5, abs=0.6)


async def test_a_slow_request_within_its_deadlines_is_served(autojump_clock: MockClock) -> None:
    async with sweeping() as deadlines, trio.open_nursery() as nursery:
        wire = MemoryWire()
        nursery.start_soon(trickle, wire, post(b"hello") * 3, 0.1)
        reader = HttpReader(wire, LIMITS, deadlines)
        for _ in range(3):
            assert await reader.next_request()
            assert await reader.read_body(10) == b"hello"
        nursery.cancel_scope.cancel()


async def test_a_thousand_half_sent_heads_cost_no_task_and_all_get_their_answer(
    autojump_clock: MockClock,
) -> None:
    answered = []

    async def serve(wire: MemoryWire, deadlines: Deadlines) -> None:
        reader = HttpReader(wire, LIMITS, deadlines)
        answered.append(await late(reader, body=False))

    async with sweeping() as deadlines, trio.open_nursery() as nursery:
        for _ in range(1000):
            nursery.start_soon(serve, MemoryWire([GET[:20]]), deadlines)
        await wait_all_tasks_blocked()
        assert len(deadlines.waiting) == 1000
    assert answered == [408] * 1000


async def test_one_that_waits_for_something_else_by_now_is_not_late(autojump_clock: MockClock) -> None:
    async with sweeping() as deadlines:
        wire = MemoryWire([GET[:10]])
        reader = HttpReader(wire, LIMITS, deadlines)

        async def serve() -> None:
            assert await reader.next_request()
            assert await reader.next_request() is None

        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            await trio.sleep(LIMITS.head_timeout_seconds - 2)
            wire.feed(GET[10:])
            await trio.sleep(LIMITS.idle_timeout_seconds - 3)
            assert reader in deadlines.waiting
    assert trio.current_time() == pytest.approx(8 + LIMITS.idle_timeout_seconds, abs=1.1)


async def test_an_idle_reader_can_be_ended_and_one_in_mid_request_is_not_idle() -> None:
    deadlines = Deadlines()
    wire = MemoryWire([GET + GET[:9]])
    reader = HttpReader(wire, LIMITS, deadlines)
    seen: list[bool] = []

    async def serve() -> None:
        while await reader.next_request():
            seen.append(reader.idle)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        await wait_all_tasks_blocked()
        assert seen == [False]
        seen.append(reader.idle)
        wire.feed(GET[9:])
        await wait_all_tasks_blocked()
        assert seen == [False, False, False]
        assert reader.idle
        reader.expire()
    assert not wire.closed


# Answers and the end


async def test_an_answer_is_one_send() -> None:
    reader, wire = reader_of(GET)
    await reader.next_request()
    await reader.answer(response(202, b"{}", keep_alive=True))
    assert len(wire.sends) == 1


async def test_an_answer_waits_for_the_window() -> None:
    reader, wire = reader_of(GET)
    wire.capacity_bytes = 5
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reader.answer, b"0123456789")
        await wait_all_tasks_blocked()
        assert wire.take_sent() == b"01234"
        wire.capacity_bytes = None
    assert wire.take_sent() == b"56789"


async def test_a_peer_that_takes_no_answer_is_aborted(autojump_clock: MockClock) -> None:
    reader, wire = reader_of(GET)
    wire.capacity_bytes = 5
    with pytest.raises(BrokenWire, match="not taken in time"):
        await reader.answer(b"0123456789")
    assert wire.aborted
    assert trio.current_time() == pytest.approx(LIMITS.body_timeout_seconds)


async def test_a_reset_is_a_broken_wire() -> None:
    reader, wire = reader_of(GET[:5])
    wire.reset()
    with pytest.raises(BrokenWire):
        await reader.next_request()
    with pytest.raises(BrokenWire):
        await reader.answer(b"x")
    await reader.close()
    assert wire.closed


async def test_close_is_at_once_when_all_was_read(autojump_clock: MockClock) -> None:
    reader, wire = reader_of(post(b"hello"))
    await reader.next_request()
    await reader.read_body(10)
    await reader.close()
    assert wire.closed
    assert trio.current_time() == 0


async def test_close_lingers_while_more_is_coming(autojump_clock: MockClock) -> None:
    reader, wire = reader_of(b"BAD\r\n\r\n")
    with pytest.raises(HttpRefusal):
        await reader.next_request()
    await reader.close()
    assert wire.write_ended
    assert wire.closed
    assert trio.current_time() == pytest.approx(http.LINGER_SECONDS)


# On a real socket


async def exchange(request: bytes) -> tuple[bytes, list[str]]:
    """Send ``request`` whole to a server that refuses bodies above a limit; return what the client reads."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
    seen: list[str] = []
    received = bytearray()

    async def serve(wire: Wire, deadlines: Deadlines) -> None:
        reader = HttpReader(wire, LIMITS, deadlines)
        try:
            while (parsed := await reader.next_request()) is not None:
                seen.append(parsed.path)
                body = await reader.read_body(MAX_BODY_BYTES)
                await reader.answer(response(200, body, keep_alive=reader.keep_alive))
        except HttpRefusal as problem:
            await reader.answer(refusal(problem))
        await reader.close()

    def talk() -> None:
        client.sendall(request)
        while data := client.recv(65536):
            received.extend(data)
        client.close()

    with closing(client), closing(accepted):
        async with sweeping() as deadlines, trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, talk)
            await serve(Wire(accepted), deadlines)
    return bytes(received), seen


@pytest.mark.parametrize("size", [100_000, 5_000_000, 30_000_000])
async def test_too_large_is_read_by_a_client_that_sends_all_first(size: int) -> None:
    received, seen = await exchange(post(bytes(size)))
    assert received.startswith(b"HTTP/1.1 413 ")
    assert b"Connection: close" in received
    assert received.endswith(b'"detail":"the body is longer than 1000 bytes"}')
    assert seen == ["/events"]


async def test_chunks_too_large_are_answered_too() -> None:
    received, _ = await exchange(chunked(bytes(800), bytes(800), bytes(3_000_000)))
    assert received.startswith(b"HTTP/1.1 413 ")


async def test_a_request_behind_a_refused_upload_is_not_served() -> None:
    received, seen = await exchange(post(bytes(100_000)) + GET)
    assert received.count(b"HTTP/1.1") == 1
    assert seen == ["/events"]


async def test_a_pipeline_is_answered_in_order() -> None:
    received, seen = await exchange(
        post(b"first")
        + chunked(b"sec", b"ond")
        + GET
        + b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    )
    assert [received.index(part) for part in (b"first", b"second")] == sorted(
        received.index(part) for part in (b"first", b"second")
    )
    assert received.count(b"HTTP/1.1 200 OK") == 4
    assert seen == ["/events", "/events", "/stream", "/"]
