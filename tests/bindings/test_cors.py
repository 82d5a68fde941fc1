"""A browser reads a refusal only if it carries the headers that let its page read it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from aep_relay.hub.limits import Limits
from tests.bindings.served import BEARER, JSON, TOKEN, Answer, Served, event, serving, settle, take_answer

if TYPE_CHECKING:
    from trio.testing import MockClock

PAGE = "https://page.example"
FROM_PAGE = {"Origin": PAGE}


def readable(answer: Answer | None) -> bool:
    assert answer is not None
    assert answer.headers["vary"] == "Origin"
    return answer.headers.get("access-control-allow-origin") == PAGE


async def answers(relay: Served) -> dict[str, Answer]:
    """Every kind of answer, as a page gets it."""
    page, post = {**FROM_PAGE, **BEARER}, {**JSON, **FROM_PAGE, **BEARER}
    stream = await relay.stream("", page)
    stream.read()
    assert stream.head is not None
    socket = await relay.socket("", {**page, "Sec-WebSocket-Version": "12"})
    socket.heard()
    found = {
        "202": await relay.ask("POST", "/events", event(), post),
        "400": await relay.ask("POST", "/events", b"{", post),
        "400 framing": await relay.chunked("/events", b"no size", post),
        "401": await relay.ask("GET", "/connections", None, FROM_PAGE),
        "401 post": await relay.ask("POST", "/events", event(), {**JSON, **FROM_PAGE}),
        "403": await relay.ask("POST", "/events", event(None, type_="control.pause"), post),
        "404": await relay.ask("GET", "/nowhere", None, page),
        "405": await relay.ask("DELETE", "/events", None, page),
        "413": await relay.ask("POST", "/events", b"x" * 1025, post),
        "413 before the body": await relay.ask(
            "POST", "/events", None, {**post, "Content-Length": "99999999"}
        ),
        "415": await relay.ask("POST", "/events", event(), {**post, "Content-Type": "text/plain"}),
        "426": await relay.ask("POST", "/events", event(), {**post, "AEP-Version": "3"}),
        "200 discovery": await relay.ask("GET", "/events", None, page),
        "200 health": await relay.ask("GET", "/healthz", None, page),
        "200 connections": await relay.ask("GET", "/connections", None, page),
        "200 stream": stream.head,
        "400 stream": await relay.ask("GET", "/stream?live=2", None, page),
        "426 socket": await relay.ask("GET", "/socket", None, page),
    }
    relay.service.draining = True
    found["503"] = await relay.ask("GET", "/healthz", None, page)
    for name, answer in found.items():
        assert answer.status == int(name[:3]), name
    return found


@pytest.mark.parametrize(
    ("origins", "may_read"),
    [((), True), (("*",), True), ((PAGE,), True), (("https://other.example",), False)],
)
async def test_every_answer_can_be_read_by_pages_that_may(origins: tuple[str, ...], may_read: bool) -> None:
    async with serving(Limits(max_body_bytes=1024), token=TOKEN, origins=origins) as relay:
        for name, answer in (await answers(relay)).items():
            assert readable(answer) is may_read, name


ORIGIN = f"Origin: {PAGE}\r\n"
MANY = "X:\r\n" * 201
UNSERVED = {
    "400 a folded line": f"GET /stream HTTP/1.1\r\nHost: x\r\n{ORIGIN}X: 1\r\n 2\r\n\r\n",
    "400 no Host": f"GET /stream HTTP/1.1\r\noRIGIN:\t{PAGE} \r\n\r\n",
    "400 two lengths": f"POST /events HTTP/1.1\r\nHost: x\r\n{ORIGIN}Content-Length: 1\r\nContent-Length: 1\r\n\r\n",
    "400 a control character, in a part of a head": f"GET / HTTP/1.1\r\n{ORIGIN}X: \0",
    "400 the end of a part of a head": f"GET / HTTP/1.1\r\n{ORIGIN}X: ",
    "417": f"POST /events HTTP/1.1\r\nHost: x\r\n{ORIGIN}Expect: more\r\n\r\n",
    "431 a whole head": f"GET / HTTP/1.1\r\nHost: x\r\n{ORIGIN}X: {'x' * 2000}\r\n\r\n",
    "431 a part of a head": f"GET / HTTP/1.1\r\nHost: x\r\n{ORIGIN}X: {'x' * 2000}",
    "431 fields": f"GET / HTTP/1.1\r\nHost: x\r\n{ORIGIN}{MANY}\r\n",
    "501": f"CONNECT /events HTTP/1.1\r\nHost: x\r\n{ORIGIN}\r\n",
    "505": f"GET /events HTTP/2.0\r\nHost: x\r\n{ORIGIN}\r\n",
}


async def unserved(relay: Served, text: str) -> Answer:
    wire = relay.connect()
    wire.feed(text.encode())
    wire.feed_end()
    await settle()
    return take_answer(wire.take_sent())[0]


@pytest.mark.parametrize(
    ("origins", "may_read"), [((), True), ((PAGE,), True), (("https://other.example",), False)]
)
async def test_what_is_not_even_served_can_be_read_by_pages_that_may(
    origins: tuple[str, ...], may_read: bool
) -> None:
    async with serving(Limits(max_head_bytes=1024), token=TOKEN, origins=origins) as relay:
        for name, text in UNSERVED.items():
            answer = await unserved(relay, text)
            assert answer.status == int(name[:3]), name
            assert set(answer.json) == {"error", "detail"}, name
            assert readable(answer) is may_read, name


async def test_a_head_that_takes_too_long_is_refused_readably(autojump_clock: MockClock) -> None:
    async with serving(token=TOKEN) as relay:
        wire = relay.connect()
        wire.feed(f"GET / HTTP/1.1\r\n{ORIGIN}".encode())
        await trio.sleep(60)
        answer, _ = take_answer(wire.take_sent())
        assert (answer.status, readable(answer)) == (408, True)


@pytest.mark.parametrize(
    "origin", [f"{ORIGIN}{ORIGIN}", "Origin: x\x80\r\n", "X-Origin: x\r\n", f"X: 1 {ORIGIN}"]
)
async def test_an_origin_that_can_not_be_told_lets_nobody_read(origin: str) -> None:
    async with serving(token=TOKEN) as relay:
        answer = await unserved(relay, f"GET / HTTP/1.1\r\n{origin}X: 1\r\n 2\r\n\r\n")
        assert answer.status == 400
        assert "access-control-allow-origin" not in answer.headers


async def test_who_comes_from_no_page_gets_no_such_headers() -> None:
    async with serving(token=TOKEN) as relay:
        answer = await relay.ask("GET", "/connections")
        assert not any(name.startswith("access-control") for name in answer.headers)


PREFLIGHT = {
    **FROM_PAGE,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "aep-version,authorization,content-type",
}


async def test_a_preflight_is_answered_without_a_token() -> None:
    async with serving(token=TOKEN) as relay:
        answer = await relay.ask("OPTIONS", "/events", None, PREFLIGHT)
        assert (answer.status, answer.body) == (204, b"")
        assert readable(answer)
        assert "POST" in answer.headers["access-control-allow-methods"].split(", ")
        allowed = answer.headers["access-control-allow-headers"].lower().split(", ")
        assert {"aep-version", "authorization", "content-type", "last-event-id"} <= set(allowed)
        assert int(answer.headers["access-control-max-age"]) > 0
        assert "access-control-allow-private-network" not in answer.headers


async def test_a_preflight_from_a_public_page_to_a_private_network() -> None:
    async with serving(token=TOKEN) as relay:
        answer = await relay.ask(
            "OPTIONS", "/stream", None, {**PREFLIGHT, "Access-Control-Request-Private-Network": "true"}
        )
        assert answer.headers["access-control-allow-private-network"] == "true"


async def test_a_preflight_of_a_page_that_may_not() -> None:
    async with serving() as relay:
        answer = await relay.ask("OPTIONS", "/events", None, PREFLIGHT)
        assert answer.status == 204
        assert not any(name.startswith("access-control") for name in answer.headers)


@pytest.mark.parametrize(
    "origin", [PAGE, "null", "http://127.0.0.1.evil.example", "http://localhost:80@x", "\xfc"]
)
async def test_without_a_token_foreign_pages_are_refused(origin: str) -> None:
    async with serving() as relay:
        page = {"Origin": origin}
        for method, path in (
            ("GET", "/events"),
            ("GET", "/healthz"),
            ("GET", "/connections"),
            ("HEAD", "/stream"),
        ):
            assert (await relay.ask(method, path, None, page)).status == 403
        assert (await relay.post(event(), headers=page)).refusal == (403, "unauthorized")
        stream = await relay.stream("", page)
        stream.read()
        assert stream.head is not None
        assert stream.head.refusal == (403, "unauthorized")
        socket = await relay.socket("", page)
        socket.heard()
        assert socket.refused is not None
        assert socket.refused.status == 403
        assert relay.relay.stats.received_events == 0
        assert relay.relay.peers == {}


@pytest.mark.parametrize(
    "origin", ["http://localhost:5173", "http://127.0.0.1:3000", "https://[::1]", "http://localhost"]
)
async def test_without_a_token_pages_of_this_host_may(origin: str) -> None:
    async with serving() as relay:
        answer = await relay.post(event(), headers={"Origin": origin})
        assert answer.status == 202
        assert answer.headers["access-control-allow-origin"] == origin


async def test_the_dashboard_may() -> None:
    async with serving(origins=("https://other.example",)) as relay:
        relay.service.own_origins.add(PAGE)
        answer = await relay.post(event(), headers=FROM_PAGE)
        assert (answer.status, readable(answer)) == (202, True)
