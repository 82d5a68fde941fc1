"""Hostile HTTP, over every path of the data port: the right answer, then the end, and nobody else notices.

What the reader itself makes of every byte is in ``tests/transport``; here are the same attacks on what is behind it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

import pytest

from aep_relay.hub.limits import Limits
from tests.hardening.client import Ended, Raw, ask, close_all, event, post, request
from tests.hardening.inside import PATIENCE_SECONDS, Inside, inside

HEAD_SECONDS, BODY_SECONDS = 1.5, 1.5


@pytest.fixture(scope="module")
def limits() -> Limits:
    return Limits(
        head_timeout_seconds=HEAD_SECONDS,
        body_timeout_seconds=BODY_SECONDS,
        idle_timeout_seconds=1.0,
        max_body_bytes=256 * 1024,
        max_event_bytes=128 * 1024,
    )


TARGETS = [
    ("POST", "/events"),
    ("GET", "/events"),
    ("GET", "/stream"),
    ("GET", "/stream?live=0"),
    ("GET", "/socket"),
    ("GET", "/healthz"),
    ("GET", "/connections"),
    ("GET", "/.well-known/aep"),
    ("OPTIONS", "/events"),
    ("GET", "/nowhere"),
]
UPGRADE = (
    "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n"
)
EMIT = "AEP-Version: 0.1\r\nContent-Type: application/json\r\n"


def head(method: str, target: str, fields: str = "", line_end: str = "\r\n", version: str = "1.1") -> bytes:
    own = UPGRADE if target == "/socket" else EMIT if method == "POST" else ""
    text = f"{method} {target} HTTP/{version}\r\nHost: 127.0.0.1\r\n{own}{fields}\r\n"
    return text.replace("\r\n", line_end).encode("latin-1")


SMUGGLED = post(event(session="smuggled"))


def was_smuggled(relay: Inside) -> bool:
    return relay.call(lambda: relay.service.relay.store.get("smuggled")) is not None


# One request that two readers could read as two

AMBIGUOUS = [
    "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
    "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
    "Content-Length: 5\r\nContent-Length: 6\r\n",
    "Content-Length: 5\r\nContent-Length: 5\r\n",
    "Content-Length: 5, 5\r\n",
    "Content-Length: +5\r\n",
    "Content-Length: 0x5\r\n",
    "Content-Length: -1\r\n",
    "Content-Length: 5 5\r\n",
    "Content-Length:\r\n",
    "Content-Length : 5\r\n",
    "Content-Length: 99999999999999999999\r\n",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
    "Transfer-Encoding: xchunked\r\n",
    "Transfer-Encoding: identity\r\n",
    "Transfer-Encoding: gzip, chunked\r\n",
    "Transfer-Encoding: \x0bchunked\r\n",
    " Transfer-Encoding: chunked\r\n",
    "X: 1\r\n Content-Length: 5\r\n",
    "Host: other\r\n",
    "Ho st: x\r\n",
    "X-Nul: a\0b\r\n",
    ": nameless\r\n",
    "no colon\r\n",
]


@pytest.mark.parametrize("fields", AMBIGUOUS, ids=repr)
@pytest.mark.parametrize(("method", "target"), TARGETS)
def test_an_ambiguous_head_is_the_last(relay: Inside, method: str, target: str, fields: str) -> None:
    with Raw(relay.port) as raw:
        raw.send(head(method, target, fields) + b"0\r\n\r\n" + SMUGGLED)
        answer = raw.answer()
        assert answer.error[0] in (400, 501)
        assert answer.headers["connection"] == "close"
        assert raw.rest() == b"", "what came behind was read"
    assert not was_smuggled(relay)


@pytest.mark.parametrize("line_end", ["\n", "\r", "\n\r"])
@pytest.mark.parametrize(("method", "target"), TARGETS)
def test_bare_line_ends(relay: Inside, method: str, target: str, line_end: str) -> None:
    with Raw(relay.port) as raw:
        raw.send(head(method, target, line_end=line_end))
        assert raw.answer().error[0] == 400
        assert raw.rest() == b""


# Chunks

BAD_CHUNKS = [
    b"5\r\nhello6\r\n",
    b"x\r\n",
    b"-1\r\n",
    b"0x1\r\n",
    b"1 \r\na\r\n",
    b"5\nhello\n0\n\n",
    b"\r\n",
    b"10000000000000000\r\n",
    b"fffffffffffffffff\r\n",
    b"1;" + b"a" * 2000 + b"\r\n",
    b"0\r\nContent-Length: 5\r\n\r\n",
    b"0\r\n" + b"X: y\r\n" * 3000 + b"\r\n",
    b"1\r\n{\r\n0\r\nbad trailer\r\n\r\n",
]


@pytest.mark.parametrize("chunks", BAD_CHUNKS, ids=lambda chunks: repr(chunks[:20]))
def test_bad_chunks(relay: Inside, chunks: bytes) -> None:
    with Raw(relay.port) as raw:
        raw.send(head("POST", "/events", "Transfer-Encoding: chunked\r\n") + chunks + SMUGGLED)
        assert raw.answer().error[0] in (400, 413)
        assert raw.rest() == b""
    assert not was_smuggled(relay)


def test_the_smallest_chunks_are_read(relay: Inside) -> None:
    body = event(session="chunked")
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    assert ask(relay.port, head("POST", "/events", "Transfer-Encoding: chunked\r\n") + chunks).status == 202


# Bodies that are short, early, or where none belongs


@pytest.mark.parametrize("framing", ["Content-Length: 1000\r\n", "Transfer-Encoding: chunked\r\n"])
@pytest.mark.parametrize("part", [b"", b"3e8\r\n{"])
def test_a_short_body_is_answered(relay: Inside, framing: str, part: bytes) -> None:
    with Raw(relay.port) as raw:
        raw.send(head("POST", "/events", framing) + part)
        raw.finish()
        assert raw.answer().error == (400, "bad-request")
        assert raw.rest() == b""


@pytest.mark.parametrize("framing", ["Content-Length: 1000\r\n", "Transfer-Encoding: chunked\r\n"])
def test_a_reset_in_mid_body(relay: Inside, framing: str) -> None:
    raw = Raw(relay.port)
    raw.send(head("POST", "/events", framing) + b"1")
    raw.reset()


@pytest.mark.parametrize("target", ["/events", "/healthz", "/connections", "/.well-known/aep", "/nowhere"])
def test_a_body_where_none_is_asked_for_is_skipped(relay: Inside, target: str) -> None:
    with Raw(relay.port) as raw:
        raw.send(request("GET", target, SMUGGLED) + request("GET", "/healthz"))
        assert raw.answer().status in (200, 404)
        assert raw.answer().json["ok"]
    assert not was_smuggled(relay)


@pytest.mark.parametrize("target", ["/events", "/healthz", "/nowhere"])
def test_a_long_or_chunked_body_where_none_is_asked_for_ends_the_connection(
    relay: Inside, target: str
) -> None:
    for data in (
        request("GET", target, b"x" * 100_000),
        head("GET", target, "Transfer-Encoding: chunked\r\n") + b"0\r\n\r\n",
    ):
        with Raw(relay.port) as raw:
            raw.send(data + request("GET", "/healthz"))
            assert raw.answer().headers["connection"] == "close"
            assert raw.rest() == b""


def test_a_stream_with_a_body_serves_nothing_of_it(relay: Inside) -> None:
    with Raw(relay.port) as raw:
        raw.send(request("GET", "/stream", SMUGGLED) + SMUGGLED)
        assert raw.answer(to_head=True).status == 200
        assert b"stream open" in raw.until(b"\n\n")
    assert not was_smuggled(relay)


def test_a_stream_is_no_place_to_send_without_end(relay: Inside) -> None:
    with Raw(relay.port) as raw:
        raw.send(request("GET", "/stream") + b"x" * 200_000)
        assert raw.is_over()


def test_an_upgrade_with_a_body_is_refused(relay: Inside) -> None:
    assert ask(relay.port, head("GET", "/socket", "Content-Length: 4\r\n") + b"abcd").status == 400


# Heads that are long


@pytest.mark.parametrize(("method", "target"), TARGETS)
@pytest.mark.parametrize("kind", ["one field", "many fields", "the target"])
def test_a_huge_head(relay: Inside, method: str, target: str, kind: str) -> None:
    if kind == "the target":
        data = head(method, target + "?" + "a" * 140_000)
    else:
        fields = "X: " + "a" * 140_000 + "\r\n" if kind == "one field" else "X: y\r\n" * 30_000
        data = head(method, target, fields)
    for size in (len(data), 700):
        with Raw(relay.port) as raw:
            raw.send_slowly(data, size)
            assert raw.answer().error == (431, "limit-exceeded")
            assert raw.rest() == b""


def test_a_head_without_an_end_is_refused_at_the_limit(relay: Inside) -> None:
    with Raw(relay.port) as raw:
        raw.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: ")
        raw.send(b"a" * 140_000)
        assert raw.answer().error == (431, "limit-exceeded")


# Targets and hosts

TARGET_SPELLINGS = [
    ("http://127.0.0.1/healthz", 200),
    ("HTTP://localhost:8787/healthz", 200),
    ("http://[::1]/healthz?x", 200),
    ("//healthz", 404),
    ("//127.0.0.1/healthz", 404),
    ("/./healthz", 404),
    ("/../healthz", 404),
    ("/healthz/", 404),
    ("/healthz%00", 404),
    ("/%68ealthz", 200),
    ("/healthz%2f", 404),
    ("/..%2f..%2f..%2fetc%2fpasswd", 404),
    ("/static/../../etc/passwd", 404),
    ("/%ff", 400),
    ("/healthz#x", 400),
    ("healthz", 400),
    ("http:/healthz", 400),
    ("http:///healthz", 400),
    ("http://user@127.0.0.1/healthz", 400),
    ("ftp://127.0.0.1/healthz", 400),
    ("http://evil.example/healthz", 403),
    ("*", 400),
    ("/\xe9", 400),
]


@pytest.mark.parametrize(("target", "status"), TARGET_SPELLINGS)
def test_targets(relay: Inside, target: str, status: int) -> None:
    assert ask(relay.port, request("GET", target)).status == status


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "a b",
        "127.0.0.1:99999999",
        "127.0.0.1:x",
        "[::1",
        "127.0.0.1, x",
        "\xe9",
        "<script>",
        "x" * 9000,
    ],
)
@pytest.mark.parametrize(("method", "target"), TARGETS)
def test_a_host_that_is_none_of_ours(relay: Inside, method: str, target: str, host: str) -> None:
    data = head(method, target).replace(b"127.0.0.1", host.encode("latin-1"), 1)
    assert ask(relay.port, data).status in (400, 403)


# Slow ones, many at a time


def test_a_thousand_heads_at_a_byte_a_second(relay: Inside) -> None:
    """Each gets its 408 while its head is still coming, and none holds a task a moment longer."""
    raws = [Raw(relay.port) for _ in range(1000)]
    over = threading.Event()

    def drip() -> None:
        data = head("GET", "/stream", "X: " + "y" * 100 + "\r\n")
        for byte in data:
            for raw in raws:
                with contextlib.suppress(OSError):
                    raw.sock.send(bytes((byte,)))
            if over.wait(0.3):
                return

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        assert [raw.answer().error for raw in raws] == [(408, "timeout")] * len(raws)
        assert thread.is_alive(), "the heads came whole"
    finally:
        over.set()
        thread.join()
        close_all(raws)


def test_bodies_at_a_byte_a_second(relay: Inside) -> None:
    raws = [Raw(relay.port) for _ in range(50)]
    for number, raw in enumerate(raws):
        raw.send(head("POST", "/events", f"Content-Length: {1000 + number}\r\n"))
    over = threading.Event()

    def drip() -> None:
        while not over.wait(0.1):
            for raw in raws:
                with contextlib.suppress(OSError):
                    raw.sock.send(b" ")

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        assert [raw.answer().error for raw in raws] == [(408, "timeout")] * len(raws)
    finally:
        over.set()
        thread.join()
        close_all(raws)


def test_connections_that_say_nothing_are_closed(relay: Inside) -> None:
    raws = [Raw(relay.port) for _ in range(100)]
    assert all(raw.is_over() for raw in raws)
    close_all(raws)


@pytest.mark.parametrize("data", [b"\r\n" * 100_000, b"\r", b"G"], ids=["blank lines", "a CR", "a letter"])
def test_little_or_nothing_holds_nothing(relay: Inside, data: bytes) -> None:
    with Raw(relay.port) as raw:
        raw.send(data)
        assert raw.is_over()


# Pipelines


def test_a_post_and_a_get_in_one_piece(relay: Inside) -> None:
    with Raw(relay.port) as raw:
        raw.send(post(event(session="piped")) + request("GET", "/healthz") + post(event(1, session="piped")))
        assert raw.answer().status == 202
        assert raw.answer().json["ok"]
        assert raw.answer().status == 202


def test_a_pipeline_that_is_not_read(relay: Inside) -> None:
    """Answers wait in the socket; when it is full the connection waits, and ends in the body's time."""
    others = relay.holdings().connections
    with Raw(relay.port, receive_buffer_bytes=4096) as raw:
        raw.sock.settimeout(0.2)
        with contextlib.suppress(TimeoutError, OSError):
            while True:
                raw.sock.sendall(request("GET", "/.well-known/aep") * 500)
        deadline = time.monotonic() + PATIENCE_SECONDS
        # Reading would help it on.
        while relay.holdings().connections > others and time.monotonic() < deadline:
            time.sleep(0.05)
        raw.sock.settimeout(PATIENCE_SECONDS)
        assert raw.is_over()


