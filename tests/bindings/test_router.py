from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

import pytest
import trio

from aep_relay.bindings.router import METHODS
from aep_relay.hub.limits import Limits
from tests.bindings.served import (
    BEARER,
    JSON,
    TOKEN,
    Served,
    event,
    hello,
    parse_head,
    request,
    serving,
    settle,
    take_answer,
)

if TYPE_CHECKING:
    from tests.fakes.log import Log

PAGES = ["/events", "/.well-known/aep", "/healthz", "/connections"]


@pytest.mark.parametrize("path", ["/events", "/.well-known/aep"])
async def test_the_discovery_document(path: str) -> None:
    async with serving(Limits(buffer_events=77), token=TOKEN) as relay:
        answer = await relay.ask("GET", path)
        assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
        assert answer.json == {
            "aep": ["0.1"],
            "role": "collector",
            "endpoints": {"events": "/events", "stream": "/stream", "socket": "/socket"},
            "capabilities": {
                "filters": ["attr-match"],
                "replay": {"buffer": 77, "all": True},
                "capture": ["none", "metadata", "redacted", "full"],
                "control": {"accepts": []},
                "roster": {},
                "experimental": {},
            },
        }


@pytest.mark.parametrize("path", [*PAGES, "/nowhere", "/healthz?x=1"])
async def test_head_is_get_without_the_body(path: str) -> None:
    async with serving() as relay:
        get, head = await relay.ask("GET", path), await relay.ask("HEAD", path)
        if path == "/connections":
            assert get.json == {"connections": [], "links": [], "loops": []}
        assert (head.status, head.headers) == (get.status, get.headers)
        assert head.body == b""


async def test_head_of_a_stream_opens_none() -> None:
    async with serving() as relay:
        stream = await relay.stream()
        stream.read()
        assert stream.head is not None
        answer = await relay.ask("HEAD", "/stream")
        assert (answer.status, answer.headers) == (200, stream.head.headers)
        assert len(relay.relay.peers) == 1
        assert (await relay.ask("HEAD", "/stream?capture=x")).status == 400
        assert len(relay.relay.peers) == 1


@pytest.mark.parametrize("path", METHODS)
async def test_options_names_the_methods(path: str) -> None:
    async with serving(token=TOKEN) as relay:
        answer = await relay.ask("OPTIONS", path)
        assert (answer.status, answer.body) == (204, b"")
        assert answer.headers["allow"] == METHODS[path]
        assert "content-length" not in answer.headers


async def test_options_of_the_whole_server() -> None:
    async with serving(token=TOKEN) as relay:
        assert (await relay.ask("OPTIONS", "*")).status == 204


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS", "PUT", "HEAD"])
@pytest.mark.parametrize(
    "path", ["/", "/event", "/events/", "//events", "/EVENTS", "/events/../healthz", "/%00"]
)
async def test_an_unknown_path(path: str, method: str) -> None:
    async with serving() as relay:
        answer = await relay.ask(method, path, b"x" if method in ("POST", "PUT") else None)
        assert answer.status == 404
        if method != "HEAD":
            assert answer.refusal == (404, "not-found")


@pytest.mark.parametrize("path", METHODS)
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "TRACE", "HEAD"])
async def test_a_wrong_method(path: str, method: str) -> None:
    allowed = METHODS[path].split(", ")
    if method in allowed:
        return
    async with serving(token=TOKEN) as relay:
        answer = await relay.ask(method, path)
        assert answer.status == 405
        assert answer.headers["allow"] == METHODS[path]
        if method != "HEAD":
            assert answer.refusal == (405, "method-not-allowed")


async def test_the_absolute_form_and_a_query_change_nothing() -> None:
    async with serving() as relay:
        assert (await relay.ask("GET", "http://localhost/healthz?a=b&c")).status == 200
        assert (await relay.ask("POST", "http://localhost/%65vents", event(), JSON)).status == 202


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\n\r\n", 400),
        (b"GET /healthz HTTP/2.0\r\nHost: x\r\n\r\n", 505),
        (b"BREW /healthz HTTP/1.1\r\nHost: x\r\n\r\n", 501),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nExpect: tea\r\n\r\n", 417),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nA: " + b"x" * 131072 + b"\r\n\r\n", 431),
        (b"POST /events HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
    ],
)
async def test_what_is_no_request_is_refused_in_json(raw: bytes, status: int) -> None:
    async with serving() as relay:
        wire = relay.connect()
        wire.feed(raw + request("GET", "/healthz"))
        await settle()
        answer, rest = take_answer(wire.take_sent())
        assert answer.refusal[0] == status
        assert answer.headers["connection"] == "close"
        assert rest == b""


async def test_a_body_with_broken_framing_is_refused_in_json() -> None:
    async with serving() as relay:
        wire = relay.connect()
        wire.feed(request("POST", "/events", None, {**JSON, "Transfer-Encoding": "chunked"}) + b"no size\r\n")
        await settle()
        answer, rest = take_answer(wire.take_sent())
        assert answer.refusal == (400, "bad-request")
        assert (answer.headers["connection"], rest) == ("close", b"")


@pytest.mark.parametrize("token", [None, TOKEN])
async def test_health(token: str | None, autojump_clock: trio.testing.MockClock) -> None:
    async with serving(token=token) as relay:
        await relay.post(event(0, "a"), event(0, "b"), headers=BEARER)
        await relay.stream("", BEARER)
        await relay.greeted(headers=BEARER)
        await trio.sleep(12.5)
        assert (await relay.ask("GET", "/healthz", None, BEARER)).json == {
            "ok": True,
            "sessions": 2,
            "subscribers": 1,
            "connections": 3,
            "uptime_s": 12,
        }
        bare = (await relay.ask("GET", "/healthz")).json
        assert (bare == {"ok": True}) == (token is not None)
        assert bare["ok"]


async def test_health_tells_the_time() -> None:
    async with serving() as relay:
        told = parsedate_to_datetime((await relay.ask("GET", "/healthz")).headers["date"])
    assert abs((datetime.now(UTC) - told).total_seconds()) < 60


async def test_connections_are_itemised() -> None:
    async with serving(token=TOKEN) as relay:
        await relay.stream('?filter={"agent":"a"}&capture=metadata', BEARER)
        socket = await relay.greeted(
            "both", "worker", {"control": {"accepts": ["control.pause"]}}, headers=BEARER
        )
        await socket.ask(event(0, "s-1"), {"type": "subscribe", "id": "one", "filter": {}})
        assert (await relay.ask("GET", "/connections")).refusal == (401, "unauthorized")
        stream, duplex = (await relay.ask("GET", "/connections", None, BEARER)).json["connections"]
        assert (stream["binding"], stream["role"], stream["identity"]) == ("sse", "consumer", None)
        (subscription,) = stream["subscriptions"]
        assert (subscription["filter"], subscription["capture"]) == ({"agent": ["a"]}, "metadata")
        assert (duplex["binding"], duplex["role"]) == ("websocket", "both")
        assert duplex["identity"] == {"agent": "worker", "instance": "worker/1"}
        assert (duplex["accepts"], duplex["sessions"]) == (["control.pause"], ["s-1"])
        (subscription,) = duplex["subscriptions"]
        assert (subscription["id"], subscription["filter"], subscription["capture"]) == ("one", {}, None)
        assert (duplex["received_events"], stream["delivered_events"]) == (1, 0)
        assert TOKEN not in str((stream, duplex))


async def test_of_a_very_long_filter_the_length_is_shown() -> None:
    async with serving() as relay:
        socket = await relay.greeted()
        around = len('{"subject": [""]}')
        for length, shown in ((1024 - around, True), (1025 - around, False)):
            chosen = {"subject": ["x" * length]}
            await socket.ask({"type": "subscribe", "id": "one", "filter": chosen})
            (listed,) = (await relay.ask("GET", "/connections")).json["connections"]
            (subscription,) = listed["subscriptions"]
            assert subscription["filter"] == (chosen if shown else None)
            assert subscription.get("filter_chars") == (None if shown else 1025)


async def test_a_plain_request_for_the_socket() -> None:
    async with serving() as relay:
        answer = await relay.ask("GET", "/socket")
        assert answer.refusal == (426, "upgrade-required")
        assert answer.headers["upgrade"] == "websocket"