@pytest.mark.parametrize(
    "last",
    [request("GET", "/stream?live=0"), head("GET", "/socket"), b"x\r\n\r\n", b""],
    ids=lambda last: repr(last[:12]),
)
def test_a_thousand_requests_in_one_piece(relay: Inside, last: bytes) -> None:
    with Raw(relay.port) as raw:
        raw.send(request("GET", "/healthz") * 1000 + last)
        for _ in range(1000):
            assert raw.answer().status == 200
        if last:
            assert raw.answer(to_head=True).status in (200, 101, 400)


# Too much


def refused_in_mid_upload(raw: Raw, data: Callable[[], bytes]) -> int:
    """Send until the relay has answered; return the status."""
    raw.sock.settimeout(0.05)
    with contextlib.suppress(OSError):
        for _ in range(100_000):
            raw.sock.sendall(data())
            try:
                raw.sock.setblocking(False)
                raw._buffer += raw.receive()
                break
            except BlockingIOError:
                pass
            except Ended:
                break
            finally:
                raw.sock.settimeout(0.05)
    raw.sock.settimeout(PATIENCE_SECONDS)
    return raw.answer().status


@pytest.mark.parametrize("framing", ["Content-Length: 100000000\r\n", "Transfer-Encoding: chunked\r\n"])
def test_413_in_mid_upload_arrives(relay: Inside, framing: str) -> None:
    """Long before the upload is over, and no reset overtakes it."""
    with Raw(relay.port) as raw:
        raw.send(head("POST", "/events", framing))
        piece = b"10000\r\n" + b" " * 65_536 + b"\r\n" if "chunked" in framing else b" " * 65_536
        assert refused_in_mid_upload(raw, lambda: piece) == 413
    assert ask(relay.port, post(event(session="after"))).status == 202