async def test_no_more_connections_than_the_limit() -> None:
    async with serving(Limits(max_connections=2)) as relay:
        wires = [relay.connect() for _ in range(2)]
        # However many are accepted before the first of them is served.
        assert not relay.service.admit()
        assert relay.relay.stats.refusals == {"max_connections": 1}
        wires[0].feed_end()
        await settle()
        assert relay.service.admit()
        assert not relay.service.admit()


class TestDraining:
    """What comes while the relay is on its way out."""

    async def test_a_request_is_refused_and_its_connection_ends(self) -> None:
        async with serving() as relay:
            wire = relay.connect()
            wire.feed(request("GET", "/healthz"))
            await settle()
            assert take_answer(wire.take_sent())[0].headers["connection"] == "keep-alive"
            relay.service.draining = True
            wire.feed(request("POST", "/events", event(), JSON) + request("GET", "/healthz"))
            await settle()
            answer, rest = take_answer(wire.take_sent())
            assert answer.refusal == (503, "draining")
            assert (answer.headers["connection"], rest) == ("close", b"")
            assert relay.relay.stats.received_events == 0

    @pytest.mark.parametrize("path", ["/stream", "/socket", "/nowhere", "/connections"])
    async def test_every_path_is_refused(self, path: str) -> None:
        async with serving() as relay:
            relay.service.draining = True
            assert (await relay.ask("GET", path)).refusal == (503, "draining")

    async def test_a_body_under_way_is_taken(self) -> None:
        async with serving() as relay:
            wire = relay.connect()
            whole = request("POST", "/events", event(), JSON)
            wire.feed(whole[:-5])
            await settle()
            relay.service.draining = True
            await relay.service.end_idle()
            wire.feed(whole[-5:])
            await settle()
            answer, _ = take_answer(wire.take_sent())
            assert (answer.status, answer.headers["connection"]) == (202, "close")
            assert wire.closed

    async def test_idle_connections_end_and_new_ones_may_ask_first(self) -> None:
        async with serving() as relay:
            fresh, used, begun, silent = (relay.connect() for _ in range(4))
            used.feed(request("GET", "/healthz"))
            begun.feed(b"GET /heal")
            await settle()
            used.take_sent()
            relay.service.draining = True
            await relay.service.end_idle()
            await settle()
            assert [wire.closed for wire in (fresh, used, begun, silent)] == [False, True, False, False]
            assert used.take_sent() == b""
            fresh.feed(request("GET", "/healthz"))
            begun.feed(b"thz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await settle()
            for wire in (fresh, begun):
                assert take_answer(wire.take_sent())[0].status == 503
            await relay.service.end_idle(unused=True)
            await settle()
            assert (silent.closed, silent.take_sent()) == (True, b"")
            assert relay.service.unused == set()


async def _crash(relay: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(relay.relay, "ingest", fail)


async def test_a_defect_ends_one_connection_and_no_more(monkeypatch: pytest.MonkeyPatch, log: Log) -> None:
    async with serving() as relay:
        stream = await relay.stream()
        socket = await relay.socket()
        await socket.ask(hello())
        kept = relay.connect()
        await _crash(relay, monkeypatch)
        broken = relay.connect()
        broken.feed(request("POST", "/events", event(), JSON))
        socket.say(event(1))
        await settle()
        assert broken.closed
        assert socket.wire.closed
        assert list(relay.relay.peers) == [1]
        assert [record["level"] for record in log.records("connection failed")] == ["error", "error"]
        monkeypatch.undo()
        kept.feed(request("POST", "/events", event(2), JSON))
        await settle()
        assert parse_head(kept.take_sent().partition(b"\r\n\r\n")[0])[0] == 202
        assert stream.events() == [event(2)]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 426),
        ({"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}, 400),
        ({"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "12"}, 426),
    ],
)
async def test_what_follows_a_failed_handshake_is_the_next_request(
    headers: dict[str, str], status: int
) -> None:
    async with serving() as relay:
        wire = relay.connect()
        following = request("POST", "/events", event(), JSON)
        wire.feed(request("GET", "/socket", None, headers) + following[:30])
        await settle()
        wire.feed(following[30:])
        await settle()
        refused, rest = take_answer(wire.take_sent())
        taken, rest = take_answer(rest)
        assert (refused.status, taken.status, rest) == (status, 202, b"")