def test_413_for_one_event_leaves_the_connection(relay: Inside) -> None:
    with Raw(relay.port) as raw:
        raw.send(post(event(data={"text": "x" * 140_000})) + post(event(session="after")))
        assert raw.answer().error == (413, "invalid-event")
        assert raw.answer().status == 202


def test_a_body_that_is_a_little_too_long_is_skipped_and_the_connection_used_again() -> None:
    with inside(Limits(max_body_bytes=1024)) as small, Raw(small.port) as raw:
        raw.send(post(b" " * 2000) + post(event()))
        answer = raw.answer()
        assert (answer.status, answer.headers["connection"]) == (413, "keep-alive")
        assert raw.answer().status == 202


def test_expect_is_answered_before_an_upload_that_is_too_long(relay: Inside) -> None:
    with Raw(relay.port) as raw:
        raw.send(head("POST", "/events", "Expect: 100-continue\r\nContent-Length: 100000000\r\n"))
        answer = raw.answer()
        assert (answer.status, answer.headers["connection"]) == (413, "close")
        assert raw.rest() == b""


# What is no request at all


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\0" * 100_000,
        b"\xff" * 1000,
        b"GET\r\n\r\n",
        b"GET /healthz\r\n\r\n",
        b"GET /healthz HTTP/1.1 \r\n\r\n",
        b"get /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET  /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
        b"CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example:443\r\n\r\n",
        b"TRACE / HTTP/1.1\r\nHost: x\r\n\r\n",
        b'{"aep":"0.1"}\n' * 100,
    ],
    ids=lambda data: repr(data[:16]),
)
def test_what_is_no_request(relay: Inside, data: bytes) -> None:
    with Raw(relay.port) as raw:
        raw.send(data)
        raw.finish()
        assert raw.answer().status in (400, 403, 404, 405, 501, 505)
